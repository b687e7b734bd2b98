"""Fréchet Inception distance (FID) between a set of images and a reference set.

Only the 2015 Inception network gives a figure called ``fid``. Without its weights, the same distance over the features
of a small classifier trained on the real data is offered as ``fid[lenet]``: of use to compare runs on one data set, not
to compare with published figures.

Privacy: the figure and the statistics of the reference set are computed from real data without noise. They are not
covered by any guarantee; the statistics are kept on disk only in a folder that the caller names (``private_cache``).
"""

from __future__ import annotations

import io
import time
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from understudy.errors import InputError
from understudy.evaluate.checks import Images, check_images, check_same_shape
from understudy.evaluate.cnn import PREDICTION_BATCH, Counter, TrainedCnn
from understudy.evaluate.inception import InceptionFeatures
from understudy.evaluate.private_cache import content_hash, keep, keep_json, kept_json
from understudy.evaluate.yardsticks import noise_images

PUBLISHED_SAMPLES, PUBLISHED_REFERENCE = 60_000, 10_000
_BOUND_IMAGES, _NOISE_IMAGES = 10_000, 2_500  # real ones and such of noise, to stand beside a score


@dataclass(frozen=True)
class FidConfig:
    """Choices of a Fréchet distance that do not change which network is used."""

    allow_few: bool = False  # score sets that are too small for a covariance of full rank, with a warning
    statistics_cache: Path | None = None  # folder for statistics of reference sets; private like the images
    listener: Counter | None = None  # hears how many of the generated images have passed through the network


@dataclass(frozen=True)
class FidResult:
    """A Fréchet distance with all that is needed to read it."""

    name: str  # "fid", or "fid[lenet]"
    value: float
    samples: int
    reference_samples: int
    network: str
    seconds: float
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**self.__dict__, "notes": list(self.notes)}


def fid(
    images: Images,
    reference: Images,
    network: FeatureNetwork,
    config: FidConfig | None = None,
    statistics: FeatureStatistics | None = None,
) -> FidResult:
    """Distance of ``images`` from ``reference``, which is the real test set in the published protocol.

    ``statistics`` are those of the reference set, where the caller has them already.
    """
    config = config or FidConfig()
    started = time.perf_counter()
    check_images(images, "images")
    check_images(reference, "reference")
    check_same_shape(images, reference)
    check_counts(len(images), len(reference), network.dimensions, config.allow_few)
    notes = _notes(len(images), len(reference), network.dimensions)
    real = statistics or reference_statistics(reference, network, config.statistics_cache)
    value = frechet_distance(real, feature_statistics(images, network, config.listener))
    name = "fid" if isinstance(network, InceptionFeatures) else f"fid[{network.name}]"
    seconds = time.perf_counter() - started
    return FidResult(name, value, len(images), len(reference), network.name, seconds, notes)


@dataclass(frozen=True)
class FidBounds:
    """Between what a distance lies: that of pure noise, and that of real training images."""

    noise: float
    real: float


def fid_bounds(
    train: Images, reference: Images, network: FeatureNetwork, config: FidConfig, statistics: FeatureStatistics
) -> FidBounds:
    """The distances of noise and of real training images from ``reference``, kept like its statistics.

    A few thousand images of each are enough to stand beside a score; fewer than a stable one needs are taken as they
    are, since there are no others.
    """
    path = None
    if config.statistics_cache is not None and network.key:
        words = f"frechet-bounds-1|{network.key}|{_BOUND_IMAGES}"
        path = config.statistics_cache / f"bounds-{content_hash(words, train, reference)}.json"
        kept = kept_json(path, "real")
        if kept is not None and isinstance(kept.get("noise"), float):
            return FidBounds(kept["noise"], kept["real"])
    real = train[np.sort(np.random.default_rng(0).permutation(len(train))[:_BOUND_IMAGES])]
    noise = feature_statistics(noise_images(train, _NOISE_IMAGES), network)
    found = [frechet_distance(statistics, each) for each in (noise, feature_statistics(real, network, config.listener))]
    if path is not None:
        keep_json(path, {"noise": found[0], "real": found[1]})
    return FidBounds(*found)


