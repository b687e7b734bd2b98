"""IDX files, the format of MNIST and its relatives, compressed with gzip or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from understudy.data.npz import LIMIT_BYTES
from understudy.errors import InputError

_UNSIGNED_BYTE = 0x08
_INTEGER = 0x0C
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 16 * 2**20
_MNIST_PREFIX = {"train": "train", "test": "t10k"}


def looks_like_idx(path: Path) -> bool:
    """Whether a file starts like an IDX file of bytes, compressed or not."""
    try:
        with _open(path) as stream:
            head = stream.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return len(head) == 4 and head[:3] == bytes([0, 0, _UNSIGNED_BYTE]) and 1 <= head[3] <= 4


def read_idx(path: Path) -> NDArray[np.uint8]:
    """One IDX file of unsigned bytes; a wrong header, missing or surplus bytes are errors."""
    shape, content = _read(path, _UNSIGNED_BYTE, 1)
    return np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()


def read_integers(path: Path) -> NDArray[np.int64]:
    """One IDX file of 32-bit integers, as QMNIST has its labels."""
    shape, content = _read(path, _INTEGER, 4)
    return np.frombuffer(content, dtype=">i4").reshape(shape).astype(np.int64)


def _read(path: Path, kind: int, width: int) -> tuple[tuple[int, ...], bytes]:
    """The shape and the bytes of a file whose numbers are of one kind and take ``width`` bytes each."""
    try:
        with _open(path) as stream:
            shape = _read_shape(stream, path, kind)
            expected = math.prod(shape) * width
            if expected == 0 and math.prod(side or 1 for side in shape) > LIMIT_BYTES:  # more than an array can be
                raise InputError(f"{path}: its header says {shape}, which is no set of images; copy or fetch it again")
            if expected > LIMIT_BYTES:
                raise InputError(f"{path}: takes {expected} bytes; at most {LIMIT_BYTES} are read, so split it")
            content = _read_at_most(stream, expected + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise InputError(f"{path}: cannot be read as an IDX file ({error}); copy or fetch it again") from None
    if len(content) != expected:
        found = "more than" if len(content) > expected else f"only {len(content)} of"
        raise InputError(f"{path}: holds {found} the {expected} bytes its header says; copy or fetch it again")
    return shape, content


def _read_at_most(stream: BinaryIO, count: int) -> bytes:
    """Up to ``count`` bytes, piece by piece: memory follows what the file holds, not what its header promises."""
    pieces = []
    while count > 0 and (piece := stream.read(min(count, _PIECE))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as stream:
        compressed = stream.read(2) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if compressed else path.open("rb")


def _read_shape(stream: BinaryIO, path: Path, kind: int) -> tuple[int, ...]:
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or not 1 <= head[3] <= 4:
        raise InputError(f"{path}: not an IDX file; pass images in the IDX format of MNIST")
    if head[2] != kind:
        wanted = "only unsigned bytes (0x08) are read" if kind == _UNSIGNED_BYTE else "integers (0x0c) are needed"
        raise InputError(f"{path}: IDX type 0x{head[2]:02x}; {wanted}, so convert it")
    return struct.unpack(f">{head[3]}I", stream.read(4 * head[3]))


def sibling_labels(images: Path) -> Path | None:
    """The labels that belong to an images file by its name (images -> labels, idx3 -> idx1), if they are there."""
    if "images" not in images.name:
        return None
    name = images.name.replace("images", "labels").replace("idx3", "idx1").replace("idx4", "idx1")
    for candidate in (name, name.removesuffix(".gz"), name.removesuffix(".gz") + ".gz"):
        if (images.parent / candidate).is_file():
            return images.parent / candidate
    return None


def mnist_files(folder: Path, split: str) -> tuple[Path, Path] | None:
    """The images and labels files of one split under their MNIST names, or None if either is missing."""
    found = []
    for kind in ("images-idx3", "labels-idx1"):
        stem = f"{_MNIST_PREFIX[split]}-{kind}-ubyte"
        present = [folder / name for name in (stem, f"{stem}.gz") if (folder / name).is_file()]
        if not present:
            return None
        found.append(present[0])
    return found[0], found[1]
