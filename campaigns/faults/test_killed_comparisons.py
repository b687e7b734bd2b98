"""Comparisons that are killed: finished methods are kept, the half-run one goes on, nothing is paid for twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.runs import read_lines

from understudy.errors import InputError
from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify
from understudy.runs.folder import locked

from .conftest import Launcher

METHODS = ("dp-merf", "datalens")
SETTINGS = [
    *("dp-merf:method.frequencies=16", "dp-merf:method.batch=12", "dp-merf:method.width=4", "dp-merf:method.latent=2"),
    *("privacy.noise_multiplier=10", "dp-merf:method.steps=4", "datalens:method.teachers.width=8"),
    *("datalens:privacy.teachers=4", "datalens:privacy.queries=12", "datalens:method.queries_per_step=3"),
    *("datalens:method.teachers.warm_iterations=1", "datalens:method.generator.width=2"),
]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    random = np.random.default_rng(0)
    images = {f"x_{split}": random.integers(0, 256, (600, 8, 8), dtype=np.uint8) for split in ("train", "test")}
    np.savez(tmp_path / "data.npz", **images, y_train=np.arange(600) % 3, y_test=np.arange(600) % 3)
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return [
        *("compare", "--data", str(tmp_path / "data.npz"), "--records", "600", "--classes", "3", "--device", "cpu"),
        *("--epsilon", "10", "--methods", ",".join(METHODS), *settings, "--jobs", "1"),
        *("--metrics", "logistic_regression", "--samples", "200", "--out", str(tmp_path / "all")),
    ]


def assert_complete(folder: Path) -> None:
    result = json.loads((folder / "compare.json").read_text())
    assert [row["method"] for row in result["rows"]] == list(METHODS)
    assert result["totals"][0]["runs"] == len(METHODS)
    for name in METHODS:
        assert verify(folder / "runs" / name).passed
        for event in Ledger.open(folder / "runs" / name / "ledger.jsonl").events():
            assert event.executed <= event.planned, "nothing is paid for twice"
    assert (folder / "compare.html").read_text().rstrip().endswith("</html>")


@pytest.mark.slow
def test_a_comparison_survives_death_at_places_all_along_its_way(
    launcher: Launcher, command: list[str], tmp_path: Path
):
    deaths, place, finished = 0, 7, {}
    while True:
        outcome = launcher.run(command, tmp_path / "files", die_at=place)
        for path, content in finished.items():
            assert path.read_bytes() == content, "a finished method is never touched again"
        if outcome.code == 0:
            break
        assert outcome.code == -signal.SIGKILL, outcome.stderr
        deaths, place = deaths + 1, place + 14
        finished |= {path: path.read_bytes() for path in tmp_path.glob("all/runs/*/release/certificate.json")}
        assert deaths < 20
    assert deaths >= 2
    assert_complete(tmp_path / "all")


@pytest.mark.slow
def test_a_method_that_was_killed_half_way_is_resumed_and_not_started_again(
    launcher: Launcher, command: list[str], tmp_path: Path
):
    long = [part.replace("dp-merf:method.steps=4", "dp-merf:method.steps=400") for part in command]
    long += ["--set", "runtime.checkpoint_seconds=0.001"]
    pid = launcher.start(long, tmp_path / "files")
    folder = tmp_path / "all" / "runs" / "dp-merf"
    deadline = time.monotonic() + 120
    while len(list(folder.glob("private/checkpoint-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    assert launcher.wait(pid, tmp_path / "files").code == -signal.SIGKILL
    (newest,) = sorted(folder.glob("private/checkpoint-*"))[-1:]
    reached = int(newest.stem.removeprefix("checkpoint-"))
    assert 0 < reached < 400
    (folder / "progress.jsonl").unlink(missing_ok=True)
    outcome = launcher.run(long, tmp_path / "files")
    assert outcome.code == 0, outcome.stderr
    assert min(line["step"] for line in read_lines(folder / "progress.jsonl")) > reached
    assert_complete(tmp_path / "all")


@pytest.mark.slow
def test_methods_in_processes_of_their_own_end_with_the_one_that_started_them(
    launcher: Launcher, command: list[str], tmp_path: Path
):
    long = [part.replace("dp-merf:method.steps=4", "dp-merf:method.steps=1000000") for part in command]
    long[long.index("--jobs") + 1] = "2"
    pid = launcher.start(long, tmp_path / "files")
    run = tmp_path / "all" / "runs" / "dp-merf"
    deadline = time.monotonic() + 120
    while not (run / "progress.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (run / "progress.jsonl").exists()
    with pytest.raises(InputError, match="another process is working"), locked(run):
        pass
    os.kill(pid, signal.SIGKILL)
    assert launcher.wait(pid, tmp_path / "files").code == -signal.SIGKILL
    free, deadline = False, time.monotonic() + 60
    while not free and time.monotonic() < deadline:
        try:
            with locked(run):
                free = True
        except InputError:
            time.sleep(0.05)
    assert free, "the process of the method lives on"
