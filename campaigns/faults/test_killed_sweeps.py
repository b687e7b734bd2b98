"""Sweeps that are killed: finished points are kept, the half-run point goes on, and nothing is paid for twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify

from .conftest import Launcher

STEPS = (3, 4)
SETTINGS = ["method.frequencies=16", "method.batch=12", "method.width=4", "method.latent=2"]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    random = np.random.default_rng(0)
    images = {f"x_{split}": random.integers(0, 256, (600, 8, 8), dtype=np.uint8) for split in ("train", "test")}
    np.savez(tmp_path / "data.npz", **images, y_train=np.arange(600) % 3, y_test=np.arange(600) % 3)
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return [
        *("curve", "dp-merf", "--data", str(tmp_path / "data.npz"), "--records", "600", "--classes", "3"),
        *("--epsilon", "10", "--delta", "1e-5", "--set", "privacy.noise_multiplier=2", *settings),
        *("--over", f"method.steps={','.join(str(steps) for steps in STEPS)}"),
        *("--metrics", "logistic_regression", "--samples", "200", "--out", str(tmp_path / "sweep")),
    ]


def assert_complete(folder: Path) -> None:
    curve = json.loads((folder / "curve.json").read_text())
    assert [point["values"]["method.steps"] for point in curve["points"]] == list(STEPS)
    assert curve["totals"][0]["runs"] == len(STEPS)
    for point in curve["points"]:
        place = folder / "points" / point["folder"]
        assert verify(place).passed
        (event,) = Ledger.open(place / "ledger.jsonl").events()
        assert event.executed == event.count == 1, "the noisy sum is drawn once, whatever happened"
    assert (folder / "curve.html").read_text().rstrip().endswith("</html>")


@pytest.mark.slow
def test_a_sweep_survives_death_at_places_all_along_its_way(launcher: Launcher, command: list[str], tmp_path: Path):
    """Dies again and again, each time a little later in its new life, until it gets to the end."""
    deaths, place, finished = 0, 5, {}
    while True:
        outcome = launcher.run(command, tmp_path / "files", die_at=place)
        for path, content in finished.items():
            assert path.read_bytes() == content, "a finished point is never touched again"
        if outcome.code == 0:
            break
        assert outcome.code == -signal.SIGKILL, outcome.stderr
        deaths, place = deaths + 1, place + 6
        finished |= {path: path.read_bytes() for path in tmp_path.glob("sweep/points/*/release/certificate.json")}
        assert deaths < 40
    assert deaths >= 4
    assert len(finished) >= 1
    assert_complete(tmp_path / "sweep")


@pytest.mark.slow
def test_a_point_that_was_killed_half_way_is_resumed_and_not_started_again(
    launcher: Launcher, command: list[str], tmp_path: Path
):
    long = [part.replace("method.steps=3,4", "method.steps=400") for part in command]
    long += ["--set", "runtime.checkpoint_seconds=0.001"]
    pid = launcher.start(long, tmp_path / "files")
    private = tmp_path / "sweep" / "points" / "method.steps=400" / "private"
    deadline = time.monotonic() + 60
    while len(list(private.glob("checkpoint-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    assert launcher.wait(pid, tmp_path / "files").code == -signal.SIGKILL
    (newest,) = sorted(private.glob("checkpoint-*"))[-1:]
    reached = int(newest.stem.removeprefix("checkpoint-"))
    assert 0 < reached < 400
    (private.parent / "progress.jsonl").unlink(missing_ok=True)
    outcome = launcher.run(long, tmp_path / "files")
    assert outcome.code == 0, outcome.stderr
    lines = (private.parent / "progress.jsonl").read_text().splitlines()
    assert min(json.loads(line)["step"] for line in lines) > reached
    assert json.loads((private.parent / "run.json").read_text())["runs_on_this_data"] >= 1


def test_two_processes_do_not_work_on_one_sweep(launcher: Launcher, command: list[str], tmp_path: Path):
    long = [part.replace("method.steps=3,4", "method.steps=5000") for part in command]
    pid = launcher.start(long, tmp_path / "files")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("sweep/points/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    second = launcher.run(long, tmp_path / "second")
    os.kill(pid, signal.SIGKILL)
    launcher.wait(pid, tmp_path / "files")
    assert second.code == 2
    assert "another process is working" in second.sentence()
