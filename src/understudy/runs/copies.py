"""Which folder a run lives in, and how far its ledger was seen to go: a copied run does not spend its plan twice.

Two copies of a run folder have one ledger each, and neither knows what the other spends. Two things stand against that.
The folder itself: a run that is resumed in another folder than the one it was started in must be told that it was
moved there. And the user's state folder: it keeps the last mark of every run's ledger, and a copy whose ledger never
stood there is refused, because another copy went on. Neither stops an owner who wants to cheat: a copy on another
machine that is declared to be moved is believed, and the certificate says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from understudy.errors import InputError
from understudy.files import write_text
from understudy.privacy.ledger import Ledger
from understudy.runs.folder import LOCK

MOVED = (
    "the run was continued in a copied or restored folder, and its owner declared that no other copy of it is continued"
)


class RunIdentity(BaseModel):
    """A run's own name, drawn at random, and the folder it lives in; kept in ``run.json`` and never released."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # part of a file name
    inode: int
    device: int
    path_sha256: str
    moves: int = 0

    @classmethod
    def of(cls, folder: Path) -> RunIdentity:
        """A new run in ``folder``."""
        return cls(name=secrets.token_hex(16), **_place(folder))

    def at(self, folder: Path, moved: bool) -> RunIdentity:
        """The same run as it stands in ``folder``: the folder it knows, or another one that was declared.

        A renamed folder keeps its inode and device, and a file system that was mounted again keeps inode and path.
        """
        now = self.model_copy(update=_place(folder))
        if now.inode == self.inode and (now.device == self.device or now.path_sha256 == self.path_sha256):
            return now
        if not moved:
            raise InputError(
                f"run: {folder} is a copy, or was restored, and continuing two copies would spend the plan twice; if "
                "no other copy is continued say so with --moved (moved=True), else start a new run"
            )
        return now.model_copy(update={"moves": self.moves + 1})

    def check_newest(self, ledger: Ledger) -> None:
        """Refuse a ledger that does not hold all that any copy of this run was seen to record on this machine."""
        path = self._mark_path()
        try:
            mark = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return  # another machine, or a run that was killed before it began
        except (OSError, ValueError) as error:
            raise InputError(
                f"history: {path} cannot be read ({error}); restore it, or set XDG_STATE_HOME to the right folder"
            ) from None
        if not ledger.has_passed(mark):
            raise InputError(
                f"ledger: {ledger.path} does not hold all that this run has recorded, because another copy of the run "
                "was continued or the ledger was cut, so its spending is unknown; go on with the newest copy or start "
                "a new run"
            )

    def remember(self, ledger: Ledger) -> None:
        """Keep where the ledger stands, for whoever continues any copy of this run on this machine."""
        path = self._mark_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (path.parent / LOCK).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                write_text(path, ledger.mark + "\n")
        except OSError as error:
            raise InputError(
                f"history: {path.parent} cannot be written ({error.strerror}); set XDG_STATE_HOME to a folder that can"
            ) from None

    def _mark_path(self) -> Path:
        return state_folder() / "ledgers" / f"{self.name}.mark"


def _place(folder: Path) -> dict[str, Any]:
    status = folder.stat()
    path = str(folder.resolve()).encode("utf-8", "surrogateescape")
    return {"inode": status.st_ino, "device": status.st_dev, "path_sha256": hashlib.sha256(path).hexdigest()}


def state_folder() -> Path:
    """Where this user's programs keep what outlives a run."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "understudy"
