"""Downstream accuracy: train a classifier on generated images, score it on real test images.

Privacy: the accuracy is computed on real test images without noise and is not covered by any guarantee.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from understudy.evaluate.checks import (
    Images,
    Labels,
    check_every_class,
    check_images,
    check_labels,
    check_same_shape,
)
from understudy.evaluate.classifiers import ClassifierSetup, classifier_entry
from understudy.evaluate.cnn import CnnConfig


@dataclass(frozen=True)
class LabelledImages:
    """Byte images (number, channels, height, width) with one class each."""

    images: Images
    labels: Labels

    def checked(self, classes: int, name: str) -> LabelledImages:
        """The same set after its checks; ``name`` is what an error calls it."""
        images = check_images(self.images, f"{name} images")
        return LabelledImages(images, check_labels(self.labels, len(images), classes, f"{name} labels"))


@dataclass(frozen=True)
class DownstreamResult:
    """Accuracy (0 to 1) of one classifier on the test images, with how it came about."""

    classifier: str
    accuracy: float
    seconds: float
    trained_on: int
    offered: int  # training images there were; more than trained_on where the classifier's limit applied
    tested_on: int
    settings: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"name": self.classifier, "value": self.accuracy, **asdict(self)}


def cnn_accuracy(
    train_images: Images,
    train_labels: Labels,
    test_images: Images,
    test_labels: Labels,
    classes: int,
    config: CnnConfig | None = None,
) -> DownstreamResult:
    """Accuracy on the test images of the convolutional classifier trained on the training images."""
    setup = ClassifierSetup(classes, cnn=config)
    train, test = LabelledImages(train_images, train_labels), LabelledImages(test_images, test_labels)
    return downstream_accuracy("cnn", train, test, setup)


def downstream_accuracy(
    name: str, train: LabelledImages, test: LabelledImages, setup: ClassifierSetup
) -> DownstreamResult:
    """Accuracy on ``test`` of the registered classifier ``name`` trained on ``train``; nothing is chosen on it."""
    entry = classifier_entry(name)
    train, test = train.checked(setup.classes, "training"), test.checked(setup.classes, "test")
    check_same_shape(train.images, test.images, "training images", "test images")
    chosen = _subsample(train, entry.limit, setup.seed)
    check_every_class(chosen.labels, setup.classes, "training labels")
    started = time.perf_counter()
    classifier = entry.build(setup)
    classifier.fit(chosen.images, chosen.labels)
    accuracy = float(np.mean(classifier.predict(test.images) == test.labels))
    seconds = time.perf_counter() - started
    counts = (len(chosen.labels), len(train.labels), len(test.labels))
    return DownstreamResult(name, accuracy, seconds, *counts, settings=classifier.settings)


def _subsample(data: LabelledImages, limit: int, seed: int) -> LabelledImages:
    if len(data.labels) <= limit:
        return data
    chosen = np.sort(np.random.default_rng(seed).choice(len(data.labels), limit, replace=False))
    return replace(data, images=data.images[chosen], labels=data.labels[chosen])
