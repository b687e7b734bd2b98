"""How many runs have touched a data set on this machine: a certificate states it, because choosing among runs leaks.

The count is kept in the user's state folder under the name and the declared domain of the data, which are public: a
count kept under the records themselves would tell whether they changed between two releases. It is a floor, since runs
on other machines or under other names are not known here.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from understudy.data.dataset import ImageDataset
from understudy.errors import InputError
from understudy.files import write_text




def count_run(data: ImageDataset) -> int:
    """Record one more run on ``data`` and return how many there have been."""
    path = state_folder() / "runs-by-data.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            counts = _decode(path)
            key = f"{data.name}; {'; '.join(data.domain.assumed_public())}"
            counts[key] = counts.get(key, 0) + 1
            write_text(path, json.dumps(counts))
            return counts[key]
    except OSError as error:
        raise InputError(
            f"history: {path} cannot be written ({error.strerror}); set XDG_STATE_HOME to a folder that can"
        ) from None


def state_folder() -> Path:
    """Where this user's programs keep what outlives a run."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "understudy"


def _decode(path: Path) -> dict[str, int]:
    """The counts so far; a damaged file is an error, because a certificate would understate the runs."""
    if not path.exists():
        return {}
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
        return {str(key): int(value) for key, value in counts.items()}
    except (ValueError, AttributeError, TypeError):
        raise InputError(
            f"history: {path} is damaged, so the number of runs is unknown; restore it, or remove it to count anew"
        ) from None
