"""Reading and writing ``.npz`` archives of numbers: no pickle, and sizes are checked before memory is taken."""

from __future__ import annotations

import io
import math
import os
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError

LIMIT_BYTES = 8 * 2**30  # of one array, uncompressed
_LONGEST_HEADER = 10_000  # bytes; that of an array of numbers is about a hundred


def array_names(path: Path) -> list[str]:
    """The names of the arrays in an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception as error:  # zipfile raises whatever its decoders raise
        raise InputError(f"{path}: not a readable .npz archive ({error}); save it with numpy.savez") from None
    return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]


def read_array(path: Path, name: str) -> NDArray[Any]:
    """One array of an archive; objects are refused because reading them could run code."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = archive.getinfo(f"{name}.npy")
            if entry.file_size > LIMIT_BYTES + _LONGEST_HEADER:
                raise InputError(
                    f"{path}: array {name!r} takes {entry.file_size} bytes; at most {LIMIT_BYTES} are read, so split "
                    "or shrink it"
                )
            with archive.open(entry) as stream:
                _check_header(stream, entry.file_size, f"{path}: array {name!r}")
            with archive.open(entry) as stream:
                return np.lib.format.read_array(stream, allow_pickle=False)
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{path}: array {name!r} does not fit in memory; pass a smaller set") from None
    except Exception as error:  # zipfile and numpy raise whatever their decoders and parsers raise
        raise InputError(f"{path}: array {name!r} cannot be read ({error}); save it again with numpy.savez") from None


def _check_header(stream: IO[bytes], file_size: int, what: str) -> None:
    """Refuse objects, and an array whose header promises more than the archive holds or than is allowed."""
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): (2, np.lib.format.read_array_header_1_0), (2, 0): (4, np.lib.format.read_array_header_2_0)}
    if version not in readers:
        raise InputError(f"{what} is in format {version}; save it as plain numbers")
    width, read_header = readers[version]
    prefix = stream.read(width)
    length = int.from_bytes(prefix, "little")
    if length > _LONGEST_HEADER:  # numpy would read all of it first
        raise InputError(f"{what} has a header of {length} bytes; at most {_LONGEST_HEADER} are read, so save it again")
    shape, _, dtype = read_header(io.BytesIO(prefix + stream.read(length)))
    if dtype.hasobject:
        raise InputError(f"{what} holds Python objects, which could run code when read; save it as numbers")
    promised = math.prod(shape) * dtype.itemsize
    if promised > LIMIT_BYTES:
        raise InputError(f"{what} takes {promised} bytes; at most {LIMIT_BYTES} are read, so split or shrink it")
    if promised > file_size:
        raise InputError(f"{what} is shorter than its header says; the file is damaged, so copy it again")


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write an archive beside ``path`` and move it there in one step, so that no reader ever sees half a file."""
    objects = [name for name, array in arrays.items() if array.dtype.hasobject]
    if objects:
        raise ValueError(f"array {objects[0]!r} holds Python objects; only numbers and text are written")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
