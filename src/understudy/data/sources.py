"""``load``: one door for every source, by name or by path."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from understudy.data import idx
from understudy.data.arrays import from_arrays
from understudy.data.catalog import is_known, known_names
from understudy.data.dataset import ImageDataset
from understudy.data.folder import read_folder, sub_folders
from understudy.data.named import load_named
from understudy.data.npz import array_names, read_array
from understudy.data.options import Declared, SourceOptions, require_records
from understudy.errors import InputError

_SPLITS = ("train", "test")
_IMAGE_ARRAYS = ("x", "images")
_LABEL_ARRAYS = ("y", "labels")
_CLIENT_ARRAYS = ("writer", "clients", "client_ids")
_Arrays = tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]


def load(
    source: str | Path,
    *,
    split: str = "train",
    records: int | None = None,
    classes: int | None = None,
    options: SourceOptions | None = None,
) -> ImageDataset:
    """A data set by name (digits, mnist, fashion-mnist, femnist) or from a path.

    A path is an ``.npz`` archive (x or images, y or labels, writer or clients; or x_train, y_train, x_test, y_test), a
    folder of PNG/JPEG files (flat, a sub-folder per class, or with ``options.clients`` a sub-folder per client), an IDX
    file or a folder of IDX files. A folder with nothing but ``train`` and ``test`` in it is entered by ``split``.

    For a path ``records`` is required, and ``classes`` where there are labels: both are published, so they are declared
    and never read from the data. Named sets are public and need neither.

    Privacy: reads private data into memory and releases nothing.
    """
    declared = Declared(records, classes, options or SourceOptions())
    if split not in _SPLITS:
        raise InputError(f"split: {split!r}; choose train or test")
    if isinstance(source, str) and is_known(source):
        return load_named(source, split, declared)
    if declared.options.min_images is not None:
        raise InputError("min_images: a filter of femnist only, because it looks at whole clients; leave it out")
    path = _existing(source)
    if declared.options.name is None:
        declared = declared.with_options(name=path.name.removesuffix(".npz"))
    if path.is_dir():
        return _load_folder(path, split, declared)
    if path.suffix == ".npz":
        return _finish(_read_npz(path, split, declared.options), declared)
    return _finish(_read_idx_file(path, split, declared.options), declared)


def _finish(arrays: _Arrays, declared: Declared) -> ImageDataset:
    images, labels, clients = arrays
    return from_arrays(
        images,
        labels,
        client_ids=clients,
        records=declared.records,
        classes=declared.classes,
        options=declared.options,
    )


def _existing(source: str | Path) -> Path:
    path = Path(source).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if not exists:
        close = difflib.get_close_matches(str(source), known_names(), n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; pass a path, or one of {', '.join(known_names())}"
        raise InputError(f"data: {str(source)!r} is neither an existing path nor a known data set{hint}")
    return path.resolve() if str(path) in (".", "..") else path


def _one_set_only(path: Path, split: str) -> None:
    if split != "train":
        raise InputError(f"split: {split!r} was asked, but {path} holds one set only; pass the path of the {split} set")


def _load_folder(path: Path, split: str, declared: Declared) -> ImageDataset:
    options = declared.options
    if any(idx.mnist_files(path, name) for name in _SPLITS):
        files = idx.mnist_files(path, split)
        if files is None:
            raise InputError(f"{path}: the IDX files of the {split} split are missing; add them")
        _no_clients(path, options)
        labels = None if options.unlabelled else idx.read_idx(files[1])
        return _finish((idx.read_idx(files[0]), labels, None), declared)
    inner = {folder.name for folder in sub_folders(path)}
    if inner and inner <= set(_SPLITS):
        if split not in inner:
            raise InputError(f"split: {split!r} was asked, but {path} has no folder {split}; add it")
        path = path / split
    else:
        _one_set_only(path, split)
    require_records(declared.records)  # before the images are decoded
    content = read_folder(path, declared.classes, options)
    declared = declared.with_options(class_names=content.class_names, size=None, channels=None)
    return _finish((content.images, content.labels, content.client_ids), declared)


def _read_npz(path: Path, split: str, options: SourceOptions) -> _Arrays:
    names = array_names(path)
    suffix = f"_{split}"
    if any(f"{name}{suffix}" in names for name in _IMAGE_ARRAYS):
        pass
    elif any(name in names for name in _IMAGE_ARRAYS):
        _one_set_only(path, split)
        suffix = ""
    else:
        raise InputError(
            f"{path}: holds {', '.join(names) or 'no arrays'}, but no images for {split};"
            f" name them x or images, or x_{split}"
        )

    def first(candidates: tuple[str, ...]) -> NDArray[Any] | None:
        present = [f"{name}{suffix}" for name in candidates if f"{name}{suffix}" in names]
        return read_array(path, present[0]) if present else None

    images = first(_IMAGE_ARRAYS)
    assert images is not None
    labels = None if options.unlabelled else first(_LABEL_ARRAYS)
    clients = first(_CLIENT_ARRAYS) if options.clients else None
    if options.clients and clients is None:
        raise InputError(f"{path}: clients=True, but there is no array writer{suffix} or clients{suffix}; add it")
    return images, labels, clients


def _read_idx_file(path: Path, split: str, options: SourceOptions) -> _Arrays:
    if not idx.looks_like_idx(path):
        raise InputError(f"{path}: not a known kind of file; pass an .npz archive, an IDX file or a folder of images")
    _one_set_only(path, split)
    _no_clients(path, options)
    images = idx.read_idx(path)
    if images.ndim < 3:
        raise InputError(f"{path}: holds {images.ndim}-dimensional data, not images; pass the file of the images")
    sibling = None if options.unlabelled else idx.sibling_labels(path)
    return images, None if sibling is None else idx.read_idx(sibling), None


def _no_clients(path: Path, options: SourceOptions) -> None:
    if options.clients:
        raise InputError(f"clients: {path} does not say who contributed what; leave clients out")
