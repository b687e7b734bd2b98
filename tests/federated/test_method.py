"""``gs-wgan-federated`` as a method: its plan, its limits, its claims by viewer, and what verify makes of them."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from understudy.api import TrainOptions, resume, train
from understudy.data.domain import Domain
from understudy.errors import BudgetError, InputError, InterruptedRun
from understudy.federated.fleet import SimulatedFleet
from understudy.federated.gs_wgan import FederatedConfig, GsWganFederated
from understudy.files import file_sha256
from understudy.privacy import accounting, viewers
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import round_up
from understudy.privacy.ledger import Ledger
from understudy.privacy.meaning import by_viewer
from understudy.release.release import load
from understudy.release.verify import verify
from understudy.report.report import write_report

from ..helpers.runs import read_lines
from ..release.building import put_json
from .helpers import BUDGET, federated_data, tiny_config, tiny_plan

FEMNIST = Domain(shape=(1, 28, 28), classes=36, nominal_records=40_000, nominal_clients=359)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        train("gs-wgan-federated", federated_data(), BUDGET, home / "run", TrainOptions(config=tiny_config()))
    return home / "run"


def test_a_plan_routes_over_all_enrolled_clients_and_leaves_a_part_of_delta_for_the_limits():
    config = FederatedConfig.model_validate({"privacy": {"queries": 960_000}})
    plan = GsWganFederated().plan(config, FEMNIST, Budget(10, 1.15e-3))
    event, embedding = plan.events
    assert (event.unit, event.sampling.subsets, event.sensitivity) == ("client", 359, "2C")
    assert 955_000 <= event.count <= 960_000
    assert 1.45 < event.noise_multiplier < 1.6  # about 1.51 for epsilon 10, a little more beside an embedding
    assert (embedding.unit, embedding.sensitivity, embedding.noise_parts) == ("client", "C", 359)
    assert 9.9 < plan.epsilon <= 10
    assert any("times 359 clients is more than 0.01" in remark for remark in plan.remarks)
    claims = GsWganFederated().claims(plan.config, plan.events, plan.budget)
    assert [claim.viewer for claim in claims] == ["public", "server", "client"]
    assert claims[1].epsilon == pytest.approx(992, abs=1), "as docs/federated.md says"
    limits = plan.config.privacy
    assert limits.slots < 80
    assert limits.answers_per_client < 1.3 * event.count / 359


def test_data_without_clients_are_refused():
    domain = Domain(shape=(1, 8, 8), classes=3, nominal_records=40)
    with pytest.raises(InputError, match="declare nominal_clients"):
        GsWganFederated().plan(FederatedConfig(), domain, BUDGET)


def test_limits_that_would_cut_off_too_much_are_refused():
    with pytest.raises(BudgetError, match="cut off answers too often"):
        tiny_plan(privacy={"slots": 4})


def test_a_plan_above_the_budget_is_refused_before_anything_is_made(tmp_path):
    options = TrainOptions(config=tiny_config(privacy={"noise_multiplier": 0.1, "queries": 48, "slots": 12}))
    with pytest.raises(BudgetError, match="only 10 is allowed"):
        train("gs-wgan-federated", federated_data(), BUDGET, tmp_path / "run", options)
    assert not (tmp_path / "run").exists()


def test_an_embedding_whose_noise_the_config_leaves_open_is_not_verified(finished, tmp_path):
    """It would be decided by what is claimed, so that every claim would have a plan of its own."""
    copied = shutil.copytree(finished / "release", tmp_path / "copied")
    config = json.loads((copied / "config.json").read_text())
    config["method_config"]["privacy"]["embedding_noise_multiplier"] = None
    put_json(copied / "config.json", config)
    certificate = json.loads((copied / "certificate.json").read_text())
    certificate["config_sha256"] = file_sha256(copied / "config.json")
    budget = Budget(certificate["guarantees"][0]["epsilon"], certificate["guarantees"][0]["delta"])
    domain = Domain.model_validate(config["domain"])
    plan = GsWganFederated().plan(FederatedConfig.model_validate(config["method_config"]), domain, budget)
    certificate["events"] = [event.model_dump(exclude_none=True) for event in plan.events]
    put_json(copied / "certificate.json", certificate)
    (found,) = [check for check in verify(copied).checks if check.name == "plan"]
    assert "embedding_noise_multiplier open" in found.detail
    assert found.missing


def test_its_certificate_has_a_guarantee_for_each_viewer(finished):
    certificate = load(finished).certificate
    assert certificate.events == Ledger.open(finished / "ledger.jsonl").events()
    claims = {claim.viewer: claim for claim in certificate.guarantees}
    assert [claim.viewer for claim in certificate.guarantees] == ["public", "server", "client"]
    assert {claim.unit for claim in claims.values()} == {"client"}
    assert [claims[viewer].adjacency for viewer in ("public", "server", "client")] == [
        "add-remove", "replace-one", "add-remove",
    ]  # fmt: skip
    assert claims["public"].epsilon < claims["client"].epsilon
    assert claims["client"].coalition == 1
    for claim in claims.values():
        seen = viewers.events_seen(certificate.events, claim)
        for accountant in ("pld", "fourier"):
            assert accounting.epsilon(seen, claim.accounted_delta, accountant) <= claim.epsilon


def test_its_release_verifies_every_guarantee_with_both_accountants(finished):
    verification = verify(finished)
    assert verification.passed
    names = {check.name for check in verification.checks}
    for number in (1, 2, 3):
        assert {f"guarantee {number}: {what}" for what in ("pld", "fourier", "limits", "kind", "delta")} <= names


@pytest.mark.parametrize(
    ("viewer", "change", "complaint"),
    [
        (0, {"epsilon": 0.5}, "guarantee 1: pld"),
        (1, {"epsilon": 0.5}, "guarantee 2: fourier"),
        (2, {"epsilon": 0.5}, "guarantee 3: pld"),
        (
            1,
            {"limits": {"clients": 3, "rounds": 4, "queries": 12, "slots": 12, "answers": 20}, "epsilon": 2},
            "viewers",
        ),
        (1, {"adjacency": "add-remove"}, "guarantee 2: kind"),
        (2, {"coalition": 3}, "guarantee 3: kind"),
        (0, {"delta_parts": None}, "guarantee 1: limits"),
        (0, {"limits": None}, "viewers"),
        (2, {"coalition": 2, "epsilon": 50}, "viewers"),
        (0, {"limits": {"clients": 3, "rounds": 4, "queries": 12, "slots": 5, "answers": 40}}, "guarantee 1: limits"),
        (0, {"limits": {"clients": 4, "rounds": 4, "queries": 12, "slots": 12, "answers": 40}}, "guarantee 1: limits"),
        (0, {"limits": {"clients": 3, "rounds": 3, "queries": 12, "slots": 12, "answers": 36}}, "guarantee 1: limits"),
        (0, {"unit": "record"}, "guarantee 1: kind"),
    ],
)
def test_an_altered_claim_does_not_verify(viewer, change, complaint, finished, tmp_path):
    import shutil

    shutil.copytree(finished / "release", tmp_path / "release")
    path = tmp_path / "release" / "certificate.json"
    certificate = json.loads(path.read_text())
    certificate["guarantees"][viewer].update(change)
    certificate["guarantees"][viewer] = {
        key: value for key, value in certificate["guarantees"][viewer].items() if value is not None
    }
    put_json(path, certificate)
    failed = [check.name for check in verify(tmp_path / "release").checks if not check.passed]
    assert complaint in failed


@pytest.mark.parametrize(
    ("kept", "verdict", "complaint"),
    [
        ([0], "consistent", "no guarantee is stated against server, replace-one"),
        ([0, 1], "consistent", "no guarantee is stated against client (1 of them united), add-remove"),
        ([0, 2], "consistent", "no guarantee is stated against server, replace-one"),
        ([1, 0, 2], "refused", "the first guarantee is one against server, replace-one"),
    ],
    ids=str,
)
def test_a_guarantee_that_was_left_out_or_put_first_is_missed(kept, verdict, complaint, finished, tmp_path):
    """Against the public epsilon is small; the one against the server is the figure that somebody might hide."""
    import shutil

    shutil.copytree(finished / "release", tmp_path / "release")
    path = tmp_path / "release" / "certificate.json"
    certificate = json.loads(path.read_text())
    certificate["guarantees"] = [certificate["guarantees"][place] for place in kept]
    put_json(path, certificate)
    result = verify(tmp_path / "release")
    assert result.verdict == verdict
    assert complaint in result.reason.detail


def test_it_reports_public_values_only(finished):
    allowed = {"step", "contrast", "rounds", "answers", "bytes_per_step", "epsilon_spent"}
    lines = read_lines(finished / "progress.jsonl")
    assert [line["rounds"] for line in lines] == [1, 2, 3, 4]
    assert all(set(line) == allowed for line in lines)


def test_its_model_card_speaks_of_clients(finished):
    card = (finished / "release" / "README.md").read_text()
    assert "one client with all its images" in card
    assert "Against the public, that is whoever sees the release: epsilon" in card
    assert "Against the server that runs the training and sees every answer: epsilon" in card
    assert "Against clients that took part and share what they saw (a coalition of 1): epsilon" in card


def test_certificate_and_report_name_every_viewer_with_its_figure(finished, tmp_path):
    certificate = load(finished).certificate
    write_report([finished], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert len(by_viewer(certificate.guarantees)) == 3
    for line, guarantee in zip(by_viewer(certificate.guarantees), certificate.guarantees, strict=True):
        assert line in certificate.remarks
        assert line in page
        assert f"epsilon {round_up(guarantee.epsilon)}" in line
        assert guarantee.adjacency in line
    assert any("all three guarantees" in item for item in certificate.not_covered)


def test_an_interrupted_simulation_can_be_resumed(tmp_path):
    data, reports = federated_data(), []
    options = TrainOptions(config=tiny_config(), listener=reports.append, stop_requested=lambda: len(reports) > 1)
    with pytest.raises(InterruptedRun):
        train("gs-wgan-federated", data, BUDGET, tmp_path / "run", options)
    resume(data, tmp_path / "run")
    assert verify(tmp_path / "run").passed
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").events()[0].executed == 48


def test_the_limit_of_a_simulated_client_counts_what_a_crash_lost(tmp_path, monkeypatch):
    """Killed in its third round without a checkpoint: the resumed run knows who was asked in the lost rounds."""
    data, answers, rounds = federated_data(), SimulatedFleet.answers, []

    def crash(self, asked, answering):
        rounds.append(asked.routed.client_private)
        found = answers(self, asked, answering)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(SimulatedFleet, "answers", crash)
    with pytest.raises(KeyboardInterrupt):
        train("gs-wgan-federated", data, BUDGET, tmp_path / "run", TrainOptions(config=tiny_config()))
    resume(data, tmp_path / "run")
    assert len(rounds) == 4, "three rounds are spent, one is left"
    kept = json.loads((tmp_path / "run" / "private" / "routing.json").read_text())
    asked = np.bincount(np.concatenate(rounds), minlength=3)
    assert (np.array(kept["before"]) + np.array(kept["asked"])).tolist() == asked.tolist()
    assert kept["round"] == 3


@pytest.mark.parametrize("kind", ["no record", "one client", "unlabelled"])
def test_data_that_neighbour_ordinary_data_are_trained_on_like_any_other(kind, tmp_path):
    data = federated_data(labelled=kind != "unlabelled")
    if kind != "unlabelled":
        data = data.subset([] if kind == "no record" else np.flatnonzero(data.client_ids == 1))
    train("gs-wgan-federated", data, BUDGET, tmp_path / "run", TrainOptions(config=tiny_config()))
    assert verify(tmp_path / "run").passed
