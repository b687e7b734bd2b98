"""The Fréchet distance against the textbook formula, and streaming statistics against the batch formula."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.linalg
import torch

from understudy.errors import InputError
from understudy.evaluate.fid import FeatureStatistics, StreamingStatistics, frechet_distance


def statistics(features: np.ndarray) -> FeatureStatistics:
    return FeatureStatistics(len(features), features.mean(axis=0), np.cov(features, rowvar=False))


def stream(features: np.ndarray, sizes: list[int]) -> FeatureStatistics:
    streaming = StreamingStatistics(features.shape[1])
    start = 0
    for size in sizes:
        streaming.update(torch.from_numpy(features[start : start + size]))
        start += size
    assert start == len(features)
    return streaming.result()


def correlated(count: int, dimensions: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(dimensions, dimensions))
    return generator.normal(size=(count, dimensions)) @ mixing + generator.normal(size=dimensions)


@pytest.mark.parametrize(("dimensions", "count"), [(3, 50), (64, 500), (200, 1000)])
def test_equals_the_formula_with_a_matrix_square_root(dimensions: int, count: int) -> None:
    first, second = correlated(count, dimensions, 1), correlated(count, dimensions, 2)
    covariances = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1]).real
    difference = first.mean(axis=0) - second.mean(axis=0)
    expected = difference @ difference + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert frechet_distance(statistics(first), statistics(second)) == pytest.approx(expected, rel=1e-9, abs=1e-3)


class Features(torch.nn.Module):
    """Hands features through, where torchmetrics expects a network."""

    num_features = 64

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features


def test_equals_torchmetrics_on_the_same_features() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        from torchmetrics.image.fid import FrechetInceptionDistance

        oracle = FrechetInceptionDistance(feature=Features(), normalize=True).set_dtype(torch.float64)
        first, second = correlated(700, 64, 8), correlated(900, 64, 9)
        oracle.update(torch.from_numpy(first), real=True)
        oracle.update(torch.from_numpy(second), real=False)
        expected = float(oracle.compute())
    assert expected > 1
    assert frechet_distance(stream(first, [350] * 2), stream(second, [300] * 3)) == pytest.approx(expected, abs=1e-3)


def test_known_distance_of_two_gaussians() -> None:
    """Diagonal covariances: sum of squared differences of means and of standard deviations."""
    first = FeatureStatistics(10, np.array([0.0, 1.0]), np.diag([4.0, 9.0]))
    second = FeatureStatistics(10, np.array([3.0, 1.0]), np.diag([1.0, 25.0]))
    assert frechet_distance(first, second) == pytest.approx(9 + 1 + 4, abs=1e-12)


@pytest.mark.parametrize("count", [40, 5000])
def test_zero_for_identical_sets_even_where_the_covariance_is_singular(count: int) -> None:
    same = statistics(correlated(count, 100, 3))
    assert frechet_distance(same, same) == pytest.approx(0, abs=1e-3)


def test_symmetric() -> None:
    first, second = statistics(correlated(60, 100, 4)), statistics(correlated(900, 100, 5))
    assert frechet_distance(first, second) == pytest.approx(frechet_distance(second, first), rel=1e-6)


@pytest.mark.parametrize("sizes", [[1000], [1, 999], [300, 0, 300, 400], [10] * 100])
def test_streaming_equals_the_batch_formula(sizes: list[int]) -> None:
    features = correlated(1000, 20, 6)
    streamed = stream(features, sizes)
    assert streamed.count == 1000
    np.testing.assert_allclose(streamed.mean, features.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(streamed.covariance, np.cov(features, rowvar=False), rtol=1e-9, atol=1e-11)


def test_streaming_keeps_digits_when_the_mean_is_large() -> None:
    features = np.random.default_rng(7).normal(size=(500, 4)) * 1e-3 + 1e6
    np.testing.assert_allclose(stream(features, [50] * 10).covariance, np.cov(features, rowvar=False), rtol=1e-4)


def test_unlike_or_broken_features_are_refused() -> None:
    with pytest.raises(InputError, match="3 and 4 dimensions"):
        frechet_distance(statistics(correlated(9, 3, 0)), statistics(correlated(9, 4, 0)))
    streaming = StreamingStatistics(3)
    with pytest.raises(InputError, match=r"shape \(5, 4\)"):
        streaming.update(torch.zeros(5, 4))
    with pytest.raises(InputError, match="0 samples"):
        streaming.result()
    streaming.update(torch.tensor([[1.0, 2.0, float("nan")], [1.0, 2.0, 3.0]]))
    with pytest.raises(InputError, match="NaN"):
        streaming.result()
