"""The folder of a run: the name of every file in it, its lock, and what it may hold when a run begins.

``run.json`` says what was asked for, ``ledger.jsonl`` what was spent, ``progress.jsonl`` holds public values over the
steps, ``private/`` all that is never released, ``release/`` what may be, and ``base/`` the release that is annotated.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.errors import InputError
from understudy.files import make_private_folder, write_text

LOCK = "lock"
_DESCRIPTION, _LEDGER, _PRIVATE, _BASE = "run.json", "ledger.jsonl", "private", "base"
_BEGINNINGS = (LOCK, _LEDGER, _PRIVATE, _BASE)  # what there may be before the description


@dataclass(frozen=True)
class RunFolder:
    """Where everything is in the folder of a run; whoever reads or writes one of its files asks here.

    A client of a federation has a folder of its own, with the same ledger and the same private folder.
    """

    path: Path

    @property
    def description(self) -> Path:
        """What was asked for: all that is needed to continue the run, given its data."""
        return self.path / _DESCRIPTION

    @property
    def ledger(self) -> Path:
        """What was spent."""
        return self.path / _LEDGER

    @property
    def progress(self) -> Path:
        """Public values over the steps, without their times."""
        return self.path / "progress.jsonl"

    @property
    def release(self) -> Path:
        """The folder of what may be handed out."""
        return self.path / "release"

    @property
    def base(self) -> Path:
        """The folder of the release that is annotated."""
        return self.path / _BASE

    @property
    def evaluation(self) -> Path:
        """Figures of the release, which were computed with real data: stamped, never released."""
        return self.path / "evaluation.json"

    @property
    def private(self) -> Path:
        """The folder for what must not be released: checkpoints, and all that follows."""
        return self.path / _PRIVATE

    @property
    def fingerprint(self) -> Path:
        """What recognises the data when the run is continued; it would confirm a guess of the records."""
        return self.private / "data.sha256"

    @property
    def diagnostics(self) -> Path:
        """Private values over time."""
        return self.private / "diagnostics.jsonl"

    @property
    def timings(self) -> Path:
        """How long a run had worked at each report: it follows the sizes of secret batches and the true records."""
        return self.private / "timings.jsonl"

    @property
    def pictures(self) -> Path:
        """The folder of images that the generator drew on the way."""
        return self.private / "samples"

    @property
    def partition(self) -> Path:
        """Which record belongs to which subset."""
        return self.private / "partition.npz"

    @property
    def frequencies(self) -> Path:
        """The random frequencies of an embedding."""
        return self.private / "frequencies.safetensors"

    @property
    def groups(self) -> Path:
        """The pixels of each group of a Hermite embedding."""
        return self.private / "groups.safetensors"

    @property
    def central_images(self) -> Path:
        """The noisy sums of images that a diffusion model starts from."""
        return self.private / "central-images.safetensors"

    @property
    def teacher(self) -> Path:
        """The teacher, as far as it has learnt."""
        return self.private / "teacher.safetensors"

    @property
    def embedding(self) -> Path:
        """The noisy sum of an embedding, which is drawn once however often a run is resumed."""
        return self.private / "embedding.safetensors"

    @property
    def routing(self) -> Path:
        """Which client was asked what."""
        return self.private / "routing.json"

    @property
    def votes(self) -> Path:
        """How far teachers agreed."""
        return self.private / "votes.json"

    @property
    def bayesian(self) -> Path:
        """What the Bayesian accountant has seen."""
        return self.private / "bayesian.json"

    @property
    def claims(self) -> Path:
        """Claims that depend on the data."""
        return self.private / "data-dependent.json"

    @property
    def begun(self) -> bool:
        """Whether there is a run here."""
        return self.description.exists()

    @property
    def released(self) -> bool:
        """Whether the run has released something, finished or early."""
        return self.release.is_dir()

    def make_private(self, what: str, *inside: str) -> None:
        """Create the private folder, and folders inside it, for the owner alone; one of an earlier version is closed.

        Privacy: a fingerprint of the data, routing counts and critics lie there, and the umask of most machines would
        let every user read them.
        """
        make_private_folder(self.private, what)
        for name in inside:
            make_private_folder(self.private / name, what)

    def seconds(self) -> list[float]:
        """How long the run had worked at each of its reports; those of earlier versions kept it with their progress."""
        return [float(line["seconds"]) for line in _lines(self.timings) or _lines(self.progress) if _is_timed(line)]

    def separate_timings(self) -> None:
        """Move the times that earlier versions wrote into the public progress among the private files.

        Privacy: afterwards progress holds public values alone. Where a kill comes between the two writes, the times
        stand in both files, and the next resume takes them out of the public one.
        """
        lines = _lines(self.progress)
        if not any("seconds" in line for line in lines):
            return
        if not self.timings.exists():
            kept = [{"step": line.get("step"), "seconds": line["seconds"]} for line in lines if _is_timed(line)]
            write_text(self.timings, _text(kept), private=True)
        shown = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
        write_text(self.progress, _text(shown))

    def refuse_occupied(self) -> None:
        """Refuse a folder for a new run that holds a run, or anything that no run begins with.

        A run that was killed before it had a description spent nothing, and is begun anew in the same folder.
        """
        if self.begun:
            raise InputError(
                f"run: {self.path} holds a run already; continue it with --resume or choose another folder"
            )
        if any(entry.name not in _BEGINNINGS and entry.suffix != ".partial" for entry in self.path.iterdir()):
            raise InputError(f"run: {self.path} holds other files already; choose another folder")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one a line; a line that a kill tore is passed over."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict)]


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def _is_timed(line: dict[str, Any]) -> bool:
    seconds = line.get("seconds")
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and abs(seconds) < float("inf")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for one process; a second one is refused."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"run: another process is working in {folder}; wait for it or choose another folder"
            ) from None
        yield
