"""Checks of the arrays that enter an evaluation: each failure is one sentence, raised before any work is done.

Whoever calls an evaluation hands over images as every image library has them, channels last; ``as_planes`` is where
they become the (number, channels, height, width) that networks take, and all work behind it is done on those.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]

SMALLEST_SIDE, LARGEST_SIDE = 8, 64


def as_planes(images: NDArray[Any], name: str = "images") -> Images:
    """Images (number, height, width) or (number, height, width, channels) as (number, channels, height, width).

    Sides are at least 8, so an axis of 1 or 3 can only be the channels, and channels first are told from channels last.
    """
    _check_bytes(images, name)
    if images.ndim == 4 and images.shape[3] not in (1, 3) and images.shape[1] in (1, 3):
        raise InputError(
            f"{name}: shape {images.shape} has its channels first, but images are (number, height, width) or (number, "
            "height, width, channels); pass images.transpose(0, 2, 3, 1), or a data set of load as it is"
        )
    if images.ndim not in (3, 4):
        raise InputError(
            f"{name}: shape {images.shape}, but (number, height, width) for grey or (number, height, width, 3) for RGB "
            "is needed; reshape them"
        )
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return check_images(planes, name)


def _check_bytes(images: NDArray[Any], name: str) -> None:
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        found = getattr(images, "dtype", type(images).__name__)
        raise InputError(f"{name}: found {found}, but images are a NumPy array of uint8 (0..255); convert them first")


def check_images(images: NDArray[Any], name: str = "images") -> Images:
    """The images as uint8 of shape (number, channels, height, width), or an error that says what is wrong."""
    _check_bytes(images, name)
    if images.ndim != 4:
        raise InputError(f"{name}: shape {images.shape}, but (number, channels, height, width) is needed; reshape them")
    number, channels, height, width = images.shape
    if number == 0:
        raise InputError(f"{name}: no image at all; pass at least one")
    if channels not in (1, 3):
        raise InputError(f"{name}: {channels} channels, but images are grey (1) or RGB (3); reorder the axes")
    if not (SMALLEST_SIDE <= height <= LARGEST_SIDE and SMALLEST_SIDE <= width <= LARGEST_SIDE):
        sizes = f"{SMALLEST_SIDE}x{SMALLEST_SIDE} to {LARGEST_SIDE}x{LARGEST_SIDE}"
        raise InputError(f"{name}: {height}x{width} pixels, but sizes from {sizes} are supported; resize them")
    return images


def check_same_shape(images: Images, reference: Images, name: str = "images", other: str = "reference") -> None:
    """Refuse two sets whose images differ in channels or size: their scores would compare unlike things."""
    if images.shape[1:] != reference.shape[1:]:
        found, wanted = ("x".join(str(side) for side in array.shape[1:]) for array in (images, reference))
        raise InputError(f"{name}: {found}, but {other} are {wanted}; bring both to one shape")


def check_labels(labels: NDArray[Any], number: int, classes: int, name: str = "labels") -> Labels:
    """The labels as int64 of shape (number,), each from 0 to classes - 1."""
    if classes < 2:
        raise InputError(f"classes: {classes}, but a classifier needs at least 2; declare the classes of the data set")
    if not isinstance(labels, np.ndarray) or not np.issubdtype(labels.dtype, np.integer):
        found = getattr(labels, "dtype", type(labels).__name__)
        raise InputError(f"{name}: found {found}, but labels are a NumPy array of integers; encode the classes")
    if labels.shape != (number,):
        raise InputError(f"{name}: shape {labels.shape}, but there are {number} images; pass one label for each image")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        way_out = "number the classes from 0" if low < 0 else f"pass classes={high + 1} or drop them"
        raise InputError(f"{name}: found {wrong}, but classes={classes} was declared; {way_out}")
    return labels.astype(np.int64, copy=False)


def check_every_class(labels: Labels, classes: int, name: str = "labels") -> None:
    """Refuse training labels in which a declared class never occurs: no classifier could learn it."""
    missing = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if missing.size:
        shown = ", ".join(str(value) for value in missing[:5]) + (", ..." if missing.size > 5 else "")
        raise InputError(
            f"{name}: no image of class {shown} among {len(labels)}, but classes={classes} was declared; "
            "sample every class or declare fewer classes"
        )
