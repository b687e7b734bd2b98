"""Full disks, other processes and folders that cannot be written: one clear sentence, exit code 2, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.cases import each_method
from tests.helpers.runs import read_lines

from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify
from understudy.runs.folder import locked

METHODS = each_method()
COMMAND = str(Path(sys.executable).with_name("understudy"))


def assert_stopped_cleanly(victim, stopped) -> None:
    assert stopped.code == 2, stopped.stderr
    assert "could not be written" in stopped.sentence() or "free space" in stopped.sentence()
    assert not (victim.run / "release").exists() or verify(victim.run).passed, "a release is there whole or not at all"
    assert not list(victim.run.rglob(".*.partial")), "what could not be finished is cleared away"
    if (victim.run / "ledger.jsonl").exists():
        executed = [event.executed for event in Ledger.open(victim.run / "ledger.jsonl").events()]
        assert sum(executed) >= victim.used()


@pytest.mark.parametrize(
    ("limit", "file"),
    [(1000, "run.json"), (3000, "frequencies.safetensors"), (15_000, "checkpoint-0000000004.safetensors")],
)
def test_a_file_that_does_not_fit_stops_the_run_until_there_is_room(attempt, limit, file):
    victim = attempt("dp-merf")
    stopped = victim.train(file_limit=limit)
    assert f"{file} could not be written" in stopped.sentence()
    assert_stopped_cleanly(victim, stopped)
    assert victim.carry_on().code == 0
    assert verify(victim.run).passed
    assert victim.used() == 1


def fill_and_carry_on(attempt, method: str, first: int, every: int) -> None:
    """The disk is full when something is to be made durable for the n-th time; then there is room again."""
    place, finished = first, False
    while not finished:
        victim = attempt(method, f"full-{place}")
        stopped = victim.train(full_at=place)
        finished = stopped.code == 0
        if not finished:
            assert_stopped_cleanly(victim, stopped)
            again = victim.carry_on()
            assert again.code == 0, f"full at {place}: {stopped.stderr}, then {again.stderr}"
        events = Ledger.open(victim.run / "ledger.jsonl").events()
        assert 0 < victim.used() <= sum(event.executed for event in events) <= sum(event.planned for event in events)
        assert verify(victim.run).passed
        place += every
    assert place > 25, "a run makes things durable at least 25 times"


@pytest.mark.parametrize(("method", "every"), each_method(15))
def test_a_disk_that_is_full_from_some_moment_on_stops_the_run_until_there_is_room(attempt, method, every):
    fill_and_carry_on(attempt, method, first=3, every=every)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("first", range(1, 6))
def test_a_disk_may_be_full_at_any_moment(attempt, method, first):
    fill_and_carry_on(attempt, method, first, every=5)


def test_a_second_process_in_the_same_folder_is_refused(attempt):
    busy = attempt("dp-merf")
    busy.run.mkdir()
    with locked(busy.run):
        refused = busy.train()
    assert refused.code == 2
    assert "another process is working in" in refused.sentence()
    assert busy.train().code == 0


def test_a_second_process_cannot_resume_or_release_a_run_that_is_being_worked_on(attempt):
    busy = attempt("dp-merf")
    assert busy.train().code == 0
    (busy.run / "release").rename(busy.home / "published")
    lines = len(read_lines(busy.run / "ledger.jsonl"))
    with locked(busy.run):
        for outcome in (busy.carry_on(), busy.launcher.run(["release", str(busy.run)], busy.files)):
            assert outcome.code == 2
            assert "another process is working in" in outcome.sentence()
    assert len(read_lines(busy.run / "ledger.jsonl")) == lines


def test_of_two_processes_that_start_at_once_one_trains_and_one_is_refused(attempt):
    first = attempt("dp-merf")
    other_files = first.home / "other"
    pids = [first.start(), first.launcher.start(first.command, other_files)]
    outcomes = [first.wait(pids[0]), first.launcher.wait(pids[1], other_files)]
    assert sorted(outcome.code for outcome in outcomes) == [0, 2]
    (refused,) = [outcome for outcome in outcomes if outcome.code == 2]
    told = ("another process is working in", "holds a run already", "holds other files already")  # by how far it was
    assert any(words in refused.sentence() for words in told)
    assert verify(first.run).passed


def test_an_output_folder_that_cannot_be_made_is_named(attempt):
    """A file lies where a folder is needed; permissions would not stop root."""
    victim = attempt("dp-merf")
    victim.run.write_text("in the way")
    stopped = victim.train()
    assert stopped.code == 2
    assert str(victim.run) in stopped.sentence()
    below = victim.launcher.run([*victim.command, "--out", str(victim.run / "below")], victim.files)
    assert below.code == 2
    assert str(victim.run / "below") in below.sentence()
    assert victim.run.read_text() == "in the way"


def test_ctrl_c_ends_the_installed_command_with_130_and_a_run_that_can_be_resumed(attempt):
    victim = attempt("dp-merf", method={"steps": 600})
    with subprocess.Popen([COMMAND, *victim.command], stderr=subprocess.PIPE, text=True) as process:
        wait_until((victim.run / "progress.jsonl").exists)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert_interrupted_and_resumable(victim, said)


def test_sigterm_is_taken_like_ctrl_c(attempt):
    victim = attempt("dp-merf", method={"steps": 600})
    pid = victim.start()
    wait_until((victim.run / "progress.jsonl").exists)
    os.kill(pid, signal.SIGTERM)
    outcome = victim.wait(pid)
    assert outcome.code == 130, outcome.stderr
    assert_interrupted_and_resumable(victim, outcome.stderr)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


def assert_interrupted_and_resumable(victim, said: str) -> None:
    assert "Traceback" not in said
    assert "continue with --resume" in said
    assert not (victim.run / "release").exists()
    reached = read_lines(victim.run / "progress.jsonl")[-1]["step"]
    assert victim.carry_on().code == 0
    steps = [line["step"] for line in read_lines(victim.run / "progress.jsonl")]
    assert steps == sorted(set(steps)), "no step is done twice after an orderly interruption"
    assert reached < steps[-1] == 600
    assert verify(victim.run).passed


def test_two_signals_end_the_command_at_once_and_the_run_can_still_be_resumed(attempt):
    victim = attempt("dp-merf", method={"steps": 300})
    pid = victim.start()
    wait_until((victim.run / "private" / "embedding.safetensors").exists)
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGINT)
    outcome = victim.wait(pid)
    assert outcome.code == 130, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert victim.carry_on().code == 0
    assert verify(victim.run).passed
    assert victim.used() == 1
