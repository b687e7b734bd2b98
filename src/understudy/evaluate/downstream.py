"""Downstream accuracy: train a classifier on generated images, score it on real test images.

Privacy: the accuracy is computed on real test images without noise and is not covered by any guarantee.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.evaluate.checks import Images, Labels, check_every_class, check_images, check_labels, check_same_shape
from understudy.evaluate.classifiers import ClassifierSetup, classifier_entry

if TYPE_CHECKING:
    from understudy.evaluate.cnn import CnnConfig, Counter


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
    cpu_seconds: float | None = None  # of the processor, over all cores: what a busy machine does not stretch
    note: str | None = None  # set where it could not learn from the images
    memory_mb: int | None = None  # most memory its process held; None where it shared the caller's process
    parameters: int | None = None  # of a network: how many numbers it learnt

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
    name: str, train: LabelledImages, test: LabelledImages, setup: ClassifierSetup, listener: Counter | None = None
) -> DownstreamResult:
    """Accuracy on ``test`` of the registered classifier ``name`` trained on ``train``; nothing is chosen on it.

    ``listener`` hears of the epochs of a network.
    """
    entry = classifier_entry(name)
    train, test = train.checked(setup.classes, "training"), test.checked(setup.classes, "test")
    check_same_shape(train.images, test.images, "training images", "test images")
    chosen = subsample(train, entry.most_images(setup.fast), setup)
    check_every_class(chosen.labels, setup.classes, "training labels")
    started, worked = time.perf_counter(), time.process_time()
    classifier = entry.build(setup)
    classifier.fit(chosen.images, chosen.labels, listener)
    accuracy = float(np.mean(classifier.predict(test.images) == test.labels))
    seconds, work = time.perf_counter() - started, time.process_time() - worked
    counts = (len(chosen.labels), len(train.labels), len(test.labels))
    size = classifier.parameters
    return DownstreamResult(
        name, accuracy, seconds, *counts, classifier.settings, work, classifier.note, parameters=size
    )


def subsample(data: LabelledImages, limit: int, setup: ClassifierSetup) -> LabelledImages:
    """At most ``limit`` images, drawn evenly; a class that would be missed keeps one of its images."""
    if len(data.labels) <= limit:
        return data
    order = np.random.default_rng(setup.seed).permutation(len(data.labels))
    first_of_class = np.unique(data.labels[order], return_index=True)[1]
    position = np.arange(len(order))
    position[first_of_class] -= len(order)  # the first image of each class comes before all others
    chosen = np.sort(order[np.argsort(position, kind="stable")[:limit]])
    return replace(data, images=data.images[chosen], labels=data.labels[chosen])
