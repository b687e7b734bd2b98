"""Files that appear whole or not at all: safetensors and text, written aside, synced and renamed. No pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


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
