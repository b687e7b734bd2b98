"""The faults of the campaign: what goes wrong, in which phase, and what is tried afterwards.

A fault's action gets a trial and returns what happened in a few words, or None where the fault came too late to strike.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import mounting
from .conftest import Outcome
from .trial import Trial, Violation

Action = Callable[[Trial], str | None]
FRESH, INTERRUPTED, FINISHED = "fresh", "interrupted", "finished"


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, the phase it strikes in, the method, and what a trial of it starts from."""

    kind: str
    phase: str
    method: str
    start: str
    action: Action


def faults_of(method: str, seconds: float, mounts: bool) -> Iterator[Fault]:
    """All faults for a method whose training takes ``seconds``; with ``mounts`` also those of real disks."""
    yield from _of_processes(method, seconds)
    yield from _of_disks(method)
    yield from _of_damage(method)
    yield from _of_saving(method)
    if mounts:
        yield from _of_mounted_disks(method)


def _of_processes(method: str, seconds: float) -> Iterator[Fault]:
    for place in (1, 2, 5, 9, 14, 19, 24, 29, 34, 39, 44, 49, 55, 61):
        yield Fault("kill -9 at a durable write", "train", method, FRESH, _train(die_at=place))
    for place in (1, 4, 8, 13, 19, 26, 33, 40):
        yield Fault("kill -9 at a durable write", "resume", method, INTERRUPTED, _resume(die_at=place))
    for share in (0.15, 0.35, 0.55, 0.75, 0.95):
        yield Fault("kill -9 at a moment", "train", method, FRESH, _signalled(signal.SIGKILL, share * seconds))
        yield Fault("SIGTERM at a moment", "train", method, FRESH, _signalled(signal.SIGTERM, share * seconds))
    for share in (0.1, 0.3, 0.6):
        yield Fault("SIGTERM at a moment", "resume", method, INTERRUPTED, _signalled(signal.SIGTERM, share * seconds))
    for number in (1, 2, 3, 4, 6, 9):
        yield Fault("out of memory in a step", "train", method, FRESH, _train(memory_at=number))
    for number in (1, 2, 3):
        yield Fault("out of memory in a step", "resume", method, INTERRUPTED, _resume(memory_at=number))
    for number in (1, 5, 20):
        yield Fault("clock ten years back", "train", method, FRESH, _train(clock_back_at=number))
        yield Fault(
            "clock ten years back", "resume", method, INTERRUPTED, _resume(clock_back_at=number, older=number == 5)
        )
    for _ in range(2):
        yield Fault("two processes in one folder", "train", method, FRESH, _two_processes)
        yield Fault("two processes in one folder", "resume", method, INTERRUPTED, _two_processes)
    yield Fault("two copies continued", "resume", method, INTERRUPTED, _two_copies)


def _of_disks(method: str) -> Iterator[Fault]:
    for place in (1, 2, 4, 7, 11, 16, 21, 26):
        yield Fault("disk full at a durable write", "train", method, FRESH, _train(full_at=place))
    for place in (1, 3, 6, 10, 15):
        yield Fault("disk full at a durable write", "resume", method, INTERRUPTED, _resume(full_at=place))
    for limit in (1000, 2000, 3000, 8000):
        yield Fault("a file cannot grow", "train", method, FRESH, _train(file_limit=limit))
    for limit in (1000, 5000):
        yield Fault("a file cannot grow", "resume", method, INTERRUPTED, _resume(file_limit=limit))


def _of_damage(method: str) -> Iterator[Fault]:
    for keep in (0, 7, 8, 200, -4, -1):
        yield Fault("newest checkpoint truncated", "resume", method, INTERRUPTED, _truncated_checkpoint(keep, 1))
    yield Fault("all checkpoints truncated", "resume", method, INTERRUPTED, _truncated_checkpoint(100, 2))
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99):
        yield Fault("ledger truncated", "resume", method, INTERRUPTED, _truncated_ledger(share))
        yield Fault("ledger truncated", "save", method, INTERRUPTED, _truncated_ledger(share, early=True))
    for share in (0.1, 0.5, 0.9):
        yield Fault("ledger byte changed", "resume", method, INTERRUPTED, _changed_ledger(share))


