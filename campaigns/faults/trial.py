"""One trial of the faults campaign: a run folder, the commands that are tried on it, and what must hold afterwards."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors import safe_open
from tests.helpers.cases import BUDGET, case_of
from tests.helpers.data import tiny_data

from understudy.privacy.ledger import Ledger

from . import mounting
from .conftest import Launcher, Outcome

SAMPLES = 40
_EXPECTED_CODES = {0, 2, 3, 130, -9, -15}


class Violation(AssertionError):
    """Something that must never happen: spending lost, noise used twice, a wrong release, a traceback."""


@dataclass(frozen=True)
class Bench:
    """What all trials of a method start from: its data and config, an interrupted run and a finished one."""

    launcher: Launcher
    home: Path
    method: str

    @property
    def finished(self) -> Path:
        """The home of a finished run."""
        return self.home / "finished"

    @property
    def interrupted(self) -> Path:
        """The home of a run that was interrupted half-way, with two checkpoints."""
        return self.home / "interrupted"

    def command(self, run: Path) -> list[str]:
        """The command that trains in ``run``."""
        command = ["train", case_of(self.method).name, "--data", str(self.home / "data.npz"), "--records", "40"]
        command += ["--classes", "3", "--epsilon", str(BUDGET.epsilon), "--delta", str(BUDGET.delta)]
        return [*command, "--out", str(run), "--config", str(self.home / "config.json")]

    def prepare(self) -> float:
        """Make data, config and both runs; the seconds that a whole training takes."""
        self.home.mkdir(parents=True)
        data = tiny_data()
        np.savez(self.home / "data.npz", images=data.images[:, 0], labels=data.labels)
        config = case_of(self.method).config(runtime={"checkpoint_seconds": 1e-9})
        (self.home / "config.json").write_text(json.dumps(config))
        started = time.monotonic()
        whole = Trial(self, self.finished)
        whole.expect(whole.run(), 0)
        seconds = time.monotonic() - started
        half = Trial(self, self.interrupted)
        half.interrupt()
        return seconds


class Trial:
    """A run folder of its own with a state folder of its own."""

    def __init__(self, bench: Bench, home: Path, copy_of: Path | None = None) -> None:
        self.bench, self.home = bench, home
        if copy_of is not None:
            shutil.copytree(copy_of, home)
        (home / "files").mkdir(parents=True, exist_ok=True)
        self.folder = home / "run"

    @property
    def ledger(self) -> Path:
        """The ledger of the run."""
        return self.folder / "ledger.jsonl"

    def start(self, arguments: list[str] | None = None, files: str = "files", **request: Any) -> int:
        """Start training, or another command, with whatever goes wrong."""
        arguments = self.bench.command(self.folder) if arguments is None else arguments
        request.setdefault("state", str(self.home / "state"))
        return self.bench.launcher.start(arguments, self.home / files, **request)

    def wait(self, pid: int, files: str = "files") -> Outcome:
        """Wait for a command; whatever it was, it shows no traceback."""
        outcome = self.bench.launcher.wait(pid, self.home / files)
        if outcome.code not in _EXPECTED_CODES or "Traceback" in outcome.stderr:
            raise Violation(f"exit code {outcome.code}: {outcome.stderr[-1500:]}")
        if outcome.code in (2, 3) and len(outcome.sentence()) < 20:
            raise Violation(f"exit code {outcome.code} without a sentence: {outcome.stderr[-500:]}")
        return outcome

    def run(self, arguments: list[str] | None = None, files: str = "files", **request: Any) -> Outcome:
        """Start a command and wait for it."""
        return self.wait(self.start(arguments, files, **request), files)

    def resume_command(self) -> list[str]:
        """What continues the run; trials start from copies, which must be declared."""
        command = self.bench.command(self.folder)
        return [*command[: command.index("--config")], "--resume", "--moved"]

    def carry_on(self, **request: Any) -> Outcome:
        """What a user does after a crash: resume, or start again where not even the description was written."""
        return self.run(self.resume_command() if (self.folder / "run.json").exists() else None, **request)

    def interrupt(self) -> None:
        """Train for two steps, then stop in order; leaves two checkpoints."""
        self.expect(self.run(stop_after=2), 130)
        if len(self.checkpoints()) != 2:
            raise Violation(f"{len(self.checkpoints())} checkpoints instead of two")

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted((self.folder / "private").glob("checkpoint-*.safetensors"))

    def expect(self, outcome: Outcome, *codes: int) -> None:
        """The command must end with one of these exit codes."""
        if outcome.code not in codes:
            raise Violation(f"exit code {outcome.code} instead of {codes}: {outcome.stderr[-1500:]}")

    # What must hold at any time

    def check(self) -> None:
        """No spending is lost, no noise is drawn twice, and a release is right or is none."""
        self.check_noise()
        spent = self.spent()
        if spent is not None and spent < self.used():
            raise Violation(f"{self.used()} executions were used, but only {spent} are on record")
        if (self.folder / "release").exists():
            self.check_release()

    def used(self) -> int:
        """Executions whose value was handed out in any life of this run; a value that was kept counts once."""
        lines = {line for path in self.home.glob("*/used") for line in path.read_text().splitlines()}
        return sum(int(line.split()[0]) for line in lines)

    def check_noise(self) -> None:
        """All noise that any life of this run drew is different."""
        drawn = [line for path in self.home.glob("*/noise") for line in path.read_text().splitlines()]
        if len(set(drawn)) != len(drawn):
            raise Violation("noise was used twice")

    def spent(self) -> int | None:
        """Executions on record; None where there is no ledger yet, or where it is refused."""
        if not self.ledger.exists():
            return None
        copy = shutil.copy(self.ledger, self.home / "ledger-copy.jsonl")  # opening cuts a torn line off
        try:
            return sum(event.executed or 0 for event in Ledger.open(Path(copy)).events())
        except Exception:
            return None

    def check_release(self) -> None:
        """The release passes ``verify``, holds the newest checkpoint's generator, and is charged as the ledger says."""
        verified = self.run(["verify", str(self.folder / "release"), "--json"], "checking")
        self.expect(verified, 0)
        certificate = json.loads((self.folder / "release" / "certificate.json").read_text())
        events = Ledger.open(Path(shutil.copy(self.ledger, self.home / "ledger-copy.jsonl"))).events()
        charged = sum(event["count"] for event in certificate["events"])
        if charged < max(self.used(), sum(event.executed or 0 for event in events)):
            raise Violation("the certificate charges less than was used")
        if not any(_same_generator(path, self.folder / "release") for path in self.checkpoints()):
            raise Violation("the release verifies, but its generator is that of no checkpoint")

    def finish(self) -> str:
        """Carry on to the end: the run finishes at the planned price."""
        self.check()
        self.expect(self.carry_on(), 0)
        if not (self.folder / "release").is_dir():
            raise Violation("the run finished without a release")
        self.check()
        return "finished and verified"

    # Samples

    def sample(self, target: Path, **request: Any) -> Outcome:
        """Draw samples into ``target``."""
        release = str(self.bench.finished / "run" / "release")
        return self.run(["sample", release, "-n", str(SAMPLES), "--to", str(target)], **request)

    def check_samples(self, target: Path) -> bool:
        """Whether the samples are there; half of them must never be."""
        if not target.exists():
            return False
        if target.suffix == ".npz":
            with np.load(target) as archive:
                whole = archive["images"].shape == (SAMPLES, 8, 8) and archive["labels"].shape == (SAMPLES,)
        else:
            pictures = list(target.rglob("*.png"))
            whole = len(pictures) == SAMPLES and all(Image.open(path).size == (8, 8) for path in pictures)
        if not whole:
            raise Violation(f"{target.name} holds a part of the samples")
        return True

    @contextmanager
    def on_small_disk(self, kilobytes: int) -> Iterator[Callable[[], None]]:
        """The run folder lies on a disk of that size; the value makes the disk large."""
        self.folder.mkdir(exist_ok=True)
        mounting.mount_memory(self.folder, kilobytes)
        try:
            yield lambda: mounting.resize(self.folder, 64 * 1024)
        finally:
            mounting.unmount(self.folder)


def _same_generator(checkpoint: Path, release: Path) -> bool:
    try:
        with safe_open(checkpoint, "pt") as kept, safe_open(release / "generator.safetensors", "pt") as released:
            names = list(released.keys())
            return all((kept.get_tensor(f"released.{name}") == released.get_tensor(name)).all() for name in names)
    except Exception:  # a checkpoint that the trial damaged
        return False
