"""Samples as files: an ``.npz`` archive, a folder of PNGs with a sub-folder per class, or a parquet table."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError
from understudy.files import aside
from understudy.release.folders import CERTIFICATE, new_folder

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

_ROWS_AT_ONCE = 5000


def export(
    images: Images, labels: Labels | None, destination: Path | str, class_names: Sequence[str] | None = None
) -> Path:
    """Write samples to ``destination``; its ending chooses the format, and it appears whole or not at all.

    ``.npz`` holds the arrays ``images`` and ``labels``, ``.parquet`` the columns ``image`` (PNG bytes) and ``label``; a
    path without an ending is a new folder of PNGs. ``class_names`` name its sub-folders, made safe for a file system.
    """
    path = check_destination(destination)
    if labels is not None and len(labels) != len(images):
        raise InputError(f"labels: {len(labels)} for {len(images)} images; pass one for each")
    if path.suffix == ".npz":
        _write_file(path, lambda place: _write_npz(place, images, labels))
    elif path.suffix == ".parquet":
        _write_file(path, lambda place: _write_parquet(place, images, labels))
    else:
        _write_folder(path, images, labels, class_names)
    return path


def check_destination(destination: Path | str) -> Path:
    """The destination as a path, refused before any work if nothing can be written under that name."""
    path = Path(destination)
    if (path.parent / CERTIFICATE).is_file():
        raise InputError(f"output: {path.parent} is a release, and one more file would spoil it; choose another folder")
    if path.suffix in (".npz", ".parquet"):
        if path.is_dir():
            raise InputError(f"output: {path} is a folder; choose another name")
        if path.suffix == ".parquet":
            _require_pyarrow()
    elif path.suffix and not path.is_dir():
        raise InputError(f"output: {path} ends in {path.suffix!r}; use .npz, .parquet, or a folder without an ending")
    elif path.is_dir() and any(path.iterdir()):
        raise InputError(f"output: {path} holds other files already; choose another folder or empty it")
    return path


def _write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file aside and move it into place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside(path) as temporary:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"output: {path} could not be written ({error.strerror or error}); free the disk or choose another folder"
        ) from None


def _write_npz(place: Path, images: Images, labels: Labels | None) -> None:
    arrays = {"images": images} if labels is None else {"images": images, "labels": labels}
    with place.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _require_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise InputError("output: parquet needs pyarrow; install it with pip install 'understudy[parquet]'") from None


def _write_parquet(place: Path, images: Images, labels: Labels | None) -> None:
    import pyarrow
    from pyarrow import parquet

    fields = [pyarrow.field("image", pyarrow.binary())]
    if labels is not None:
        fields.append(pyarrow.field("label", pyarrow.int64()))
    schema = pyarrow.schema(fields)
    with parquet.ParquetWriter(place, schema) as writer:
        for start in range(0, len(images), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            columns = [pyarrow.array([_png(image) for image in images[rows]], pyarrow.binary())]
            if labels is not None:
                columns.append(pyarrow.array(labels[rows]))
            writer.write_table(pyarrow.table(columns, schema=schema))


def _write_folder(path: Path, images: Images, labels: Labels | None, class_names: Sequence[str] | None) -> None:
    digits = max(5, len(str(len(images))))
    with new_folder(path, lambda _: False) as place:
        folders = {} if labels is None else class_folders(sorted({int(label) for label in labels}), class_names)
        for name in folders.values():
            (place / name).mkdir()
        for number, image in enumerate(images):
            parent = place if labels is None else place / folders[int(labels[number])]
            (parent / f"{number:0{digits}d}.png").write_bytes(_png(image))


def class_folders(labels: Sequence[int], class_names: Sequence[str] | None) -> dict[int, str]:
    """A folder name for each label: the class name where it is safe and unique, else made so with the label."""
    names: dict[int, str] = {}
    for label in labels:
        raw = class_names[label] if class_names is not None else str(label)
        safe = re.sub(r"[^\w .+-]", "_", raw).strip(" .")[:80]
        taken = {name.casefold() for name in names.values()}
        usable = bool(safe) and safe == raw and safe.casefold() not in taken
        names[label] = safe if usable else f"{label}-{safe}".rstrip("-")
    return names


def _png(image: Images) -> bytes:
    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()
