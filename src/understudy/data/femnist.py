"""Federated EMNIST: handwriting by writer, with the public choices that papers make about it.

The archive holds ``x`` (N, 28, 28) with black ink on white, ``y`` (0-9, A-Z, a-z) and ``writer``. Ink is made white on
black as in MNIST (255 - x). Every tenth image of a writer is the test split, so that all writers are in both.

Privacy: leaving out writers with few images looks at a writer as a whole. For the unit *client* that is a choice each
client makes for itself. For the unit *record* it is part of the definition of this public benchmark: on data of your
own, one record more or less could bring in or drop a whole writer, so do not filter there.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.data.arrays import from_arrays, map_values
from understudy.data.columns import normalise_labels
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Declared, SourceOptions
from understudy.data.npz import array_names, read_array
from understudy.errors import InputError

CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
MERGED_CLASS_NAMES = tuple(string.digits + string.ascii_uppercase)
_TEST_EVERY = 10
# Published sizes of the reference archive: (records in train, records in test, writers) by smallest number of images.
_NOMINAL = {1: (66_128, 6_991, 710), 20: (65_521, 6_960, 652), 100: (55_642, 6_007, 359)}


def load_femnist(path: Path, split: str, declared: Declared) -> ImageDataset:
    """FEMNIST with 62 classes, or with 36 (``classes=36``: digits and letters of either case).

    ``options.min_images`` leaves out writers with fewer images in both splits together; the sizes for 1 (default), 20
    and 100 are built in, others are declared with ``records`` and ``options.nominal_clients``.
    """
    classes, options = declared.classes, declared.options
    if classes not in (None, 62, 36):
        raise InputError(f"classes: {classes}, but femnist has 62 classes, or 36 with letters of either case merged")
    if path.suffix != ".npz":
        raise InputError(f"{path}: femnist is read from an .npz archive; pass one with arrays x, y and writer")
    missing = {"x", "y", "writer"} - set(array_names(path))
    if missing:
        raise InputError(f"{path}: array {sorted(missing)[0]!r} is missing; femnist needs x, y and writer")
    images, labels, writers = (read_array(path, name) for name in ("x", "y", "writer"))
    _check_archive(path, images, labels, writers)
    chosen = _chosen(writers, split, options.min_images or 1)
    if not chosen.any():
        raise InputError(f"min_images: no writer has {options.min_images} images; pass a smaller number")
    if classes == 36:
        labels = np.where(labels >= 36, labels - 26, labels)
    nominal_records, nominal_writers = _nominal(split, declared.records, options)
    as_people = options.person is not None
    names = MERGED_CLASS_NAMES if classes == 36 else CLASS_NAMES
    update = {
        "name": options.name or "femnist",
        "class_names": None if options.unlabelled else options.class_names or names,
        "nominal_people" if as_people else "nominal_clients": nominal_writers,
    }
    return from_arrays(
        255 - images[chosen],
        labels[chosen],
        client_ids=None if as_people else writers[chosen],
        people=writers[chosen] if as_people else None,
        records=nominal_records,
        classes=None if options.unlabelled else len(names),
        options=options.model_copy(update=update),
    )


def _check_archive(path: Path, images: NDArray[Any], labels: NDArray[Any], writers: NDArray[Any]) -> None:
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
        raise InputError(
            f"{path}: array 'x' is {images.dtype} of shape {images.shape}; pass uint8 of shape (N, 28, 28)"
        )
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise InputError(f"{path}: array 'y' is {labels.dtype} of shape {labels.shape}; pass one class per image")
    if writers.dtype.kind not in "iu" or writers.shape != images.shape[:1]:
        raise InputError(f"{path}: array 'writer' is {writers.dtype} of shape {writers.shape}; pass one per image")


def _chosen(writers: NDArray[Any], split: str, min_images: int) -> NDArray[np.bool_]:
    """Which records belong to the split: by their position among the images of their writer."""
    _, dense, counts = np.unique(writers, return_inverse=True, return_counts=True)
    order = np.argsort(dense, kind="stable")
    starts = np.cumsum(counts) - counts
    position = np.empty(len(writers), dtype=np.int64)
    position[order] = np.arange(len(writers)) - starts[dense[order]]
    held_out = position % _TEST_EVERY == _TEST_EVERY - 1
    chosen: NDArray[np.bool_] = (counts[dense] >= min_images) & (held_out == (split == "test"))
    return chosen


def _nominal(split: str, records: int | None, options: SourceOptions) -> tuple[int, int]:
    """Declared sizes: what the caller says, else the published sizes for the documented filters."""
    published = _NOMINAL.get(options.min_images or 1)
    declared = options.nominal_clients if options.person is None else options.nominal_people
    if published is None and (records is None or declared is None):
        raise InputError(
            f"min_images: no published size for {options.min_images}; use 1, 20 or 100,"
            " or declare records=N and nominal_clients=N (or nominal_people=N)"
        )
    train, test, clients = published or (0, 0, 0)
    default = test if split == "test" else train
    return (default if records is None else records), declared or clients


def read_leaf(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays x, y and writer from the JSON files that LEAF's preprocessing writes (``data/all_data``)."""
    images: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int64]] = []
    names: list[str] = []
    for path in sorted(folder.glob("*.json")):
        try:
            users = json.loads(path.read_text())["user_data"]
            for name, content in users.items():
                pixels = np.asarray(content["x"], dtype=np.float64).reshape(-1, 28, 28)
                images.append(map_values(pixels, (0.0, 1.0)))
                labels.append(normalise_labels(np.asarray(content["y"]), len(pixels), len(CLASS_NAMES)))
                names.extend([name] * len(pixels))
        except InputError:
            raise
        except Exception as error:  # anything may lie where LEAF has its lists
            raise InputError(f"{path}: not a FEMNIST file as LEAF writes it ({error!r}); create it again") from None
    if not names:
        raise InputError(f"{folder}: no JSON file of LEAF in it; pass its data/all_data folder or an .npz archive")
    distinct, writers = np.unique(np.array(names), return_inverse=True)
    return {
        "x": np.concatenate(images),
        "y": np.concatenate(labels),
        "writer": writers.astype(np.int64),
        "writer_names": distinct,
    }
