"""Prototypes: a few images that stand for a class, namely its mean and the centres of its clusters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.inspection.changes import small

_CLUSTERS = 4


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
