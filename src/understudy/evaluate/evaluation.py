"""All figures of a set of generated images in one call: checks first, then FID, Inception score, downstream accuracy.

Privacy: every figure here is computed with real data without noise. No certificate covers it, so each one carries the
stamp ``not private: do not publish`` unless the caller declares the real data to be public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from understudy.devices import choose_device, describe_device
from understudy.errors import InputError
from understudy.evaluate.checks import (
    Images,
    Labels,
    check_every_class,
    check_images,
    check_labels,
    check_same_shape,
)
from understudy.evaluate.classifiers import CLASSIFIERS, ClassifierSetup
from understudy.evaluate.cnn import CnnConfig, TrainedCnn, train_cnn
from understudy.evaluate.downstream import LabelledImages, downstream_accuracy
from understudy.evaluate.fid import FidConfig, LenetFeatures, check_counts, fid
from understudy.evaluate.inception import InceptionFeatures, Precision
from understudy.evaluate.inception_score import score_images, scorer_config
from understudy.evaluate.weights import find_weights

STAMP = "not private: do not publish"
DEFAULT_METRICS = ("fid", "is", "cnn")

Pair = tuple[Images, Labels]


@dataclass(frozen=True)
class EvaluationConfig:
    """Choices of an evaluation; the defaults follow the published protocol."""

    device: str = "auto"
    classes: int | None = None  # None: one more than the largest label of the real training set
    weights: Path | None = None  # of the Inception network; None: searched for
    precision: Precision = "fp32"
    fid: FidConfig = field(default_factory=FidConfig)
    real_data_private: bool = True
    seed: int = 0


@dataclass(frozen=True)
class Evaluation:
    """The figures of one set of generated images, ready for a result file or a report."""

    figures: tuple[dict[str, Any], ...]
    samples: int
    device: str
    private: bool

    def value(self, name: str) -> float | None:
        """The figure called ``name``, or None where it was not measured."""
        return next((float(figure["value"]) for figure in self.figures if figure["name"] == name), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the fields of a benchmark result, then every figure with its stamp."""
        return {
            "fid": self.value("fid"),
            "inception_score": self.value("is"),
            "cnn_accuracy": self.value("cnn"),
            "samples": self.samples,
            "device": self.device,
            "stamp": STAMP if self.private else None,
            "figures": [dict(figure) for figure in self.figures],
        }


def evaluate(
    images: Images,
    labels: Labels | None,
    real_train: Pair,
    real_test: Pair,
    metrics: Sequence[str] = DEFAULT_METRICS,
    config: EvaluationConfig | None = None,
) -> Evaluation:
    """Score generated images against real ones.

    ``metrics`` are names out of ``fid``, ``fid[lenet]``, ``is``, the registered classifiers, and ``downstream`` for all
    of these classifiers. All inputs and the weights are checked before the first figure is computed.

    Privacy: reads the real data without noise; see the module's note on the stamp.
    """
    config = config or EvaluationConfig()
    names = expand_metrics(metrics)
    run = _prepare(images, labels, (LabelledImages(*real_train), LabelledImages(*real_test)), names, config)
    stamp = STAMP if config.real_data_private else None
    figures = tuple({**run.figure(name), "stamp": stamp} for name in names)
    return Evaluation(figures, len(images), describe_device(choose_device(config.device)), config.real_data_private)


def expand_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """The metrics one by one, each once, ``downstream`` replaced by the classifiers it stands for."""
    names: list[str] = []
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        names += CLASSIFIERS if metric == "downstream" else [metric]
    known = ("fid", "fid[lenet]", "is", *CLASSIFIERS)
    for name in names:
        if name not in known:
            raise InputError(f"metrics: '{name}' is unknown; choose from {', '.join(known)}, downstream")
    if not names:
        raise InputError(f"metrics: none given; choose from {', '.join(known)}, downstream")
    return tuple(dict.fromkeys(names))


@dataclass
class _Run:
    """The checked inputs of one evaluation, and the classifier trained on real data once it is needed."""

    generated: LabelledImages
    real_train: LabelledImages
    real_test: LabelledImages
    classes: int
    config: EvaluationConfig
    inception: InceptionFeatures | None = None
    real_classifier: TrainedCnn | None = None

    def figure(self, name: str) -> dict[str, Any]:
        """One metric as plain data."""
        images, reference = self.generated.images, self.real_test.images
        if name == "fid" and self.inception is not None:
            return fid(images, reference, self.inception, self.config.fid).as_dict()
        if name == "fid[lenet]":
            return fid(images, reference, LenetFeatures(self.classifier()), self.config.fid).as_dict()
        if name == "is":
            classifier = self.classifier()
            accuracy = float(np.mean(classifier.predict(reference) == self.real_test.labels))
            return score_images(images, classifier, accuracy).as_dict()
        cnn = CnnConfig(device=self.config.device, seed=self.config.seed)
        setup = ClassifierSetup(self.classes, self.config.seed, cnn)
        return downstream_accuracy(name, self.generated, self.real_test, setup).as_dict()

    def classifier(self) -> TrainedCnn:
        """The classifier trained on the real training set, trained at most once."""
        if self.real_classifier is None:
            train, cnn = self.real_train, _scorer(self.config)
            self.real_classifier = train_cnn(train.images, train.labels, self.classes, cnn)
        return self.real_classifier


def _scorer(config: EvaluationConfig) -> CnnConfig:
    return scorer_config(config.device, config.seed)


def _prepare(
    images: Images,
    labels: Labels | None,
    real: tuple[LabelledImages, LabelledImages],
    names: tuple[str, ...],
    config: EvaluationConfig,
) -> _Run:
    """Check everything that can be checked before work starts."""
    train, test = real
    classes = config.classes or _count_classes(train.labels)
    train, test = train.checked(classes, "real training"), test.checked(classes, "real test")
    check_images(images, "images")
    check_same_shape(images, test.images, "images", "real test images")
    check_same_shape(train.images, test.images, "real training images", "real test images")
    check_every_class(train.labels, classes, "real training labels")
    generated = LabelledImages(images, _generated_labels(labels, len(images), classes, names))
    run = _Run(generated, train, test, classes, config)
    device = choose_device(config.device)
    if "fid[lenet]" in names:
        check_counts(len(images), len(test.images), _scorer(config).hidden, config.fid.allow_few)
    if "fid" in names:
        check_counts(len(images), len(test.images), InceptionFeatures.dimensions, config.fid.allow_few)
        run.inception = InceptionFeatures(find_weights(config.weights), device, config.precision)
    return run


def _count_classes(labels: Labels) -> int:
    if not isinstance(labels, np.ndarray) or labels.size == 0:
        raise InputError("real training labels: not an array, or empty; pass one label for each image")
    return int(labels.max()) + 1


def _generated_labels(labels: Labels | None, number: int, classes: int, names: tuple[str, ...]) -> Labels:
    """The checked labels of the generated images; without labels only metrics that need none may be asked for."""
    needing = [name for name in names if name in CLASSIFIERS]
    if labels is None:
        if needing:
            raise InputError(f"labels: none given, but {needing[0]} trains on them; pass labels or leave it out")
        return np.zeros(number, dtype=np.int64)
    checked = check_labels(labels, number, classes)
    if needing:
        check_every_class(checked, classes)
    return checked
