"""Files that appear whole or not at all: safetensors, text and JSON, written aside, synced and renamed. No pickle."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_JSON = 4 * 2**20  # bytes
_YOUNG_SECONDS = 5.0


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Save tensors to a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    temporary = _temporary(path)
    try:
        save_file(contiguous, temporary, metadata=dict(metadata or {}))
        _publish(temporary, path)
    except (OSError, SafetensorError) as error:
        _discard(temporary)
        raise _unwritable(path, error) from None


def read_tensors(path: Path, device: str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; a damaged or missing one is an InputError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=device) as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise InputError(f"tensors: {path} cannot be read ({error}); the file is missing or damaged") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a binary file."""
    temporary = _temporary(path)
    try:
        temporary.write_bytes(content)
        _publish(temporary, path)
    except OSError as error:
        _discard(temporary)
        raise _unwritable(path, error) from None


def read_json(path: Path, what: str) -> Any:
    """Decode a JSON file of reasonable size."""
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(f"{what}: {path} is larger than {_LARGEST_JSON} bytes; it is not a {what}")
        return decode_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what}: {path} cannot be read ({error.strerror}); is this a release folder?") from None
    except (ValueError, RecursionError):
        raise InputError(f"{what}: {path} is not valid JSON; the file is damaged") from None


def decode_json(text: str) -> Any:
    """The value of a JSON text; a ValueError also where half a character is escaped, which nobody could write again."""
    value = json.loads(text)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def read_object(path: Path, what: str) -> dict[str, Any]:
    """A JSON file that holds an object."""
    raw = read_json(path, what)
    if not isinstance(raw, dict):
        raise InputError(f"{what}: {path} holds a {type(raw).__name__}, but an object is needed; the file is damaged")
    return raw


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def make_folder(path: Path, what: str) -> None:
    """Create a folder that can be written to, or say why not."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another process may be probing too
    except OSError as error:
        raise InputError(f"{what}: {path} cannot be written ({error.strerror}); choose another folder") from None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def aside(path: Path, folder: bool = False) -> Iterator[Path]:
    """An empty file or folder beside ``path`` for this process alone; gone at the end unless it was renamed.

    Several processes may write to one ``path`` this way: the last one wins, and none sees half of another's. What a
    killed process left there is recognised by its free lock and cleared away.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        _clear_abandoned(left)
    place = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    place.mkdir() if folder else place.touch()
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield place
    finally:
        os.close(descriptor)
        _remove(place)


def _clear_abandoned(place: Path) -> None:
    with suppress(OSError):
        if time.time() - place.stat().st_mtime < _YOUNG_SECONDS:
            return  # its owner may not hold it yet
        descriptor = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(place)
        finally:
            os.close(descriptor)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        _discard(place)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _discard(temporary: Path) -> None:
    with suppress(OSError):  # what went wrong before is what the user must hear
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def _unwritable(path: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"output: {path} could not be written ({reason}); free the disk or choose another folder")
