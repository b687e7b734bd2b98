"""Who resembles whom: the mean squared distance of an image to its nearest neighbours in a gallery of others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from understudy.inspection.changes import Pictures

_NEIGHBOURS = 5
_ROWS_AT_ONCE = 2000

Distances = NDArray[np.float32]


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