def check_counts(samples: int, reference: int, dimensions: int, allow_few: bool = False) -> None:
    """Refuse sets too small for a covariance of full rank over so many features, unless few are allowed."""
    for name, count in (("images", samples), ("reference", reference)):
        if count < 2 or (count <= dimensions and not allow_few):
            raise InputError(
                f"{name}: {count} images, but a stable score over {dimensions} features needs at least "
                f"{dimensions + 1}, and published figures use {PUBLISHED_SAMPLES} against {PUBLISHED_REFERENCE}; "
                "pass more images, or allow_few=True (--allow-few) for a biased score"
            )


def _notes(samples: int, reference: int, dimensions: int) -> tuple[str, ...]:
    """What a reader of the score must know about the number of images; too few are also warned of."""
    notes = []
    for name, count in (("images", samples), ("reference", reference)):
        if count <= dimensions:
            notes.append(f"{name}: {count} are too few for a stable score over {dimensions} features; it is biased")
            warnings.warn(notes[-1], stacklevel=3)
    if (samples, reference) != (PUBLISHED_SAMPLES, PUBLISHED_REFERENCE):
        notes.append(f"published figures use {PUBLISHED_SAMPLES} images against {PUBLISHED_REFERENCE}")
    return tuple(notes)


class FeatureNetwork(Protocol):
    """What a Fréchet distance needs of a network."""

    name: str
    key: str
    dimensions: int

    def batches(self, images: Images) -> Iterator[Tensor]:
        """Feature vectors of the images, batch by batch."""


class LenetFeatures:
    """The dense features of a classifier trained on the real data, for ``fid[lenet]``."""

    def __init__(self, classifier: TrainedCnn) -> None:
        self.classifier = classifier
        self.name = "lenet"
        self.key = ""  # trained afresh each time, so its statistics are never kept
        self.dimensions = classifier.config.hidden

    def batches(self, images: Images) -> Iterator[Tensor]:
        """The dense activations of the images."""
        for start in range(0, len(images), PREDICTION_BATCH):
            yield self.classifier.features(images[start : start + PREDICTION_BATCH])


def feature_statistics(images: Images, network: FeatureNetwork, listener: Counter | None = None) -> FeatureStatistics:
    """Mean and covariance of the features of all images, one batch in memory at a time."""
    statistics: StreamingStatistics | None = None
    for features in network.batches(images):
        statistics = statistics or StreamingStatistics(network.dimensions, features.device)
        statistics.update(features)
        if listener is not None:
            listener(statistics.count, len(images))
    if statistics is None:
        raise InputError("images: no image at all; pass at least two")
    return statistics.result()


def reference_statistics(images: Images, network: FeatureNetwork, cache: Path | None) -> FeatureStatistics:
    """As :func:`feature_statistics`, kept in the folder ``cache`` under the hash of the images and of the network."""
    if cache is None or not network.key:
        return feature_statistics(images, network)
    path = Path(cache) / f"statistics-{content_hash(f'frechet-1|{network.key}', images)}.npz"
    statistics = _load(path, network.dimensions)
    if statistics is None:
        statistics = feature_statistics(images, network)
        _save(path, statistics)
    return statistics


def _load(path: Path, dimensions: int) -> FeatureStatistics | None:
    """Kept statistics, or None where there are none or the file is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            statistics = FeatureStatistics(int(archive["count"]), archive["mean"], archive["covariance"])
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None
    whole = statistics.mean.shape == (dimensions,) and statistics.covariance.shape == (dimensions, dimensions)
    return statistics if whole and statistics.count >= 2 else None


def _save(path: Path, statistics: FeatureStatistics) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, count=statistics.count, mean=statistics.mean, covariance=statistics.covariance)
    keep(path, buffer.getvalue())


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
