"""Loading the data sets known by name, with their public facts built in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.data import idx
from understudy.data.arrays import from_arrays
from understudy.data.catalog import KnownSet, known_set, require_located
from understudy.data.dataset import ImageDataset
from understudy.data.femnist import load_femnist
from understudy.data.npz import array_names, read_array
from understudy.data.options import Declared
from understudy.errors import InputError

_DIGITS_TEST_EVERY = 5


def load_named(name: str, split: str, declared: Declared) -> ImageDataset:
    """One of the known data sets; ``records`` and ``classes`` are built in and need not be declared."""
    known = known_set(name)
    if declared.options.value_range is not None:
        raise InputError(f"value_range: built in for {name}; leave it out")
    if declared.options.min_images is not None and name != "femnist":
        raise InputError("min_images: a filter of femnist only, because it looks at whole clients; leave it out")
    if name == "digits":
        images, labels = _digits(split)
        return _finish(known, images, labels, split, declared.with_options(value_range=(0.0, 16.0)))
    return load_known_from(require_located(known), known, split, declared)


def load_known_from(place: Path, known: KnownSet, split: str, declared: Declared) -> ImageDataset:
    """A known set from an archive or a folder of IDX files; its shape and labels are checked."""
    if known.name == "femnist":
        return load_femnist(place, split, declared)
    images, labels = read_pair(place, split)
    if images.shape[1:] != known.shape[1:]:
        raise InputError(
            f"{place}: images of shape {images.shape[1:]}, but {known.name} is {known.shape[1]}x{known.shape[2]};"
            " pass the path itself to `load` if it is another data set"
        )
    return _finish(known, images, labels, split, declared)


def _finish(
    known: KnownSet, images: NDArray[Any], labels: NDArray[Any], split: str, declared: Declared
) -> ImageDataset:
    options = declared.options
    if declared.classes not in (None, known.classes):
        raise InputError(f"classes: {declared.classes}, but {known.name} has {known.classes}; leave classes out")
    if options.clients:
        raise InputError(f"clients: {known.name} does not say who contributed what; leave clients out or use femnist")
    update: dict[str, Any] = {"name": options.name or known.name}
    if options.class_names is None and not options.unlabelled:
        update["class_names"] = known.class_names
    return from_arrays(
        images,
        labels,
        records=known.records[split] if declared.records is None else declared.records,
        classes=None if options.unlabelled else known.classes,
        options=options.model_copy(update=update),
    )


def _digits(split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bundled digits; records 0, 5, 10, ... are the test split, so both splits hold all writers' batches."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    held_out = np.arange(len(digits.images)) % _DIGITS_TEST_EVERY == 0
    chosen = held_out if split == "test" else ~held_out
    return digits.images[chosen], digits.target[chosen]


def read_pair(place: Path, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels of one split from an archive or a folder of IDX files."""
    if place.is_dir():
        files = idx.mnist_files(place, split)
        if files is None:
            raise InputError(f"{place}: the IDX files of the {split} split are missing; fetch or import the set again")
        return idx.read_idx(files[0]), idx.read_idx(files[1])
    names = (f"x_{split}", f"y_{split}")
    missing = [name for name in names if name not in array_names(place)]
    if missing:
        raise InputError(f"{place}: array {missing[0]!r} is missing; pass x_train, y_train, x_test and y_test")
    return read_array(place, names[0]), read_array(place, names[1])
