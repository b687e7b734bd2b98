"""Mean and covariance of features, gathered batch by batch in float64, and the Fréchet distance between two sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from understudy.errors import InputError


@dataclass(frozen=True)
class FeatureStatistics:
    """Number of samples, mean and unbiased covariance of a set of feature vectors."""

    count: int
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @property
    def dimensions(self) -> int:
        """Length of a feature vector."""
        return len(self.mean)


class StreamingStatistics:
    """Gathers :class:`FeatureStatistics` from batches; only one batch is in memory at a time.

    Each batch is centred by its own mean and merged with the pairwise update of Chan, Golub and LeVeque, so features
    with a large mean and a small spread lose no digits.
    """

    def __init__(self, dimensions: int, device: torch.device | None = None) -> None:
        self.count = 0
        self.mean = torch.zeros(dimensions, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(dimensions, dimensions, dtype=torch.float64, device=device)

    def update(self, features: Tensor) -> None:
        """Add a batch of feature vectors, one in each row."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise InputError(
                f"features: shape {tuple(features.shape)}, but rows of {len(self.mean)} are needed; "
                "pass one row for each image"
            )
        batch = features.to(device=self.mean.device, dtype=torch.float64)
        added = len(batch)
        if added == 0:
            return
        batch_mean = batch.mean(dim=0)
        centred = batch - batch_mean
        total = self.count + added
        shift = batch_mean - self.mean
        self.scatter += centred.T @ centred + torch.outer(shift, shift) * (self.count * added / total)
        self.mean += shift * (added / total)
        self.count = total

    def result(self) -> FeatureStatistics:
        """The statistics of all batches so far."""
        if self.count < 2:
            raise InputError(f"features: {self.count} samples, but a covariance needs at least 2; pass more images")
        covariance = (self.scatter / (self.count - 1)).cpu().numpy()
        statistics = FeatureStatistics(self.count, self.mean.cpu().numpy().copy(), (covariance + covariance.T) / 2)
        if not (np.isfinite(statistics.mean).all() and np.isfinite(covariance).all()):
            raise InputError("features: found NaN or infinite values; use precision='fp32' or check the network")
        return statistics


def frechet_distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """Squared distance of the means plus ``tr(A + B - 2 (A B)^(1/2))`` of the covariances A and B.

    ``A B`` has the eigenvalues of ``F^T B F`` where ``A = F F^T``. That matrix is symmetric: its eigenvalues are real
    and never negative but for rounding, and no square root of a general matrix is needed, even where A is singular.
    """
    if first.dimensions != second.dimensions:
        raise InputError(
            f"features: {first.dimensions} and {second.dimensions} dimensions; use the same network for both sets"
        )
    difference = first.mean - second.mean
    values, vectors = np.linalg.eigh(first.covariance)
    factor = vectors * np.sqrt(np.clip(values, 0, None))
    product = factor.T @ second.covariance @ factor
    roots = np.sqrt(np.clip(np.linalg.eigvalsh((product + product.T) / 2), 0, None))
    traces = float(np.trace(first.covariance) + np.trace(second.covariance))
    return max(0.0, float(difference @ difference) + traces - 2 * float(roots.sum()))
