"""FID over networks small enough for a test: preprocessing, counts, cache, names."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import warnings
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.evaluate import fid as fid_module
from understudy.evaluate import inception as weights
from understudy.evaluate.cnn import CnnConfig, train_cnn
from understudy.evaluate.downstream import LabelledImages
from understudy.evaluate.fid import FidConfig, LenetFeatures, fid, reference_statistics
from understudy.evaluate.inception import InceptionFeatures, prepare

CPU = torch.device("cpu")


class Slice(torch.nn.Module):
    """Stands for the Inception network: its features are the first prepared values."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :2048]


class PixelFeatures:
    """Averages over the quarters of an image as features, counting how often images pass through."""

    name, key, dimensions = "pixels", "pixels-1", 4

    def __init__(self) -> None:
        self.calls = 0

    def batches(self, images: np.ndarray):  # type: ignore[no-untyped-def]
        self.calls += 1
        for start in range(0, len(images), 64):
            batch = torch.from_numpy(images[start : start + 64]).float()
            yield torch.nn.functional.adaptive_avg_pool2d(batch.mean(dim=1, keepdim=True), 2).flatten(1)


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InceptionFeatures:
    """The stand-in network, declared known."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(Slice()), buffer)
    (tmp_path / "network.pt").write_bytes(buffer.getvalue())
    known = {hashlib.sha256(buffer.getvalue()).hexdigest(): "stand-in"}
    monkeypatch.setattr(weights, "KNOWN_WEIGHTS", MappingProxyType(known))
    return InceptionFeatures(weights.find_weights(tmp_path / "network.pt"), CPU)


def noise(count: int, seed: int, high: int = 256, shape: tuple[int, int, int] = (1, 8, 8)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, (count, *shape), dtype=np.uint8)


def test_preparation_repeats_grey_and_scales_by_the_fixed_range() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 8, 8)
    prepared = prepare(images)
    assert prepared.shape == (3, 3, 299, 299)
    assert [float(value) for value in prepared[:, 0, 0, 0]] == pytest.approx([-1, 1, -0.6], abs=1e-6)
    assert torch.equal(prepared[:, 0], prepared[:, 2])


def test_preparation_is_bilinear_with_half_pixel_centres() -> None:
    ramp = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 2, 2)
    positions = np.clip((np.arange(299) + 0.5) * 2 / 299 - 0.5, 0, 1)
    np.testing.assert_allclose(prepare(ramp)[0, 0, 150].numpy(), positions * 2 - 1, atol=1e-5)


def test_features_pass_batch_by_batch(network: InceptionFeatures) -> None:
    images = noise(70, 0)
    pieces = list(network.batches(images))
    assert [len(piece) for piece in pieces] == [32, 32, 6]
    expected = prepare(torch.from_numpy(images)).flatten(1)[:, :2048]
    assert torch.allclose(torch.cat(pieces), expected)


def test_read_only_and_strided_images_are_welcome(network: InceptionFeatures) -> None:
    images = noise(20, 0)[::-2]
    images.flags.writeable = False
    assert sum(len(piece) for piece in network.batches(images)) == 10


def test_half_precision_is_another_key_and_gives_near_features(tmp_path: Path, network: InceptionFeatures) -> None:
    low = InceptionFeatures(weights.find_weights(tmp_path / "network.pt"), CPU, "fp16")
    images = noise(4, 1)
    exact, rounded = next(network.batches(images)), next(low.batches(images))
    assert rounded.dtype == torch.float32
    assert torch.allclose(exact, rounded, atol=0.001)
    assert low.key != network.key
    assert (network.name, low.name) == ("stand-in", "stand-in in fp16")
    with pytest.raises(InputError, match="precision: 'fp8' is unknown"):
        InceptionFeatures(weights.find_weights(tmp_path / "network.pt"), CPU, "fp8")  # type: ignore[arg-type]


def test_too_few_samples_say_how_many_are_needed(network: InceptionFeatures) -> None:
    with pytest.raises(InputError, match=r"images: 100 images.*needs at least 2049.*60000 against 10000.*allow_few"):
        fid(noise(100, 0), noise(3000, 1), network)
    with pytest.raises(InputError, match="reference: 50 images"):
        fid(noise(3000, 0), noise(50, 1), network)


def test_few_samples_may_be_allowed_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="too few for a stable score"):
        result = fid(noise(4, 0), noise(100, 1), PixelFeatures(), FidConfig(allow_few=True))
    assert any("too few" in note for note in result.notes)
    with pytest.raises(InputError, match="images: 1 images"):
        fid(noise(1, 0), noise(100, 1), PixelFeatures(), FidConfig(allow_few=True))


def test_identical_sets_score_zero_and_others_do_not() -> None:
    images = noise(300, 0)
    assert fid(images, images, PixelFeatures()).value == pytest.approx(0, abs=1e-6)
    assert fid(images, noise(300, 1, high=128), PixelFeatures()).value > 1000


def test_only_inception_is_called_fid(network: InceptionFeatures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fid_module, "frechet_distance", lambda first, second: 1.0)  # slow over 2048 features
    assert fid(noise(300, 0), noise(300, 1), PixelFeatures()).name == "fid[pixels]"
    with pytest.warns(UserWarning, match="too few"):
        result = fid(noise(20, 0), noise(20, 1), network, FidConfig(allow_few=True))
    assert (result.name, result.network, result.samples, result.reference_samples) == ("fid", "stand-in", 20, 20)


def test_lenet_distance_sees_the_difference_between_digits_and_noise(
    digits: tuple[LabelledImages, LabelledImages],
) -> None:
    train, test = digits
    classifier = train_cnn(train.images, train.labels, 10, CnnConfig(minimum_steps=100, device="cpu"))
    features = LenetFeatures(classifier)
    near = fid(train.images, test.images, features)
    far = fid(noise(600, 0), test.images, features)
    assert near.name == far.name == "fid[lenet]"
    assert near.value < far.value / 5


@pytest.mark.parametrize("other", [(1, 9, 9), (3, 8, 8)])
def test_sets_of_unlike_images_are_refused(other: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="images: 1x8x8, but reference are"):
        fid(noise(10, 0), noise(10, 0, shape=other), PixelFeatures())


def test_statistics_are_kept_and_found_again(tmp_path: Path) -> None:
    features, cache, images = PixelFeatures(), tmp_path / "private" / "cache", noise(300, 0)
    first = reference_statistics(images, features, cache)
    second = reference_statistics(images, features, cache)
    assert features.calls == 1
    np.testing.assert_array_equal(first.covariance, second.covariance)
    (kept,) = cache.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    reference_statistics(noise(300, 1), features, cache)
    features.key = "pixels-2"
    reference_statistics(images, features, cache)
    assert features.calls == 3
    assert len(list(cache.iterdir())) == 3


def test_a_damaged_cache_is_computed_again(tmp_path: Path) -> None:
    features, images = PixelFeatures(), noise(300, 0)
    expected = reference_statistics(images, features, tmp_path)
    (kept,) = tmp_path.iterdir()
    for content in (b"", b"PK\x03\x04 broken", kept.read_bytes()[:200]):
        kept.write_bytes(content)
        np.testing.assert_array_equal(reference_statistics(images, features, tmp_path).mean, expected.mean)
    assert features.calls == 4


def test_a_failed_write_leaves_nothing_and_costs_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **keywords: object) -> None:
        raise OSError("disk full")

    expected = reference_statistics(noise(300, 0), PixelFeatures(), None)
    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(UserWarning, match="was not kept .disk full.; the figures are not affected"):
        statistics = reference_statistics(noise(300, 0), PixelFeatures(), tmp_path)
    np.testing.assert_array_equal(statistics.covariance, expected.covariance)
    assert os.listdir(tmp_path) == []


def test_nothing_is_kept_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fid(noise(300, 0), noise(300, 1), PixelFeatures())
    assert os.listdir(tmp_path) == []
