"""Real images beside generated ones: of the same class, and the nearest, to see copies handed out. Never private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.data.dataset import ImageDataset
from understudy.errors import InputError
from understudy.release.release import Release
from understudy.report.pictures import planes_last

Floats = NDArray[np.float64]

_DRAWN, _SHOWN = 500, 10
_BLOCK = 4096  # real images compared at a time
_SEED = 1


@dataclass(frozen=True)
class NeighbourCheck:
    """Generated images with their nearest real ones, and how far away these are. All of it is private."""

    generated: NDArray[np.uint8]  # those shown, the closest pairs first
    real: NDArray[np.uint8]  # the nearest training image of each
    shown_distances: Floats
    distances: Floats  # of all generated images that were drawn
    held_out: Floats | None  # the same for real images that were not trained on

    @property
    def suspicious(self) -> float | None:
        """The share of generated images nearer to a training image than 99 of 100 held-out real images are."""
        if self.held_out is None:
            return None
        return float(np.mean(self.distances < np.quantile(self.held_out, 0.01)))


def check_neighbours(release: Release, train: ImageDataset, test: ImageDataset | None) -> NeighbourCheck:
    """Draw images and find the nearest training image of each, by the root mean square of the pixel differences.

    Privacy: not private at all. Pictures of real records and exact distances to them are returned; no event covers
    this, so whatever shows them carries the stamp ``not private: do not publish``.
    """
    if tuple(train.domain.shape) != tuple(release.domain.shape):
        raise InputError(
            f"data: images of {_size(train.domain.shape)}, but the generator draws {_size(release.domain.shape)}; "
            "pass --shape or the data that it was trained on"
        )
    drawn, _ = release.sample(_DRAWN, seed=_SEED)
    planes = drawn[:, np.newaxis] if drawn.ndim == 3 else drawn.transpose(0, 3, 1, 2)
    nearest, distances = _nearest(planes, train.images)
    held_out = None
    if test is not None and test.images.shape[1:] == train.images.shape[1:]:
        held_out = _nearest(test.images[:_DRAWN], train.images)[1]
    order = np.argsort(distances)[:_SHOWN]
    real = planes_last(train.images[nearest[order]])
    return NeighbourCheck(drawn[order], real, distances[order], distances, held_out)


def real_rows(release: Release, train: ImageDataset, columns: int) -> list[tuple[str | None, NDArray[np.uint8]]]:
    """The first real images of every class, under the names that the release gives to classes.

    Privacy: these are private records; whatever shows them carries the stamp.
    """
    planes = planes_last(train.images)
    if release.domain.classes is None or train.labels is None:
        return [(None, planes[:columns])]
    names = release.domain.class_names or [str(label) for label in range(release.domain.classes)]
    found = ((name, planes[np.flatnonzero(train.labels == label)[:columns]]) for label, name in enumerate(names))
    return [(name, images) for name, images in found if len(images)]


def _size(shape: Any) -> str:
    return "x".join(str(side) for side in shape)


def _nearest(images: NDArray[np.uint8], records_private: NDArray[np.uint8]) -> tuple[NDArray[np.int64], Floats]:
    """For each image the position and the distance (0 to 1) of the nearest record."""
    queries = images.reshape(len(images), -1).astype(np.float32) / 255
    squares = (queries**2).sum(axis=1)
    best, place = np.full(len(images), np.inf), np.zeros(len(images), dtype=np.int64)
    for start in range(0, len(records_private), _BLOCK):
        block = records_private[start : start + _BLOCK]
        rows = block.reshape(len(block), -1).astype(np.float32) / 255
        found = squares[:, None] - 2 * queries @ rows.T + (rows**2).sum(axis=1)[None]
        nearest = found.argmin(axis=1)
        values = found[np.arange(len(found)), nearest].astype(np.float64)
        closer = values < best
        best[closer], place[closer] = values[closer], start + nearest[closer]
    return place, np.sqrt(np.maximum(best, 0.0) / queries.shape[1])
