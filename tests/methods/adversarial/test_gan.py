"""Methods without privacy: references that can never be taken for a certified release.

They have no entry in ``CASES``: the conformance tests ask for a budget, events and a release that verifies, and these
methods have none of them. What they must do instead is here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from understudy.api import TrainOptions, release_early, resume, train
from understudy.errors import InputError, InterruptedRun
from understudy.methods.base import configure
from understudy.methods.registry import get_method, method_names
from understudy.privacy.budget import NoBudget
from understudy.privacy.certificate import parse_certificate
from understudy.privacy.ledger import Ledger
from understudy.release.release import Release, load
from understudy.release.verify import verify

from ...helpers.cases import BUDGET, CASES, NOT_PRIVATE
from ...helpers.certificates import AS_DESIGNED
from ...helpers.data import tiny_data
from ...helpers.runs import read_lines
from ...release.building import put_json

every_method = pytest.mark.parametrize("method", sorted(NOT_PRIVATE))


def train_without_budget(method: str, out: Path, kind: str = "labelled", **options: object) -> Release:
    return train(method, tiny_data(kind), None, out, TrainOptions(config=NOT_PRIVATE[method].config(), **options))


def test_every_method_is_either_held_to_a_budget_or_listed_as_not_private():
    for name in method_names():
        assert get_method(name).private == (name not in NOT_PRIVATE)
    assert not {case.name for case in CASES.values()} & set(NOT_PRIVATE)


@every_method
def test_its_plan_promises_nothing_and_says_so(method):
    implementation = get_method(method)
    config = configure(implementation, NOT_PRIVATE[method].config())
    plan = implementation.plan(config, tiny_data().domain, NoBudget())
    assert plan.events == ()
    assert plan.epsilon == math.inf
    assert plan.as_dict()["epsilon"] is None
    assert any("not private" in remark for remark in plan.remarks)


@every_method
def test_a_budget_is_refused_because_it_could_not_be_kept(method, tmp_path):
    with pytest.raises(InputError, match=f"{method} is not private, so it keeps no budget"):
        train(method, tiny_data(), BUDGET, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", sorted({case.name for case in CASES.values()}))
def test_a_private_method_without_a_budget_is_refused(method, tmp_path):
    for nothing in (None, NoBudget()):
        with pytest.raises(InputError, match="--epsilon is needed"):
            train(method, tiny_data(), nothing, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@every_method
@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
def test_its_release_is_stamped_everywhere_and_never_verifies(method, kind, tmp_path):
    release = train_without_budget(method, tmp_path / "run", kind)
    assert "not private" in (release.certificate.not_private or "")
    assert (release.certificate.guarantees, release.certificate.events) == ((), ())
    with pytest.raises(InputError, match="there is no guarantee"):
        _ = release.certificate.headline
    verification = verify(tmp_path / "run")
    assert [check.name for check in verification.checks if not check.passed] == ["guarantee"]
    assert (verification.epsilon, verification.claimed) == (None, None)
    card = (tmp_path / "run" / "release" / "README.md").read_text()
    assert "not private" in card.splitlines()[0]
    assert "may be used in their place" not in card
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").events() == ()
    assert load(tmp_path / "run").sample(5)[0].shape[0] == 5


@every_method
def test_it_cannot_be_saved_as_something_to_hand_out(method, tmp_path):
    release = train_without_budget(method, tmp_path / "run")
    with pytest.raises(InputError, match="not private"):
        release.save(tmp_path / "published")
    assert not (tmp_path / "published").exists()


@every_method
def test_its_progress_shows_no_spending(method, tmp_path):
    train_without_budget(method, tmp_path / "run")
    lines = read_lines(tmp_path / "run" / "progress.jsonl")
    assert lines
    for line in lines:
        assert set(line) <= NOT_PRIVATE[method].public_values | {"step", "seconds"}


@every_method
def test_it_resumes_and_releases_early_under_the_same_stamp(method, tmp_path):
    reports: list[object] = []
    with pytest.raises(InterruptedRun):
        train_without_budget(method, tmp_path / "run", listener=reports.append, stop_requested=lambda: bool(reports))
    assert release_early(tmp_path / "run").certificate.not_private is not None
    finished = resume(tiny_data(), tmp_path / "run")
    assert finished.certificate.not_private is not None
    assert not verify(tmp_path / "run").passed


@every_method
def test_taking_the_stamp_off_leaves_no_certificate(method, tmp_path):
    """Without the stamp a certificate needs a guarantee and events; with made-up ones the plan does not match."""
    train_without_budget(method, tmp_path / "run")
    path = tmp_path / "run" / "release" / "certificate.json"
    honest = json.loads(path.read_text())
    bare = {key: value for key, value in honest.items() if key != "not_private"}
    with pytest.raises(InputError, match=r"guarantees: .*at least one is needed"):
        parse_certificate(bare)
    claims = {"guarantees": AS_DESIGNED["guarantees"], "events": AS_DESIGNED["events"]}
    with pytest.raises(InputError, match=r"guarantees: .*a generator that is not private has none"):
        parse_certificate(honest | claims)
    put_json(path, bare | claims)
    failed = [check for check in verify(tmp_path / "run").checks if not check.passed]
    assert [check.name for check in failed] == ["plan"]
    assert "not private" in failed[0].detail