def _of_saving(method: str) -> Iterator[Fault]:
    for start in (INTERRUPTED, FINISHED):
        for place in (1, 3, 6, 9, 12, 15, 18, 20):
            yield Fault("kill -9 at a durable write", "save", method, start, _release(die_at=place))
        for place in (1, 2, 5, 8, 10):
            yield Fault("disk full at a durable write", "save", method, start, _release(full_at=place))
        yield Fault("a file cannot grow", "save", method, start, _release(file_limit=2000))
        yield Fault("clock ten years back", "save", method, start, _release(clock_back_at=1))
    for keep in (0, 200, -1):
        yield Fault(
            "newest checkpoint truncated", "save", method, INTERRUPTED, _truncated_checkpoint(keep, 1, early=True)
        )
    yield Fault("a file cannot grow", "sample", method, FINISHED, _sample("out.npz", file_limit=1000))
    for name in ("out.npz", "pictures"):
        for place in (1, 2, 3, 4):
            yield Fault("kill -9 at a durable write", "sample", method, FINISHED, _sample(name, die_at=place))
        for place in (1, 2):
            yield Fault("disk full at a durable write", "sample", method, FINISHED, _sample(name, full_at=place))
        yield Fault("kill -9 at a moment", "sample", method, FINISHED, _killed_sampling(name, 0.02))
        yield Fault("two processes in one folder", "sample", method, FINISHED, _two_samplers(name))


def _of_mounted_disks(method: str) -> Iterator[Fault]:
    for kilobytes in (4, 16, 32, 64, 96):
        yield Fault("disk full in the middle of a file", "train", method, FRESH, _small_disk(kilobytes))
    for kilobytes in (4, 8):
        for name in ("out.npz", "pictures"):
            yield Fault(
                "disk full in the middle of a file", "sample", method, FINISHED, _small_disk_for(name, kilobytes)
            )
    yield Fault("read-only folder", "train", method, FRESH, _read_only(lambda trial: trial.run()))
    yield Fault("read-only folder", "resume", method, INTERRUPTED, _read_only(lambda trial: trial.carry_on()))
    yield Fault("read-only folder", "save", method, INTERRUPTED, _read_only(_release_now))
    yield Fault(
        "read-only folder", "sample", method, FINISHED, _read_only(lambda trial: trial.sample(trial.folder / "x.npz"))
    )


# Actions


def _words(outcome: Outcome) -> str:
    names = {0: "not stopped", -9: "killed", -15: "ended", 130: "interrupted", 2: "stopped with a sentence"}
    return names.get(outcome.code, f"exit code {outcome.code}")


def _after(trial: Trial, outcome: Outcome, struck: bool) -> str | None:
    """Check, carry on to the end, check again; None where the fault did not strike."""
    end = trial.finish()
    return f"{_words(outcome)}; {end}" if struck else None


def _train(**request: Any) -> Action:
    def action(trial: Trial) -> str | None:
        outcome = trial.run(**request)
        return _after(trial, outcome, outcome.code != 0 or "clock_back_at" in request)

    return action


def _resume(older: bool = False, **request: Any) -> Action:
    def action(trial: Trial) -> str | None:
        if older:  # as if all that was written before came from the future
            for path in trial.folder.rglob("*"):
                os.utime(path, (4e9, 4e9))
        outcome = trial.carry_on(**request)
        return _after(trial, outcome, outcome.code != 0 or "clock_back_at" in request)

    return action


def _signalled(number: signal.Signals, seconds: float) -> Action:
    def action(trial: Trial) -> str | None:
        pid = trial.start(trial.resume_command() if trial.folder.exists() else None)
        time.sleep(seconds)
        os.kill(pid, number)
        outcome = trial.wait(pid)
        return _after(trial, outcome, outcome.code != 0)

    return action


def _two_processes(trial: Trial) -> str | None:
    command = trial.resume_command() if trial.folder.exists() else None
    pids = [trial.start(command), trial.start(command, "other")]
    outcomes = [trial.wait(pids[0]), trial.wait(pids[1], "other")]
    if sorted(outcome.code for outcome in outcomes) != [0, 2]:
        if all(outcome.code == 0 for outcome in outcomes):
            return _after(trial, outcomes[0], struck=False)  # one after the other
        raise Violation(f"exit codes {[outcome.code for outcome in outcomes]}")
    return "one trained, one refused; " + trial.finish()


def _two_copies(trial: Trial) -> str | None:
    """The plan pays for one of two copies: what both hand out stays within what the released one records."""
    copy = Trial(trial.bench, trial.home.with_name(trial.home.name + "-copy"), copy_of=trial.home)
    trial.expect(trial.carry_on(), 0)
    refused = copy.carry_on(state=str(trial.home / "state"))
    trial.expect(refused, 2)
    if "another copy of the run was continued" not in refused.sentence():
        raise Violation(refused.sentence())
    shutil.copy(copy.home / "files" / "used", trial.home / "files" / "used-by-the-copy")
    trial.check()
    return "one went on, one refused"


