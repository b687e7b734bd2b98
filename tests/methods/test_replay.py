"""Neighbour replay: two runs on neighbouring data, the second with the sanitized values of the first, must be the same.

All that a record may change goes through a mechanism. So if every mechanism hands out the values that it handed out
before, and public randomness is the same, then nothing at all may differ outside: not the flow of the program, not a
shape, a step, a normaliser, a line of progress, nor a bit of the released weights.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import understudy
from understudy.api import TrainOptions, train
from understudy.data.dataset import ImageDataset
from understudy.privacy.mechanisms import GaussianMechanism

from ..federated.helpers import federated_data
from ..federated.helpers import tiny_config as tiny_federation
from ..federated.test_fedavg import CONFIG as FEDAVG
from ..helpers.cases import ALL_CASES, BUDGET, LOOPS, TAUGHT
from ..helpers.data import with_labels
from ..helpers.runs import own_state_folder, recorded, tiny_train

SEED = 11
PUBLIC_CODE = (  # where no private value may decide anything; what works on private rows follows their number
    "methods/",
    "federated/gs_wgan.py",
    "federated/fedavg_gan.py",
    "federated/config.py",
    "federated/claims.py",
    "federated/routing.py",
    "privacy/ledger.py",
    "engines/embedding/start.py",
    "engines/learner.py",
    "engines/teacher/config.py",
    "runs/",
    "api.py",
)
PRIVATE_CODE = (  # beside a method, but on private rows
    "methods/adversarial/discriminator.py",
    "methods/diffusion/denoising.py",
    "methods/embedding/hermite.py",
    "methods/embedding/codes.py",
    "methods/transport/sinkhorn.py",
)
PRIVATE_FUNCTIONS = {"_fingerprint", "<genexpr>", "<lambda>", "<listcomp>"}


@pytest.fixture(scope="module", autouse=True)
def _everything_imported() -> None:
    """What is imported when it is first used would be a call that the second run does not make."""
    for module in pkgutil.walk_packages(understudy.__path__, "understudy."):
        rooms = ("audit", "cli", "evaluate", "experiments", "federated.deployment", "inspection", "report")
        if not module.name.removeprefix("understudy.").startswith(rooms):
            with suppress(ModuleNotFoundError):  # what needs a graphics card is not used here
                importlib.import_module(module.name)


@dataclass
class Tape:
    """The sanitized values of a run: recorded by the first, handed out again to the second."""

    values: list[tuple[str, Tensor]] = field(default_factory=list)
    place: int | None = None  # None while recording

    def noisy(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What to put in the place of ``_noisy``."""

        def noisy(mechanism: GaussianMechanism, exact: Tensor, deviation: float) -> Tensor:
            value = original(mechanism, exact, deviation)
            purpose = str(mechanism.account.template.purpose)
            if self.place is None:
                self.values.append((purpose, value.clone()))
                return value
            assert self.place < len(self.values), "the second run asks for more sanitized values"
            known, kept = self.values[self.place]
            assert (purpose, value.shape) == (known, kept.shape), "another access, or another shape"
            self.place += 1
            return kept.clone()

        return noisy


@contextmanager
def calls_of_public_code() -> Iterator[list[tuple[str, str]]]:
    """Every call of a function in ``PUBLIC_CODE``, in order."""
    called: list[tuple[str, str]] = []

    def look(frame: Any, event: str, argument: Any) -> None:
        function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)  # not the body of a module or class
        if event == "call" and function and "/understudy/" in frame.f_code.co_filename:
            path = frame.f_code.co_filename.rpartition("/understudy/")[2]
            if (
                path.startswith(PUBLIC_CODE)
                and not path.startswith(PRIVATE_CODE)
                and frame.f_code.co_name not in PRIVATE_FUNCTIONS
            ):
                called.append((path, frame.f_code.co_name))

    sys.setprofile(look)
    try:
        yield called
    finally:
        sys.setprofile(None)


def outcome(folder: Path, called: list[tuple[str, str]]) -> dict[str, Any]:
    """All that a run shows and does, except on which day it ran and what is private."""
    return {
        "calls": called,
        **public_files(folder),
        "ledger": recorded(folder),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
    }


