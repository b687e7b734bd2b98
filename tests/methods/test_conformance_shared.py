"""The conformance suite once more: every run that several processes can share is shared by two.

The tests are those of ``test_conformance.py``, word for word; only what trains and resumes is another. Processes are
threads here, which exchange the same messages; real ones are in ``test_processes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from understudy.api import TrainOptions, resume
from understudy.data.dataset import ImageDataset
from understudy.distributed import Team
from understudy.following import follow
from understudy.methods.registry import get_method
from understudy.release.release import Release

from ..helpers import runs
from ..helpers.cases import CASES, TAUGHT, case_of
from ..helpers.data import dealt
from ..helpers.teams import together
from . import test_conformance as suite

finished, noise_rows = suite.finished, suite.noise_rows  # fixtures of the suite

SHARED = [case for case in (*CASES, *TAUGHT) if get_method(case_of(case).name).shared_by_processes]
QUICK_CASE = "dp-merf-ae"  # private steps, then a sum over all units
QUICK = {
    "test_it_spends_what_it_planned_within_the_budget",
    "test_its_certificate_states_the_events_of_the_ledger_and_what_they_cost",
    "test_its_release_verifies_and_holds_the_allowed_files_only",
    "test_progress_shows_values_that_were_declared_public_and_no_others",
    "test_an_interrupted_run_resumes_to_the_end_at_the_planned_price_with_fresh_noise",
}


class Held:
    """A source of data that everybody holds already."""

    def __init__(self, data: ImageDataset) -> None:
        self.data = data

    def completed_by(self, earlier: Any) -> Held:
        return self

    def completed_from(self, domain: Any) -> Held:
        return self

    def open(self) -> ImageDataset:
        return self.data


def in_two_processes(data: ImageDataset, act: Callable[[Team], Any]) -> Any:
    return together(2, act, lambda team: follow(team, Held(data)), dismiss=False)


def train_in_two(case: str, data: ImageDataset, out: Any, **changes: Any) -> Release:
    return in_two_processes(dealt(case, data), lambda team: _train(case, data, out, team=team, **changes))


def resume_in_two(data: ImageDataset, out: Any) -> Release:
    return in_two_processes(data, lambda team: resume(data, out, TrainOptions(team=team)))


_train = runs.tiny_train


@pytest.fixture(scope="module", autouse=True)
def _shared_by_two() -> Iterator[None]:
    """Whatever the suite trains and resumes is shared."""
    with pytest.MonkeyPatch.context() as patch:
        for place in (suite, runs):
            patch.setattr(place, "tiny_train", train_in_two)
        patch.setattr(suite, "resume", resume_in_two)
        yield


def _marks(name: str, case: str) -> Any:
    return () if name in QUICK and case == QUICK_CASE else pytest.mark.slow


def _with_shared_cases(test: FunctionType) -> FunctionType:
    """The same test with cases that several processes can share."""
    twin = FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__, test.__closure__)
    marks = [mark for mark in test.pytestmark if "case" not in mark.args[0]]
    kinds = any("kind" in mark.args[0] for mark in test.pytestmark)
    names, cases = ("case", "kind") if kinds else ("case",), []
    for case in SHARED:
        for kind in case_of(case).kinds if kinds else (None,):
            marked = _marks(test.__name__, case) if kind in (None, "labelled") else pytest.mark.slow
            cases.append(pytest.param(*([case, kind] if kinds else [case]), marks=marked))
    twin.pytestmark = [*marks, pytest.mark.parametrize(names, cases).mark]
    return twin


def _trains(test: Any) -> bool:
    names = test.__code__.co_varnames[: test.__code__.co_argcount]
    return "case" in names and bool({"finished", "tmp_path"} & set(names))


for _name, _test in list(vars(suite).items()):
    if _name.startswith("test_") and _trains(_test):
        globals()[_name] = _with_shared_cases(_test)


def test_the_suite_is_that_of_all_methods():
    """What is tried here is not fewer than a dozen properties, and most kinds of work that processes share."""
    assert sum(name.startswith("test_") for name in globals()) > 12
    assert {"dp-merf", "dp-merf-ae", "dpgan", "dp-diffusion from central images", "dpgan with a teacher"} <= set(SHARED)
    assert set(globals()) >= QUICK
