"""How many runs have touched a data set on this machine: a certificate states it, because choosing among runs leaks.

The count is kept in the user's state folder under a fingerprint of the data; it is a floor, since runs on other
machines are not known here.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from understudy.data.dataset import ImageDataset
from understudy.errors import InputError


def count_run(data: ImageDataset) -> int:
    """Record one more run on ``data`` and return how many there have been."""
    path = _state_folder() / "runs-by-data.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            counts = _decode(file.read())
            key = data.fingerprint()
            counts[key] = counts.get(key, 0) + 1
            file.seek(0)
            file.truncate()
            file.write(json.dumps(counts))
            return counts[key]
    except OSError as error:
        raise InputError(
            f"history: {path} cannot be written ({error.strerror}); set XDG_STATE_HOME to a folder that can"
        ) from None


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "understudy"


def _decode(text: str) -> dict[str, int]:
    try:
        counts = json.loads(text or "{}")
        return {str(key): int(value) for key, value in counts.items()}
    except (ValueError, AttributeError, TypeError):
        return {}
