"""The folder of a run: the name of every file in it, its lock, and what it may hold when a run begins.

``run.json`` says what was asked for, ``ledger.jsonl`` what was spent, ``progress.jsonl`` holds public values over time,
``private/`` all that is never released, ``release/`` what may be, and ``base/`` the release that is annotated.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from understudy.errors import InputError

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
        """Public values over time."""
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
