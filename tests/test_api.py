"""The way from data to release: what a run folder says, what a certificate carries, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from understudy.api import TrainOptions, release_early, resume, train
from understudy.data.dataset import ImageDataset
from understudy.errors import AbortedRun, InputError, InterruptedRun, UnderstudyError
from understudy.privacy.ledger import Account
from understudy.privacy.mechanisms import GaussianMechanism
from understudy.privacy.randomness.streams import SEEDED
from understudy.release.release import NOT_COVERED, load
from understudy.release.verify import verify
from understudy.runs.description import read_description
from understudy.runs.folder import RunFolder
from understudy.runs.loop import Checkpoints
from understudy.runs.run import Run

from .helpers.cases import BUDGET, case_of
from .helpers.data import tiny_data
from .helpers.runs import interrupt, read_lines, tiny_train

METHOD = "dp-merf"


def test_a_run_folder_describes_all_that_is_needed_to_continue_it(tmp_path):
    tiny_train(METHOD, tiny_data(), tmp_path / "run", command="understudy train ...")
    description = read_description(RunFolder(tmp_path / "run"))
    assert (description.method, description.budget, description.domain) == (METHOD, BUDGET, tiny_data().domain)
    assert description.config["method"]["steps"] == 4
    assert (description.seed, description.runs_on_this_data, description.command) == (None, 1, "understudy train ...")


def test_the_fingerprint_of_the_data_is_private(tmp_path):
    """It would confirm a guess of all the records, so it is in no file outside the private folder."""
    tiny_train(METHOD, tiny_data(), tmp_path / "run")
    holders = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and _holds_fingerprint(path)]
    assert holders == [tmp_path / "run" / "private" / "data.sha256"]


def _holds_fingerprint(path: Path) -> bool:
    return tiny_data().fingerprint().encode() in path.read_bytes()


def test_the_whole_plan_is_on_record_before_the_data_are_read(tmp_path, monkeypatch):
    on_record = []

    def look(self, count, block=1):
        on_record.append([line["kind"] for line in read_lines(tmp_path / "run" / "ledger.jsonl")])
        return spend(self, count, block)

    spend = Account.spend
    monkeypatch.setattr(Account, "spend", look)
    tiny_train("gs-wgan", tiny_data(), tmp_path / "run")
    assert on_record[0] == ["plan", "plan"]


def test_the_release_in_the_folder_is_the_one_that_is_returned(tmp_path):
    release = tiny_train(METHOD, tiny_data(), tmp_path / "run")
    assert load(tmp_path / "run" / "release").certificate == release.certificate


def test_runtime_settings_stay_out_of_the_release(tmp_path):
    release = tiny_train(METHOD, tiny_data(), tmp_path / "run")
    config = json.loads((tmp_path / "run" / "release" / "config.json").read_text())
    assert set(config["method_config"]) == set(release.method_config) == {"privacy", "method", "teacher"}


def test_a_certificate_says_what_it_rests_on_and_what_it_does_not_cover(tmp_path):
    certificate = tiny_train(METHOD, tiny_data(), tmp_path / "run").certificate
    assert certificate.assumed_public == tuple(tiny_data().domain.assumed_public())
    assert certificate.not_covered == NOT_COVERED
    for topic in ("side channels", "floating-point", "hyper-parameters", "evaluation figures"):
        assert any(topic in statement for statement in NOT_COVERED)
    assert certificate.software.keys() >= {"understudy", "torch", "dp-accounting"}
    assert certificate.created.startswith("20")


def test_a_certificate_states_how_many_runs_touched_the_data(tmp_path):
    counts = [
        tiny_train(METHOD, tiny_data(), tmp_path / str(number)).certificate.runs_on_this_data for number in range(3)
    ]
    assert counts == [1, 2, 3]
    assert tiny_train(METHOD, tiny_data(nominal=41), tmp_path / "other").certificate.runs_on_this_data == 1


def test_resuming_is_no_further_run(tmp_path):
    interrupt(METHOD, tiny_data(), tmp_path / "run")
    assert resume(tiny_data(), tmp_path / "run").certificate.runs_on_this_data == 1


def test_a_run_that_is_refused_for_its_budget_or_config_is_no_run(tmp_path):
    for config in ({"privacy": {"noise_multiplier": 0.1}}, {"method": {"no_such_key": 1}}):
        with pytest.raises(UnderstudyError):
            train(METHOD, tiny_data(), BUDGET, tmp_path / "run", TrainOptions(config=config))
    assert not (tmp_path / "run").exists()
    assert tiny_train(METHOD, tiny_data(), tmp_path / "run").certificate.runs_on_this_data == 1


def test_a_run_that_breaks_off_releases_nothing_now_or_later_and_counts(tmp_path, monkeypatch):
    """A stop because values were not finite depends on private data, so it must not end in a release."""

    checks = []

    def broken(self):
        checks.append(self)
        if len(checks) == 4:
            raise AbortedRun("training: more than 1% of the private rows were not finite")

    with monkeypatch.context() as patch:
        patch.setattr(GaussianMechanism, "check_finite", broken)
        with pytest.raises(AbortedRun, match="not finite"):
            tiny_train("gs-wgan", tiny_data(), tmp_path / "broken", runtime={"checkpoint_seconds": 1e-9})
    assert list((tmp_path / "broken" / "private").glob("checkpoint-*")), "there is something that might be released"
    for action in (lambda: resume(tiny_data(), tmp_path / "broken"), lambda: release_early(tmp_path / "broken")):
        with pytest.raises(AbortedRun, match="it was aborted, so nothing of it is released"):
            action()
    assert not (tmp_path / "broken" / "release").exists()
    assert tiny_train(METHOD, tiny_data(), tmp_path / "next").certificate.runs_on_this_data == 2


def test_a_folder_that_holds_a_run_is_not_trained_in_again(tmp_path):
    tiny_train(METHOD, tiny_data(), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="holds a run already; continue it with --resume or choose another folder"):
        tiny_train(METHOD, tiny_data(), tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_ledger_without_a_description_is_not_overwritten(tmp_path):
    tiny_train(METHOD, tiny_data(), tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"ledger: .* exists already|holds other files already"):
        tiny_train(METHOD, tiny_data(), tmp_path / "run")
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


def test_there_is_nothing_to_resume_or_release_in_a_folder_without_a_run(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="run: there is none in "):
            resume(tiny_data(), folder)
        with pytest.raises(InputError, match="run: there is none in "):
            release_early(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_checkpoint_has_nothing_to_release(tmp_path):
    interrupt(METHOD, tiny_data(), tmp_path / "run")
    for path in (tmp_path / "run" / "private").glob("checkpoint-*"):
        path.unlink()
    with pytest.raises(InputError, match="has no checkpoint yet, so there is no generator"):
        release_early(tmp_path / "run")


def test_a_stop_that_comes_with_the_last_step_still_leaves_a_run_to_be_resumed(tmp_path):
    reports = []
    with pytest.raises(InterruptedRun, match="interrupted after step 4 of 4"):
        tiny_train(
            METHOD, tiny_data(), tmp_path / "run", listener=reports.append, stop_requested=lambda: len(reports) == 4
        )
    release = resume(tiny_data(), tmp_path / "run")
    assert release.certificate.stopped_because == "finished as planned"
    assert len(read_lines(tmp_path / "run" / "progress.jsonl")) == 4


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (METHOD, "finished as planned"),  # the one access is found again, and all steps are made
        *((method, "finished without 2 of its steps") for method in ("datalens", "dp-merf-ae", "dp-sinkhorn")),
        *((method, "finished without 2 of its steps") for method in ("dpgan", "gs-wgan")),
    ],
)
def test_steps_that_were_lost_with_a_killed_process_are_stated_in_the_certificate(
    tmp_path, monkeypatch, method, reason
):
    report = Run.report

    def die_at_the_second_step(self, step, **values):
        report(self, step, **values)
        if step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "report", die_at_the_second_step)
        with pytest.raises(KeyboardInterrupt):
            tiny_train(method, tiny_data(), tmp_path / "run")
    for _ in range(2):  # and it says so again when it is resumed at its end
        certificate = resume(tiny_data(), tmp_path / "run").certificate
        assert certificate.stopped_because.startswith(reason)
        assert all(event.executed <= event.planned == event.count for event in certificate.events)


def test_a_seed_repeats_the_noise_which_is_why_such_a_run_is_not_for_release(tmp_path):
    noisy = []
    for number, seed in enumerate((5, 5, 6, None, None)):
        tiny_train(METHOD, tiny_data(), tmp_path / str(number), seed=seed)
        noisy.append((tmp_path / str(number) / "private" / "embedding.safetensors").read_bytes())
    assert noisy[0] == noisy[1]
    assert len(set(noisy)) == 4


def test_a_seeded_run_stays_marked_when_it_is_resumed_or_released_early(tmp_path):
    interrupt(METHOD, tiny_data(), tmp_path / "run", seed=5)
    for release in (release_early(tmp_path / "run"), resume(tiny_data(), tmp_path / "run")):
        assert release.certificate.randomness == "seeded: not for release"
        assert not verify(tmp_path / "run").passed


def test_what_becomes_of_the_description_during_a_run_does_not_change_the_certificate(tmp_path):
    def edit(progress):
        path = tmp_path / "run" / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "seed": None, "runs_on_this_data": 99}))

    release = tiny_train("dp-merf", tiny_data(), tmp_path / "run", seed=1, listener=edit)
    assert release.certificate.randomness == SEEDED
    assert release.certificate.runs_on_this_data == 1


def test_an_unknown_method_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"method: 'wgan' is unknown; choose one of .*dp-merf, .*gs-wgan"):
        train("wgan", tiny_data(), BUDGET, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_checkpoints_of_a_finished_run_hold_the_released_generator(tmp_path):
    tiny_train(METHOD, tiny_data(), tmp_path / "run")
    early = release_early(tmp_path / "run")
    assert early.certificate.generator_sha256 == load(tmp_path / "run").certificate.generator_sha256
    assert Checkpoints(tmp_path / "run" / "private").load_latest().step == case_of(METHOD).method["steps"]


def test_data_with_clients_are_told_that_records_are_protected(tmp_path):
    data = tiny_data()
    domain = data.domain.model_copy(update={"nominal_clients": 4})
    clients = ImageDataset(data.name, domain, data.images, data.labels, np.arange(len(data)) % 4)
    release = tiny_train(METHOD, clients, tmp_path / "run")
    assert any("not all records of a client" in remark for remark in release.certificate.remarks)
