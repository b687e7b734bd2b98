"""Keeps what was computed from real data: feature statistics, reference accuracies, the classifier behind the scores.

Privacy: everything kept here follows from real data without noise, and the name of a file is a hash that would confirm
a guess of the data. Treat the folder like the data themselves. It is ``$XDG_CACHE_HOME/understudy/private`` (else
``~/.cache/understudy/private``) for the command line, wherever the caller says for the library, and nowhere by default.
The folder and its files can be read by their owner only. Deleting it costs nothing but time.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.data.catalog import cache_folder
from understudy.errors import InputError

OWNER_ONLY = 0o700


def default_folder() -> Path:
    """Where the command line keeps what it computed from real data."""
    return cache_folder() / "private"


def content_hash(words: str, *arrays: NDArray[Any]) -> str:
    """A hash of a description and of the exact contents, shapes and types of arrays."""
    digest = hashlib.sha256(words.encode())
    for array in arrays:
        digest.update(f"|{array.dtype.str}{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_folder(folder: Path) -> None:
    """Create the folder for its owner only, or say why it cannot be used, before any work is done."""
    try:
        folder.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        descriptor, probe = tempfile.mkstemp(dir=folder)
        os.close(descriptor)
        Path(probe).unlink()
    except OSError as error:
        raise InputError(f"cache: {folder} cannot be written ({error.strerror}); choose another folder") from None


def keep(path: Path, content: bytes) -> None:
    """Write a file in one move, readable by its owner only; a full disk costs the copy, not the figure."""
    temporary: str | None = None
    try:
        path.parent.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        warnings.warn(
            f"cache: {path} was not kept ({error.strerror or error}); the figures are not affected", stacklevel=2
        )
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def keep_json(path: Path, value: Mapping[str, Any]) -> None:
    """Keep plain data."""
    keep(path, (json.dumps(value) + "\n").encode())


def kept_json(path: Path, needed: str = "accuracy") -> dict[str, Any] | None:
    """Plain data kept earlier, or None where there are none or the file is damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get(needed), float) else None