def _truncated_checkpoint(keep: int, newest: int, early: bool = False) -> Action:
    def action(trial: Trial) -> str | None:
        damaged = trial.checkpoints()[-newest:]
        for path in damaged:
            path.write_bytes(path.read_bytes()[:keep])
        outcome = _release_now(trial) if early else trial.carry_on()
        if len(trial.checkpoints()) == newest == len(damaged) and outcome.code == 2:
            trial.check()
            return "refused"
        trial.expect(outcome, 0)
        trial.check()
        return "the one before was taken; verified"

    return action


def _truncated_ledger(share: float, early: bool = False) -> Action:
    def action(trial: Trial) -> str | None:
        content = trial.ledger.read_bytes()
        trial.ledger.write_bytes(content[: int(share * len(content))])
        return _with_damaged_ledger(trial, early)

    return action


def _changed_ledger(share: float) -> Action:
    def action(trial: Trial) -> str | None:
        content = bytearray(trial.ledger.read_bytes())
        content[int(share * len(content))] ^= 1
        trial.ledger.write_bytes(bytes(content))
        return _with_damaged_ledger(trial, early=False)

    return action


def _with_damaged_ledger(trial: Trial, early: bool) -> str:
    """Either nothing is lost that was used, and the run goes on, or it is refused and releases nothing."""
    outcome = _release_now(trial) if early else trial.carry_on()
    if outcome.code == 0:
        trial.check()
        return "only a note was lost; verified"
    trial.expect(outcome, 2)
    if (trial.folder / "release").exists():
        raise Violation("a release in spite of a damaged ledger")
    return "refused"


def _release_now(trial: Trial, **request: Any) -> Outcome:
    return trial.run(["release", str(trial.folder)], **request)


def _release(**request: Any) -> Action:
    def action(trial: Trial) -> str | None:
        outcome = _release_now(trial, **request)
        trial.check()
        trial.expect(_release_now(trial), 0)
        trial.check()
        struck = outcome.code != 0 or "clock_back_at" in request
        return f"{_words(outcome)}; released and verified" if struck else None

    return action


def _sample(name: str, **request: Any) -> Action:
    def action(trial: Trial) -> str | None:
        outcome = trial.sample(trial.home / name, **request)
        return _after_sampling(trial, trial.home / name, outcome)

    return action


def _after_sampling(trial: Trial, target: Path, outcome: Outcome) -> str | None:
    if outcome.code == 0:
        return None
    if trial.check_samples(target):
        return f"{_words(outcome)}; the samples are whole"
    trial.expect(trial.sample(target), 0)
    if not trial.check_samples(target):
        raise Violation("no samples")
    return f"{_words(outcome)}; no samples, then all"


def _killed_sampling(name: str, seconds: float) -> Action:
    def action(trial: Trial) -> str | None:
        release, target = trial.bench.finished / "run" / "release", trial.home / name
        pid = trial.start(["sample", str(release), "-n", "40", "--to", str(target)])
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        return _after_sampling(trial, target, trial.wait(pid))

    return action


def _two_samplers(name: str) -> Action:
    def action(trial: Trial) -> str | None:
        release, target = trial.bench.finished / "run" / "release", trial.home / name
        command = ["sample", str(release), "-n", "40", "--to", str(target)]
        pids = [trial.start(command), trial.start(command, "other")]
        codes = [trial.wait(pids[0]).code, trial.wait(pids[1], "other").code]
        if not trial.check_samples(target) or 0 not in codes:
            raise Violation(f"no samples, exit codes {codes}")
        return "both wrote; the samples are whole" if codes == [0, 0] else "one wrote, one refused"

    return action


def _small_disk(kilobytes: int) -> Action:
    def action(trial: Trial) -> str | None:
        with trial.on_small_disk(kilobytes) as enlarge:
            outcome = trial.run()
            if outcome.code == 0:
                return None
            trial.check()
            enlarge()
            return _after(trial, outcome, struck=True)

    return action


def _small_disk_for(name: str, kilobytes: int) -> Action:
    def action(trial: Trial) -> str | None:
        place = trial.home / "disk"
        place.mkdir()
        mounting.mount_memory(place, kilobytes)
        try:
            outcome = trial.sample(place / name)
            mounting.resize(place, 4096)
            return _after_sampling(trial, place / name, outcome)
        finally:
            mounting.unmount(place)

    return action


def _read_only(attempt: Callable[[Trial], Outcome]) -> Action:
    def action(trial: Trial) -> str | None:
        trial.folder.mkdir(exist_ok=True)
        mounting.make_read_only(trial.folder)
        try:
            outcome = attempt(trial)
        finally:
            mounting.unmount(trial.folder)
        trial.expect(outcome, 2)
        return _after(trial, outcome, struck=True)

    return action
