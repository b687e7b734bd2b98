"""Training from the command line: from data to a release, interrupted, resumed, released early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from understudy import progress as module

from .calling import Caller
from .conftest import TINY


def test_from_data_to_a_verified_release(call: Caller, train_arguments: list[object], tmp_path: Path):
    answer = call(*train_arguments)
    assert answer.code == 0, answer.err
    run = tmp_path / "run"
    assert str(run / "release") in answer.out
    assert call("verify", run).out.splitlines()[-1] == "epsilon 10 (delta 1e-05) verified"
    assert call("report", run, "--to", tmp_path / "report.html").code == 0
    assert "Budget spent" in (tmp_path / "report.html").read_text()
    assert "holds a run already" in call.refused(*train_arguments)
    released = call("release", run, "--to", tmp_path / "copy", "--json").json()
    assert released["release"] == str(tmp_path / "copy")
    assert (tmp_path / "copy" / "certificate.json").read_text() == (run / "release" / "certificate.json").read_text()


def test_json_is_one_object(call: Caller, train_arguments: list[object], tmp_path: Path):
    result = call(*train_arguments, "--json").json()
    assert result["release"] == str(tmp_path / "run" / "release")
    assert 0 < result["epsilon"] <= 10


def test_the_time_and_what_to_be_wary_of_are_said_before_anything_is_spent(
    call: Caller, train_arguments: list[object], tmp_path: Path
):
    answer = call(*train_arguments, "--delta", 0.1, "--json")
    assert answer.json()["method"] == "dp-merf"
    first, delta, few = answer.err.splitlines()[:3]
    assert first == "dp-merf: 8 steps, roughly a second on this CPU"
    assert delta.startswith("warning: delta: 0.1 times 40 records is 1 or more")
    assert few.startswith("warning: records: 40 are declared; below 500")


def test_what_takes_more_than_an_hour_on_a_cpu_needs_a_yes(call: Caller, train_arguments: list[object], tmp_path: Path):
    """Tests have no terminal: nobody can be asked, so the run is refused before its folder is made."""
    long = [*train_arguments, "--set", "method.steps=1000000", "--device", "cpu"]
    sentence = call.refused(*long)
    assert "dp-merf would take about 87 minutes on this CPU; pass --yes" in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_figure_that_depends_on_the_data_is_named_by_its_place_only(call: Caller, tmp_path: Path):
    random = np.random.default_rng(0)
    np.savez(tmp_path / "records.npz", x=random.integers(0, 256, (30, 8, 8), dtype=np.uint8))
    words = ["train", "bdp-gan", "--data", tmp_path / "records.npz", "--records", 30, "--epsilon", 10, "--delta", 1e-5]
    tiny = ["privacy.steps=2", "privacy.batch=4", "privacy.embedding_share=0", "method.width=2", "method.latent=2"]
    words += [word for text in (*tiny, "method.bayesian.orders=[1,2]") for word in ("--set", text)]
    told = call(*words, "--out", tmp_path / "run").out
    kept = tmp_path / "run" / "private" / "data-dependent.json"
    assert f"{kept} (not private: do not publish)" in told
    assert "epsilon_mu" not in told
    published = call(*words, "--set", "method.bayesian.publish=true", "--out", tmp_path / "open", "--json").json()
    assert published["data_dependent"][0]["warning"]
    assert published["data_dependent_private"].endswith("data-dependent.json")


def test_a_seeded_run_is_stamped(call: Caller, train_arguments: list[object], tmp_path: Path):
    answer = call(*train_arguments, "--seed", 3)
    assert answer.code == 0
    assert "who knows the seed can remove the noise" in answer.out
    assert "randomness" in call.refused("verify", tmp_path / "run", code=1)
    assert "--allow-seeded" in call.refused("release", tmp_path / "run", "--to", tmp_path / "copy")
    assert call("release", tmp_path / "run", "--to", tmp_path / "copy", "--allow-seeded").code == 0
    assert "randomness" in call.refused("verify", tmp_path / "copy", code=1)


def test_what_was_declared_at_the_start_need_not_be_declared_again(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    random = np.random.default_rng(0)
    np.savez(tmp_path / "floats.npz", x=random.random((30, 8, 8)), y=random.integers(0, 3, 30))
    declared = ["--records", 30, "--classes", 3, "--declare", "value_range=0,1"]
    budget = ["--epsilon", 10, "--delta", "1e-5", *(word for text in TINY for word in ("--set", text))]

    class Stop(module.StopSignal):
        def __call__(self) -> bool:
            return (tmp_path / "run" / "progress.jsonl").exists()

    start = ["train", "dp-merf", "--data", tmp_path / "floats.npz", "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr("understudy.progress.StopSignal", Stop)
        assert call(*start, *declared, *budget).code == 130
    answer = call(*start, "--resume")
    assert answer.code == 0, answer.err
    assert call("verify", tmp_path / "run").code == 0


@pytest.fixture
def interrupted(call: Caller, train_arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was asked to stop at its first report."""

    class Stop(module.StopSignal):
        def __call__(self) -> bool:
            return (tmp_path / "run" / "progress.jsonl").exists()

    monkeypatch.setattr("understudy.progress.StopSignal", Stop)
    answer = call(*train_arguments)
    monkeypatch.undo()
    assert answer.code == 130, answer
    assert "continue with --resume" in answer.err
    return tmp_path / "run"


def test_an_interrupted_run_is_resumed_with_the_data_alone(
    call: Caller, interrupted: Path, archive: Path, tmp_path: Path
):
    resume = ["train", "dp-merf", "--data", archive, "--out", interrupted, "--resume"]
    assert "epsilon: 3.0 was asked for" in call.refused(*resume, "--epsilon", 3)
    assert "keeps its config" in call.refused(*resume, "--set", "method.steps=9")
    assert "method" in call.refused("train", "gs-wgan", *resume[2:])
    assert call(*resume, "--epsilon", 10).code == 0
    assert call("verify", interrupted).code == 0
    certificate = json.loads((interrupted / "release" / "certificate.json").read_text())
    assert certificate["events"][0]["executed"] == 1


def test_a_run_is_not_resumed_on_other_data(call: Caller, interrupted: Path):
    arguments = ["train", "dp-merf", "--data", "digits", "--out", interrupted, "--resume"]
    assert call(*arguments).code == 2


def test_an_interrupted_run_is_released_early(call: Caller, interrupted: Path, tmp_path: Path):
    assert "not released anything yet" in call.refused("verify", interrupted)
    answer = call("release", interrupted)
    assert answer.code == 0, answer.err
    assert "released early after step" in answer.out
    assert call("verify", interrupted).code == 0


def test_nothing_to_resume(call: Caller, archive: Path, tmp_path: Path):
    said = call.refused("train", "dp-merf", "--data", archive, "--out", tmp_path / "run", "--resume")
    assert "run: there is none in" in said


def test_signals_leave_a_resumable_run(train_arguments: list[object], tmp_path: Path):
    """A real process and a real signal: exit code 130, and the spending is on record."""
    long = [*(str(part) for part in train_arguments), "--set", "method.steps=1000000", "--yes"]
    command = [sys.executable, "-c", "from understudy.cli.main import main; main()", *long]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    try:
        ledger = tmp_path / "run" / "ledger.jsonl"
        deadline = time.monotonic() + 120
        while not (ledger.exists() and '"reserve"' in ledger.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=120)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "continue with --resume" in err
    assert "Traceback" not in err