def public_files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file that may be shown, but for the day, which is all of the time that a release tells."""
    created = json.loads((folder / "release" / "certificate.json").read_text())["created"]
    assert created == date.fromisoformat(created).isoformat()
    shown = (folder / "progress.jsonl", *sorted((folder / "release").iterdir()))
    return {path.name: path.read_bytes().replace(created.encode(), b"that day") for path in shown}


def replayed(start: Callable[[ImageDataset, Path], Any], pair: tuple[ImageDataset, ImageDataset], home: Path) -> None:
    """Run both neighbours with one tape and compare what they do."""
    first, second = outcomes(start, pair, home)
    for name, value in first.items():
        assert second[name] == value, name


def outcomes(
    start: Callable[[ImageDataset, Path], Any], pair: tuple[ImageDataset, ImageDataset], home: Path
) -> list[dict[str, Any]]:
    """What two runs with one tape do and show."""
    tape, found = Tape(), []
    for number, data in enumerate(pair):
        with pytest.MonkeyPatch.context() as patch, own_state_folder(home / str(number)):
            patch.setattr(GaussianMechanism, "_noisy", tape.noisy(GaussianMechanism._noisy))
            torch.manual_seed(SEED)  # first weights
            with calls_of_public_code() as called:
                start(data, home / str(number) / "run")
        found.append(outcome(home / str(number) / "run", called))
        assert tape.values, "a private method sanitizes something"
        assert tape.place in (None, len(tape.values)), "the second run asks for fewer sanitized values"
        tape.place = 0
    return found


TRIED = (*ALL_CASES, *TAUGHT)


def _fast(case: str) -> bool:
    return case in (*LOOPS, "dp-sinkhorn", "dp-merf with a teacher")


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case, marks=() if _fast(case) else pytest.mark.slow) for case in TRIED]
)
def test_neighbours_with_the_same_sanitized_values_run_alike(case, tmp_path):
    """One record more, the first of its class and unlike all others."""
    without, with_record = with_labels((0, 1) * 20), with_labels([*(0, 1) * 20, 2])
    with_record.images[-1] = 255
    replayed(
        lambda data, out: tiny_train(case, data, out, seed=SEED, runtime={"micro_batch": 8}),
        (without, with_record),
        tmp_path,
    )


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in ("dp-merf", "dpgan") else pytest.mark.slow) for case in TRIED]
)
def test_the_public_files_of_a_run_do_not_tell_records_from_four_times_as_many(case, tmp_path):
    """The declared number is the same. Time and private files follow the true one, and nothing that is shown does."""
    pair = with_labels((0, 1) * 20), with_labels((0, 1) * 80)
    assert pair[0].domain == pair[1].domain
    outcomes(lambda data, out: tiny_train(case, data, out, seed=SEED), pair, tmp_path)
    few, many = (public_files(tmp_path / number / "run") for number in ("0", "1"))
    assert few.keys() == {"progress.jsonl", *(path.name for path in (tmp_path / "0" / "run" / "release").iterdir())}
    for name, content in few.items():
        assert many[name] == content, name


FEDERATED = {"gs-wgan-federated": tiny_federation(), "fedavg-gan": FEDAVG}


@pytest.mark.parametrize("method", [pytest.param(name, marks=pytest.mark.slow) for name in FEDERATED])
def test_federations_with_the_same_sanitized_values_run_alike_without_a_client(method, tmp_path):
    """The last client's records are gone; its place is not."""
    data = federated_data()
    assert data.client_ids is not None
    without = data.subset(np.flatnonzero(data.client_ids < data.client_ids.max()))
    options = TrainOptions(config=FEDERATED[method], seed=SEED)
    replayed(lambda given, out: train(method, given, BUDGET, out, options), (data, without), tmp_path)


def test_a_normaliser_that_follows_the_data_is_noticed(tmp_path, monkeypatch):
    """The replay itself can fail: a division by the true number of records shows in the weights."""
    from understudy.engines.embedding import means as mean_embedding

    real = mean_embedding.NoisyMeans.from_total
    sizes = []

    def from_total(total_dp, size_share, nominal_records):
        found = real(total_dp, size_share, nominal_records)
        return mean_embedding.NoisyMeans(found.means_dp / len(sizes[-1]), found.shares_dp)

    monkeypatch.setattr(mean_embedding.NoisyMeans, "from_total", from_total)

    def start(data, out):
        sizes.append(data)
        tiny_train("dp-merf", data, out, seed=SEED)

    with pytest.raises(AssertionError, match=r"certificate\.json|progress\.jsonl"):
        replayed(start, (with_labels((0, 1) * 20), with_labels((0, 1) * 21)), tmp_path)
