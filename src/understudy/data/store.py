"""A data store: images on disk that are read as they are needed, for data that do not fit into memory.

A store is a folder for its owner alone. ``images.npy`` is one memory-mapped array, ``labels.npy``, ``clients.npy`` and
``people.npy`` are its columns, ``blocks.sha256`` holds a checksum of every block of images, and ``store.json`` says
what was declared. One checksum over all of that is the fingerprint of the data. So a start reads the columns and the
checksums, and no image; a block of images is compared with its checksum when it is first read.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from understudy.configs import Count
from understudy.data.columns import tell
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Declared, Domain, declare_domain
from understudy.data.pictures import Stack, shown
from understudy.errors import InputError
from understudy.files import aside, file_sha256, open_private, read_json, sync_folder

Column = Literal["labels", "clients", "people"]
_FACTS, _IMAGES, _BLOCKS = "store.json", "images.npy", "blocks.sha256"
_DIGEST = 32  # bytes of a checksum
_BLOCK_BYTES = 2**16  # of images under one checksum
_RESIDENT = 2**28  # bytes of the file that may stay mapped; then the pages are given back
_FAULT = 2**16  # bytes that the kernel maps around one that is touched
_AT_ONCE = 2**25  # bytes of a long range that are read together
_ANEW = "copy the store again, or write it anew with `understudy data store`"


class _Facts(BaseModel):
    """What ``store.json`` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: Literal["understudy-store-1"] = "understudy-store-1"
    name: str
    domain: Domain
    shape: tuple[Count, Count, Count, Count]  # records first, which is private
    block: Count  # records under one checksum
    columns: dict[Column, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]

    @property
    def blocks(self) -> int:
        """How many blocks of images there are."""
        return -(-self.shape[0] // self.block)


class StoredImages:
    """Images (N, C, H, W) on disk that are read like an array: ``images[numbers]`` or ``images[10:20]``.

    Privacy: private, as the images themselves. A block that is not as it was stored is an error when it is first read,
    so no record is trained on that the checksum of the store does not cover.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, path: Path, shape: tuple[int, ...], block: int, digests: bytes) -> None:
        self.shape, self.ndim, self._path, self._block, self._digests = shape, len(shape), path, block, digests
        with _opened(path, np.dtype(np.uint8), shape) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            begins = file.tell()
        self._rows = np.frombuffer(self._map, dtype=np.uint8, offset=begins).reshape(shape)
        self._confirmed = np.zeros(len(digests) // _DIGEST, dtype=np.bool_)
        self._touched = 0

    def __len__(self) -> int:
        """The number of records, which is private."""
        return self.shape[0]

    def __getitem__(self, selection: slice | NDArray[Any]) -> NDArray[np.uint8]:
        """A copy of some images in memory; a range, numbers or truth values select them."""
        if isinstance(selection, slice) and selection.step in (None, 1):
            return self._range(*selection.indices(len(self))[:2])
        if isinstance(selection, slice):
            numbers = np.arange(*selection.indices(len(self)))
        else:
            numbers = np.arange(len(self))[selection]
        images = self._rows[numbers]
        self._confirm(np.unique(numbers // self._block))
        self._give_back(_FAULT * numbers.size)
        return images

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All images in memory."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def _range(self, start: int, stop: int) -> NDArray[np.uint8]:
        """A range of images, however long, in pieces of which few stay mapped."""
        images = np.empty((max(0, stop - start), *self.shape[1:]), dtype=np.uint8)
        at_once = max(1, _AT_ONCE // math.prod(self.shape[1:]))
        for first in range(start, stop, at_once):
            last = min(stop, first + at_once)
            self._confirm(np.arange(first // self._block, (last - 1) // self._block + 1))
            images[first - start : last - start] = self._rows[first:last]
            self._give_back(images[first - start : last - start].nbytes)
        return images

    def _confirm(self, blocks: NDArray[np.int64]) -> None:
        """Compare blocks that are read for the first time with their checksums."""
        for block in blocks[~self._confirmed[blocks]].tolist():
            rows = self._rows[block * self._block : (block + 1) * self._block]
            if hashlib.sha256(rows.data).digest() != self._digests[block * _DIGEST : (block + 1) * _DIGEST]:
                last = min(len(self), (block + 1) * self._block) - 1
                raise InputError(
                    f"{self._path}: records {block * self._block} to {last} are not as they were stored; {_ANEW}"
                )
            self._confirmed[block] = True
            self._touched += rows.nbytes

    def _give_back(self, touched: int) -> None:
        """Let go of mapped pages once there are many: they count as memory of this process."""
        self._touched += touched
        if self._touched > _RESIDENT:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0


@dataclass(frozen=True, eq=False, repr=False)
class StoredDataset(ImageDataset):
    """A data set whose images stay on disk; ``images`` are ``StoredImages``."""

    checksum: str = ""  # of the store, and of what is left out of it

    def fingerprint(self) -> str:
        """The checksum of the store, so that nothing is read for it.

        Privacy: as that of any data set.
        """
        return self.checksum

    @property
    def pictures(self) -> NDArray[np.uint8]:
        """As those of any data set; this reads all images into memory. Privacy: private."""
        return self.in_memory().pictures

    def in_memory(self) -> ImageDataset:
        """The same data set with all images in memory."""
        images = self.images[:]
        return ImageDataset(self.name, self.domain, images, self.labels, self.client_ids, self.people)


# Reading


def is_store(path: Path) -> bool:
    """Whether a path is the folder of a store."""
    return path.is_dir() and (path / _FACTS).is_file()


def open_store(path: Path, declared: Declared) -> StoredDataset:
    """The data set of a store; what was declared when it was written holds, and the public numbers may be changed.

    Privacy: reads the columns and no image, and releases nothing.
    """
    if path.stat().st_mode & 0o077:
        tell(f"{path}: other users of this machine can look into this store; close it with chmod 700")
    raw, facts = _read_facts(path)
    try:
        digests = (path / _BLOCKS).read_bytes()
    except OSError as error:
        raise _damaged(path / _BLOCKS, f"it cannot be read ({error.strerror})") from None
    if raw["checksum"] != _checksum(raw["facts"], digests) or len(digests) != _DIGEST * facts.blocks:
        raise _damaged(path / _BLOCKS, f"its checksum is not the one in {_FACTS}")
    columns = {name: _read_column(path / f"{name}.npy", facts, sha256) for name, sha256 in facts.columns.items()}
    domain = _redeclared(path, facts.domain, declared)
    checksum: str = raw["checksum"]
    if "labels" in columns and not domain.labelled:
        checksum = hashlib.sha256(f"{checksum} unlabelled".encode()).hexdigest()
    return StoredDataset(
        declared.options.name or facts.name,
        domain,
        cast("NDArray[np.uint8]", StoredImages(path / _IMAGES, facts.shape, facts.block, digests)),
        columns.get("labels") if domain.labelled else None,
        columns.get("clients"),
        columns.get("people"),
        checksum,
    )


def _read_facts(path: Path) -> tuple[dict[str, Any], _Facts]:
    raw = read_json(path / _FACTS, "store")
    try:
        facts = _Facts.model_validate(raw["facts"])
        if set(raw) != {"facts", "checksum"} or facts.shape[1:] != facts.domain.shape:
            raise ValueError
    except (KeyError, TypeError, ValidationError, ValueError):
        raise InputError(f"{path / _FACTS}: not the description of a store, or damaged; {_ANEW}") from None
    return raw, facts


def _read_column(path: Path, facts: _Facts, sha256: str) -> NDArray[np.int64]:
    dtype = np.dtype("<i8")
    with _opened(path, dtype, facts.shape[:1]) as file:
        begins = file.tell()
        file.seek(0)
        content = file.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _damaged(path, "its checksum is another one")
    return np.frombuffer(content, dtype=dtype, offset=begins).astype(np.int64)


@contextmanager
def _opened(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Iterator[IO[bytes]]:
    """A file that holds exactly such an array, at its first value."""
    header = _header(dtype, shape)
    try:
        with path.open("rb") as file:
            expected, found = len(header) + math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size
            if found != expected:
                raise _damaged(path, f"it has {found} bytes, but {expected} were stored")
            if file.read(len(header)) != header:
                raise _damaged(path, "its header is another one")
            yield file
    except OSError as error:
        raise _damaged(path, f"it cannot be read ({error.strerror})") from None


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}; {_ANEW}")


def _checksum(facts: dict[str, Any], digests: bytes) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode() + b"\n" + digests).hexdigest()


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The beginning of a ``.npy`` file; it is equally long for any number of records."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _redeclared(path: Path, domain: Domain, declared: Declared) -> Domain:
    """The domain of a store with what was declared anew; what would have to change the stored records is refused."""
    options = declared.options
    fixed = {
        "classes": (declared.classes, domain.classes),
        "class_names": (options.class_names, domain.class_names),
        "shape": (options.size, domain.shape[1:]),
        "channels": (options.channels, domain.shape[0]),
        "skip_broken": (options.skip_broken or None, domain.skip_broken),
        "clients": (options.clients or None, domain.nominal_clients is not None),
        **{name: (getattr(options, name), None) for name in ("person", "label", "image", "window", "min_images")},
        "value_range": (options.value_range, domain.value_range),
    }
    for name, (asked, stored) in fixed.items():
        if asked is not None and asked != stored:
            held = f"it was written with {stored}" if stored is not None else "a store holds finished records"
            raise InputError(f"{name}: {asked} was declared, but {path} is a store, and {held}; leave it out")
    changed = {
        "nominal_records": declared.records,
        "nominal_people": options.nominal_people,
        "nominal_clients": options.nominal_clients,
    }
    for name, asked in changed.items():
        if asked is not None and getattr(domain, name) is None:
            raise InputError(f"{name}: {asked} was declared, but {path} does not say who contributed what")
    unlabelled = {"classes": None, "class_names": None} if options.unlabelled else {}
    given = {name: asked for name, asked in changed.items() if asked is not None}
    return declare_domain(**{**domain.model_dump(), **given, **unlabelled})


# Writing


class StoreWriter(Stack):
    """Writes a store into an empty folder: images one by one as they are decoded, or all of a data set.

    Privacy: what it writes is private and for its owner alone, from the moment that a name is there.
    """

    def __init__(self, place: Path, source: str) -> None:
        super().__init__(source, None)
        self._place, self._file, self._digests = place, open_private(place / _IMAGES, "wb"), bytearray()
        self._waiting = bytearray()

    def _keep(self, image: NDArray[np.uint8]) -> None:
        if self.count == 0:
            self._file.write(self._images_header(0))
        self._waiting += np.ascontiguousarray(image).data
        if len(self._waiting) >= self._block * math.prod(self.shape):
            self._flush()

    @property
    def _block(self) -> int:
        return max(1, _BLOCK_BYTES // math.prod(self.shape))

    def _images_header(self, records: int) -> bytes:
        return _header(np.dtype(np.uint8), (records, *self.shape))

    def _flush(self) -> None:
        """Write a block, the last of which may be shorter, and its checksum."""
        if self._waiting:
            self._digests += hashlib.sha256(self._waiting).digest()
            self._file.write(self._waiting)
            self._waiting.clear()

    @property
    def images(self) -> NDArray[np.uint8]:
        """What was written, mapped into memory; nothing can be added afterwards."""
        self._end()
        mapped: NDArray[np.uint8] = np.load(self._place / _IMAGES, mmap_mode="r", allow_pickle=False)
        return mapped

    def _end(self) -> None:
        self._flush()
        self._file.seek(0)
        self._file.write(self._images_header(self.count))
        self._close(self._file)

    def finish(self, data: ImageDataset) -> None:
        """Write the columns of a data set, its images unless they are there already, and what was declared."""
        if self.count == 0:
            at_once = max(1, _BLOCK_BYTES // math.prod(data.domain.shape))
            pieces = range(0, len(data), at_once)
            for start in shown(pieces, len(pieces), f"blocks of {data.name}"):
                for image in data.images[start : start + at_once]:
                    self.put(data.name, image)
            self._end()
        columns: dict[Column, NDArray[np.int64] | None]
        columns = {"labels": data.labels, "clients": data.client_ids, "people": data.people}
        facts = _Facts(
            name=data.name,
            domain=data.domain,
            shape=(self.count, *data.domain.shape),
            block=self._block,
            columns={name: self._column(name, column) for name, column in columns.items() if column is not None},
        ).model_dump(mode="json")
        self._write(_BLOCKS, bytes(self._digests))
        described = {"facts": facts, "checksum": _checksum(facts, bytes(self._digests))}
        self._write(_FACTS, (json.dumps(described, indent=1) + "\n").encode())

    def _column(self, name: str, values: NDArray[np.int64]) -> str:
        dtype = np.dtype("<i8")
        self._write(f"{name}.npy", _header(dtype, values.shape) + values.astype(dtype).tobytes())
        return file_sha256(self._place / f"{name}.npy")

    def _write(self, name: str, content: bytes) -> None:
        with open_private(self._place / name, "wb") as file:
            file.write(content)
            self._close(file)

    def close(self) -> None:
        """Let go of the file of the images."""
        self._file.close()

    @staticmethod
    def _close(file: IO[bytes]) -> None:
        file.flush()
        os.fsync(file.fileno())
        file.close()


@contextmanager
def new_store(to: Path, source: str) -> Iterator[StoreWriter]:
    """A writer whose store gets its name when the block is left without an error; nothing is left otherwise."""
    if to.exists():
        raise InputError(f"store: {to} exists already; choose another folder, or remove that one first")
    to.parent.mkdir(parents=True, exist_ok=True)
    with aside(to, folder=True) as place:
        place.chmod(0o700)
        writer = StoreWriter(place, source)
        try:
            yield writer
        finally:
            writer.close()
        sync_folder(place)
        place.rename(to)
        sync_folder(to.parent)
