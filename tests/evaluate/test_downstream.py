"""Downstream classifiers learn the digits, fit every supported shape, and refuse what they cannot learn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from understudy.devices import choose_device
from understudy.errors import InputError
from understudy.evaluate.classifiers import CLASSIFIERS, ClassifierEntry, ClassifierSetup
from understudy.evaluate.cnn import CnnConfig, CnnNetwork, train_cnn
from understudy.evaluate.downstream import LabelledImages, cnn_accuracy, downstream_accuracy, subsample
from understudy.evaluate.resnet import ResnetConfig

Digits = tuple[LabelledImages, LabelledImages]
QUICK = CnnConfig(epochs=1, minimum_steps=2, device="cpu")


def test_cnn_learns_the_digits(digits: Digits) -> None:
    train, test = digits
    config = CnnConfig(device="cpu")
    result = cnn_accuracy(train.images, train.labels, test.images, test.labels, 10, config)
    assert result.accuracy > 0.95
    assert (result.trained_on, result.offered, result.tested_on) == (1347, 1347, 450)
    assert "32 and 64 kernels" in result.settings
    assert result.parameters == 53_002
    assert result.as_dict()["value"] == result.accuracy


@pytest.mark.parametrize("name", [name for name in CLASSIFIERS if name not in ("cnn", "resnet")])
def test_every_other_classifier_learns_the_digits(name: str, digits: Digits) -> None:
    result = downstream_accuracy(name, *digits, ClassifierSetup(10))
    assert result.accuracy > 0.78
    assert (result.classifier, result.note) == (name, None)
    assert result.settings


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_generator_that_collapsed_costs_no_figure(name: str) -> None:
    test = replace(image_set(50, 5), images=np.random.default_rng(0).integers(0, 256, (50, 1, 8, 8), dtype=np.uint8))
    setup = ClassifierSetup(5, cnn=QUICK, resnet=ResnetConfig(epochs=1, minimum_steps=2, device="cpu"))
    result = downstream_accuracy(name, image_set(100, 5), test, setup)
    assert 0 < result.accuracy < 0.5
    assert (result.note is not None) == (name in ("adaboost", "lda"))


def test_a_subsample_keeps_every_class_and_does_not_change_with_the_call(digits: Digits) -> None:
    train, _ = digits
    rare = replace(train, labels=np.where(np.arange(len(train.labels)) == 7, 10, train.labels))
    chosen = subsample(rare, 50, ClassifierSetup(11, seed=3))
    assert len(chosen.labels) == 50
    assert set(chosen.labels) == set(range(11))
    np.testing.assert_array_equal(chosen.images, subsample(rare, 50, ClassifierSetup(11, seed=3)).images)
    assert not np.array_equal(chosen.images, subsample(rare, 50, ClassifierSetup(11, seed=4)).images)
    assert subsample(rare, 1347, ClassifierSetup(11)) is rare


def test_same_seed_same_network_and_the_callers_randomness_is_left_alone(digits: Digits) -> None:
    train, test = digits
    state = torch.random.get_rng_state()
    first, second = (train_cnn(train.images, train.labels, 10, QUICK).probabilities(test.images) for _ in range(2))
    np.testing.assert_allclose(first, second, atol=1e-5)
    assert torch.equal(torch.random.get_rng_state(), state)
    other = train_cnn(train.images, train.labels, 10, replace(QUICK, seed=1)).probabilities(test.images)
    assert not np.allclose(first, other, atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13), (1, 28, 28), (3, 64, 64)])
@pytest.mark.parametrize("deep", [False, True])
def test_the_network_fits_every_supported_shape(shape: tuple[int, int, int], deep: bool) -> None:
    config = replace(QUICK, convolutions=2 if deep else 1, normalise=deep)
    network = CnnNetwork(shape, 7, config).eval()
    assert network(torch.zeros(2, *shape)).shape == (2, 7)
    assert network.features(torch.zeros(2, *shape)).shape == (2, config.hidden)


def test_a_handful_of_images_is_enough_to_train() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8)
    trained = train_cnn(images, np.array([0, 1, 1]), 2, QUICK)
    np.testing.assert_allclose(trained.probabilities(images).sum(axis=1), 1)


def test_epochs_are_fixed_in_advance_and_small_sets_get_more() -> None:
    config = CnnConfig(epochs=12, minimum_steps=500, batch=256)
    assert config.schedule(60_000) == (256, 234, 12)
    assert config.schedule(1347) == (84, 16, 32)
    assert config.schedule(10) == (10, 1, 500)


def test_a_classifier_with_a_limit_says_how_many_it_used(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ClassifierEntry(CLASSIFIERS["logistic_regression"].build, cost=1, limit=500)
    monkeypatch.setattr("understudy.evaluate.classifiers.CLASSIFIERS", {"limited": entry})
    result = downstream_accuracy("limited", *digits, ClassifierSetup(10))
    assert (result.trained_on, result.offered) == (500, 1347)


def image_set(count: int = 20, classes: int = 2, shape: tuple[int, ...] = (1, 8, 8)) -> LabelledImages:
    return LabelledImages(np.zeros((count, *shape), dtype=np.uint8), np.arange(count) % classes)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (LabelledImages(np.zeros((4, 1, 8, 8)), np.arange(4)), "found float64, but images are"),
        (LabelledImages([[1]], np.arange(1)), "found list, but images are"),  # type: ignore[arg-type]
        (LabelledImages(np.zeros((4, 8, 8), np.uint8), np.arange(4)), r"shape \(4, 8, 8\)"),
        (image_set(shape=(2, 8, 8)), "2 channels"),
        (image_set(shape=(1, 7, 8)), "7x8 pixels.*8x8 to 64x64"),
        (image_set(shape=(1, 8, 65)), "8x65 pixels"),
        (image_set(shape=(1, 9, 9)), "training images: 1x9x9, but test images are 1x8x8"),
        (LabelledImages(np.zeros((0, 1, 8, 8), np.uint8), np.arange(0)), "no image at all"),
        (replace(image_set(), labels=np.arange(3)), "shape .3,., but there are 20 images"),
        (replace(image_set(), labels=np.zeros(20)), "found float64, but labels are"),
        (image_set(classes=13), "training labels: found 12, but classes=10 was declared; pass classes=13 or drop them"),
        (replace(image_set(), labels=np.full(20, -1)), "found -1.*number the classes from 0"),
        (image_set(classes=9), "no image of class 9 among 20, but classes=10 was declared"),
        (image_set(classes=2), r"no image of class 2, 3, 4, 5, 6, \.\.\. among 20"),
    ],
)
def test_bad_training_sets_are_refused(train: LabelledImages, message: str) -> None:
    with pytest.raises(InputError, match=message):
        downstream_accuracy("cnn", train, image_set(classes=10), ClassifierSetup(10, cnn=QUICK))


def test_unknown_names_and_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="classifier: 'svm' is unknown; choose from mlp, cnn"):
        downstream_accuracy("svm", image_set(), image_set(), ClassifierSetup(2))
    with pytest.raises(InputError, match="classes: 1, but a classifier needs at least 2"):
        downstream_accuracy("cnn", image_set(), image_set(), ClassifierSetup(1))
    with pytest.raises(InputError, match="epochs: 0"):
        CnnConfig(epochs=0)
    with pytest.raises(InputError, match="dropout: 1"):
        CnnConfig(dropout=1)


@pytest.mark.parametrize(("name", "message"), [("gpu", "'gpu' is unknown"), ("meta", "'meta' is not supported")])
def test_unknown_devices_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose_device(name)


def test_cuda_without_a_card_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(InputError, match="no usable CUDA device; pass auto or cpu"):
        choose_device("cuda")
