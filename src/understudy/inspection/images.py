"""What an inspection does with images: small pictures of them, named changes, nearest neighbours, prototypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pictures = NDArray[np.float32]  # (N, height, width) in 0..1
Distances = NDArray[np.float32]
_NEIGHBOURS = 5
_ROWS_AT_ONCE = 2000
_CLUSTERS = 4


def small(images: NDArray[np.uint8], most: int = 16) -> Pictures:
    """Images (N, H, W) or (N, H, W, 3) as grey pictures of at most ``most`` pixels a side, in 0..1.

    Blocks of pixels are averaged: what is compared is what can be seen from some distance, and not single pixels.
    """
    grey = images.astype(np.float32) / 255
    grey = grey.mean(axis=3) if grey.ndim == 4 else grey
    factor = max(1, -(-max(grey.shape[1:]) // most))
    height, width = (side // factor * factor for side in grey.shape[1:])
    top, left = (grey.shape[1] - height) // 2, (grey.shape[2] - width) // 2
    cut = grey[:, top : top + height, left : left + width]
    blocks = cut.reshape(len(cut), height // factor, factor, width // factor, factor)
    return np.ascontiguousarray(blocks.mean(axis=(2, 4)), dtype=np.float32)


@dataclass(frozen=True)
class Change:
    """One change, its inverse, and how to say it of images: "about 30 % of them are ..."."""

    name: str
    words: str
    apply: Callable[[Pictures], Pictures]
    undo: Callable[[Pictures], Pictures]
    keeps_sides: bool = True  # False: height and width change places
    margin: float = 0.08  # share of all images up to which generators of the same data may differ


def _turn(quarters: int) -> Callable[[Pictures], Pictures]:
    return lambda images: np.rot90(images, quarters, (1, 2))


def _invert(images: Pictures) -> Pictures:
    return np.float32(1) - images


def _mirror(axis: int) -> Callable[[Pictures], Pictures]:
    return lambda images: np.flip(images, axis)


CHANGES = (
    Change("rotated-90", "turned by 90 degrees to the left", _turn(1), _turn(-1), keeps_sides=False),
    Change("rotated-180", "turned upside down (180 degrees)", _turn(2), _turn(2)),
    Change("rotated-270", "turned by 90 degrees to the right", _turn(-1), _turn(1), keeps_sides=False),
    Change("mirrored", "mirrored left to right", _mirror(2), _mirror(2)),
    Change("flipped", "flipped top to bottom", _mirror(1), _mirror(1)),
    # Normal images are never taken for inverted ones, so a small share of them says something already.
    Change("inverted", "inverted in intensity (dark for light)", _invert, _invert, margin=0.02),
)


def possible_changes(height: int, width: int) -> tuple[Change, ...]:
    """The changes that leave images of this size comparable: quarter turns need a square."""
    return tuple(change for change in CHANGES if change.keeps_sides or height == width)


def distances(images: Pictures, gallery: Pictures) -> Distances:
    """For each image the mean squared distance to its five nearest in the gallery; infinite for an empty gallery."""
    if not len(gallery) or not len(images):
        return np.full(len(images), np.inf, dtype=np.float32)
    flat, others = images.reshape(len(images), -1), gallery.reshape(len(gallery), -1)
    nearest = min(_NEIGHBOURS, len(others))
    lengths = np.square(others).sum(axis=1)
    found = []
    for start in range(0, len(flat), _ROWS_AT_ONCE):
        rows = flat[start : start + _ROWS_AT_ONCE]
        squared = np.square(rows).sum(axis=1)[:, np.newaxis] + lengths - 2 * rows @ others.T
        found.append(np.partition(squared, nearest - 1, axis=1)[:, :nearest].mean(axis=1))
    return np.maximum(np.concatenate(found), 0).astype(np.float32)


def closest(columns: list[Distances]) -> NDArray[np.intp]:
    """For each image the number of the gallery that it resembles most."""
    return np.stack(columns, axis=1).argmin(axis=1)


def halves(images: Pictures) -> tuple[Pictures, Pictures]:
    """A gallery, and images held out of it: what is judged never helped to make the judge."""
    middle = len(images) // 2
    return images[:middle], images[middle:]


@dataclass(frozen=True)
class Prototypes:
    """The mean of a class, and cluster centres with the share of images that each stands for, the largest first."""

    mean: NDArray[np.uint8]
    centres: NDArray[np.uint8]
    shares: tuple[float, ...]

    def row(self) -> NDArray[np.uint8]:
        """Mean and centres in one row."""
        return np.concatenate([self.mean[np.newaxis], self.centres])


def prototypes(images: NDArray[np.uint8]) -> Prototypes:
    """The prototypes of one class; clusters are found in small grey pictures and shown in full."""
    from sklearn.cluster import KMeans

    flat = small(images).reshape(len(images), -1)
    number = min(_CLUSTERS, len(np.unique(flat, axis=0)))
    members = KMeans(number, n_init=2, random_state=0).fit_predict(flat) if number > 1 else np.zeros(len(flat), int)
    order = np.argsort(-np.bincount(members, minlength=number))
    centres = np.stack([_mean(images[members == cluster]) for cluster in order])
    shares = tuple(float((members == cluster).mean()) for cluster in order)
    return Prototypes(_mean(images), centres, shares)


def _mean(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.round(images.mean(axis=0)).astype(np.uint8)
