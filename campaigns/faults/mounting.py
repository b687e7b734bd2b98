"""Small and read-only disks for the faults campaign, in a mount namespace of its own that ends with the process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_MOUNTS, _READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20000, 1, 32, 4096, 16384, 1 << 18
_library = ctypes.CDLL(None, use_errno=True)


def enter_own_namespace() -> bool:
    """From now on mounts are seen by this process and its children only; False where that is not permitted."""
    if not hasattr(_library, "unshare") or _library.unshare(_NEW_MOUNTS) != 0:
        return False
    return _library.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None) == 0


def mount_memory(folder: Path, kilobytes: int) -> None:
    """A new, empty disk of that size at ``folder``."""
    _mount(b"tmpfs", folder, b"tmpfs", 0, f"size={kilobytes}k".encode())


def resize(folder: Path, kilobytes: int) -> None:
    """Another size for a disk from ``mount_memory``."""
    _mount(b"tmpfs", folder, b"tmpfs", _REMOUNT, f"size={kilobytes}k".encode())


def make_read_only(folder: Path) -> None:
    """Nothing in ``folder`` can be changed until it is unmounted."""
    _mount(bytes(folder), folder, None, _BIND, None)
    _mount(b"none", folder, None, _BIND | _REMOUNT | _READ_ONLY, None)


def unmount(folder: Path) -> None:
    """Undo one of the above."""
    if _library.umount2(bytes(folder), 2) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _mount(source: bytes, folder: Path, kind: bytes | None, flags: int, options: bytes | None) -> None:
    if _library.mount(source, bytes(folder), kind, flags, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
