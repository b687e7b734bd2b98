"""All figures of a set of generated images in one call: checks first, then FID, Inception score, downstream accuracy.

Privacy: every figure here is computed with real data without noise. No certificate covers it, so each one carries the
stamp ``not private: do not publish`` unless the caller declares the real data to be public. The same holds for what is
kept in the cache, where the caller names one: see ``private_cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy.data.dataset import ImageDataset
from understudy.devices import choose_device, describe_device
from understudy.errors import InputError
from understudy.evaluate.calibration import ratio, reference_accuracies, summarise
from understudy.evaluate.checks import Images, Labels, as_planes, check_every_class, check_labels, check_same_shape
from understudy.evaluate.classifiers import (
    CLASSIFIERS,
    FAST_EPOCHS,
    RESNET,
    ClassifierSetup,
    check_installed,
    table_classifiers,
)
from understudy.evaluate.cnn import CnnConfig, Counter, TrainedCnn
from understudy.evaluate.downstream import LabelledImages
from understudy.evaluate.fid import (
    FeatureNetwork,
    FidConfig,
    LenetFeatures,
    check_counts,
    fid,
    fid_bounds,
    reference_statistics,
)
from understudy.evaluate.inception import FeaturePrecision, InceptionFeatures, find_weights
from understudy.evaluate.inception_score import inception_score, score_images, scorer_config, trained_scorer
from understudy.evaluate.parallel import Crew, Listeners, downstream_accuracies
from understudy.evaluate.private_cache import check_folder
from understudy.evaluate.resnet import ResnetConfig
from understudy.evaluate.spread import SpreadFeatures
from understudy.evaluate.yardsticks import NO_CLASS, NOISE, accuracy_yardstick, chance_accuracy, score_yardstick

STAMP = "not private: do not publish"
OWN_CLASSIFIER = "own_classifier"
DEFAULT_METRICS = ("fid", "is", "cnn")  # and the residual network, where images are in colour

RealImages = ImageDataset | tuple[Images, Labels]  # as ``load`` gives them, or arrays: images with channels last


@dataclass(frozen=True)
class EvaluationConfig:
    """Choices of an evaluation; the defaults follow the published protocol."""

    device: str = "auto"
    classes: int | None = None  # None: one more than the largest label of the real training set
    weights: Path | None = None  # of the Inception network; None: searched for
    precision: FeaturePrecision = "fp32"
    fid: FidConfig = field(default_factory=FidConfig)
    real_data_private: bool = True
    seed: int = 0
    fast: bool = False  # classifiers train on fewer images and for fewer epochs; the result says what was left out
    cache: Path | None = None  # folder for what follows from the real data alone; private like the data
    reference: bool = True  # beside each score what real images give in its place; False saves the time it takes
    crew: Crew = field(default_factory=Crew)  # who trains the downstream classifiers
    processes: int = 1  # that compute the features of the Inception network
    listener: Callable[[str, int, int], None] | None = None  # hears of other work: what, how many of how many are done

    def heard_by(self, listeners: Listeners) -> EvaluationConfig:
        """The same with other listeners."""
        crew = replace(self.crew, listener=listeners.classifiers, counts=listeners.counts)
        return replace(self, crew=crew, listener=listeners.counts)

    @property
    def cnn(self) -> CnnConfig:
        """The downstream CNN."""
        config = CnnConfig(device=self.device, seed=self.seed)
        return replace(config, epochs=FAST_EPOCHS) if self.fast else config

    @property
    def resnet(self) -> ResnetConfig:
        """The residual network, for colour."""
        config = ResnetConfig(device=self.device, seed=self.seed)
        return replace(config, epochs=FAST_EPOCHS) if self.fast else config

    @property
    def scorer(self) -> CnnConfig:
        """The classifier behind the Inception score and ``fid[lenet]``."""
        return scorer_config(self.device, self.seed, self.fast)


@dataclass(frozen=True)
class Evaluation:
    """The figures of one set of generated images, ready for a result file or a report."""

    figures: tuple[dict[str, Any], ...]
    samples: int
    device: str
    private: bool
    left_out: tuple[str, ...] = ()  # what the fast mode did not do

    def value(self, name: str) -> float | None:
        """The figure called ``name``, or None where it was not measured."""
        return next((float(figure["value"]) for figure in self.figures if figure["name"] == name), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the fields of a benchmark result, then every figure with its stamp."""
        return {
            "fid": self.value("fid"),
            "inception_score": self.value("is"),
            "cnn_accuracy": self.value("cnn"),
            **({} if self.value("resnet") is None else {"resnet_accuracy": self.value("resnet")}),
            "average_accuracy": self.value("average_accuracy"),
            "calibrated_accuracy": self.value("calibrated_accuracy"),
            "samples": self.samples,
            "device": self.device,
            "stamp": STAMP if self.private else None,
            "left_out": list(self.left_out),
            "figures": [dict(figure) for figure in self.figures],
        }


def evaluate(
    images: Images,
    labels: Labels | None,
    real_train: RealImages,
    real_test: RealImages,
    metrics: Sequence[str] | None = None,
    config: EvaluationConfig | None = None,
) -> Evaluation:
    """Score generated images against real ones.

    Images are 8-bit, (number, height, width) for grey and (number, height, width, 3) for RGB, as ``Release.sample``
    draws them; real ones are data sets of ``load`` or pairs of such an array and its labels.
    ``metrics`` are names out of ``fid``, ``fid[lenet]``, ``is``, the registered classifiers, and ``downstream`` for the
    thirteen of the published tables with their average and their calibrated accuracy, and in colour for ``resnet``
    beside them; None: ``fid``, ``is``, ``cnn`` and in colour ``resnet``. Beside each score stands its yardstick: what
    chance gives, and what real images give in its place, for which classifiers are trained on the real data too, once
    for each data set where there is a cache. All inputs and the weights are checked before any figure is computed.

    Privacy: reads the real data without noise; see the module's note on the stamp.
    """
    config = config or EvaluationConfig()
    planes = as_planes(images)
    metrics = with_colour(DEFAULT_METRICS, planes.shape[1]) if metrics is None else metrics
    names = expand_metrics(metrics, planes.shape[1])
    real = (_labelled(real_train, "real training"), _labelled(real_test, "real test"))
    run = _prepare(planes, labels, real, names, config)
    stamp = STAMP if config.real_data_private else None
    found = {name: run.figure(name) for name in names if name not in CLASSIFIERS}
    found |= run.downstream([name for name in names if name in CLASSIFIERS], calibrate="downstream" in metrics)
    order = [*names, *(name for name in found if name not in names)]
    figures = tuple({**found[name], "stamp": stamp} for name in order)
    device = describe_device(choose_device(config.device))
    return Evaluation(figures, len(images), device, config.real_data_private, _left_out(figures, config))


def with_colour(metrics: Sequence[str], channels: int) -> tuple[str, ...]:
    """The metrics, and the residual network where images are in colour."""
    return (*metrics, *((RESNET,) if channels == 3 else ()))


def expand_metrics(metrics: Sequence[str], channels: int = 1) -> tuple[str, ...]:
    """The metrics one by one, each once, ``downstream`` replaced by the classifiers it stands for."""
    names: list[str] = []
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        names += with_colour(table_classifiers(), channels) if metric == "downstream" else [metric]
    known = ("fid", "fid[lenet]", "is", *CLASSIFIERS)
    for name in names:
        if name not in known:
            raise InputError(f"metrics: '{name}' is unknown; choose from {', '.join(known)}, downstream")
    if not names:
        raise InputError(f"metrics: none given; choose from {', '.join(known)}, downstream")
    return tuple(dict.fromkeys(names))


def own_classifier_figure(named: Labels, labels: Labels, config: EvaluationConfig) -> dict[str, Any]:
    """The accuracy of the classifier that a release brings along, beside chance; real images have no such one."""
    accuracy = float(np.mean(named == labels))
    beside = accuracy_yardstick(accuracy, chance_accuracy(labels), None, len(labels), "no classifier")
    return {
        "name": OWN_CLASSIFIER,
        "value": accuracy,
        "accuracy": accuracy,
        "tested_on": len(labels),
        "yardstick": beside.as_dict(),
        "stamp": STAMP if config.real_data_private else None,
    }


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
        """One metric as plain data, beside its yardstick."""
        if name == "fid" and self.inception is not None:
            return self._distance(self.inception)
        classifier = self.classifier()
        if name == "fid[lenet]":
            return self._distance(LenetFeatures(classifier))
        probabilities = classifier.probabilities(self.real_test.images)
        accuracy = float(np.mean(probabilities.argmax(axis=1) == self.real_test.labels))
        figure = score_images(self.generated.images, classifier, accuracy).as_dict()
        beside = score_yardstick(figure["value"], 1.0, NO_CLASS, inception_score(probabilities), "real test images")
        return figure | {"yardstick": beside.as_dict()}

    def _distance(self, network: FeatureNetwork) -> dict[str, Any]:
        """A Fréchet distance, between those of noise and of real training images."""
        config, reference = self._fid_config(), self.real_test.images
        statistics = reference_statistics(reference, network, config.statistics_cache)
        figure = fid(self.generated.images, reference, network, config, statistics).as_dict()
        if not self.config.reference:
            return figure
        config = replace(config, listener=self._listener("real images through the network, to compare with"))
        bounds = fid_bounds(self.real_train.images, reference, network, config, statistics)
        beside = score_yardstick(figure["value"], bounds.noise, NOISE, bounds.real, "real training images")
        return figure | {"yardstick": beside.as_dict()}

    def downstream(self, names: list[str], calibrate: bool) -> dict[str, dict[str, Any]]:
        """The accuracy of each classifier, beside chance and the one after training on real data; averages if asked."""
        if not names:
            return {}
        config = self.config
        setup = ClassifierSetup(self.classes, config.seed, config.cnn, fast=config.fast, resnet=config.resnet)
        results = downstream_accuracies(names, self.generated, self.real_test, setup, config.crew)
        figures, reference = {name: result.as_dict() for name, result in results.items()}, {}
        if config.reference or calibrate:
            real = (self.real_train, self.real_test)
            reference = reference_accuracies(names, real, setup, config.crew, config.cache)
        chance = chance_accuracy(self.real_test.labels)
        for name, figure in figures.items():
            if reference:
                figure |= {"real_accuracy": reference[name], "calibrated": ratio(figure["value"], reference[name])}
            beside = accuracy_yardstick(figure["value"], chance, reference.get(name), figure["tested_on"])
            figure["yardstick"] = beside.as_dict()
        if not calibrate:
            return figures
        of_tables = {name: each for name, each in results.items() if CLASSIFIERS[name].in_tables}
        reference = {name: reference[name] for name in of_tables}
        summary = summarise(of_tables, reference)
        return figures | {figure["name"]: figure for figure in summary.figures(chance, reference)}

    def classifier(self) -> TrainedCnn:
        """The classifier trained on the real training set, trained at most once."""
        if self.real_classifier is None:
            listener = self._listener("epochs of the classifier behind the scores")
            settings = (self.config.scorer, self.config.cache, listener)
            self.real_classifier = trained_scorer(self.real_train, self.classes, *settings)
        return self.real_classifier

    def _fid_config(self) -> FidConfig:
        listener = self._listener("samples through the network of the Fréchet distance")
        cache = self.config.fid.statistics_cache or self.config.cache
        return replace(self.config.fid, statistics_cache=cache, listener=self.config.fid.listener or listener)

    def _listener(self, what: str) -> Counter | None:
        return None if self.config.listener is None else partial(self.config.listener, what)


def _labelled(real: RealImages, name: str) -> LabelledImages:
    """A real set with its channels first; ``name`` is what an error calls it."""
    if not isinstance(real, ImageDataset):
        images, labels = real
        return LabelledImages(as_planes(images, f"{name} images"), labels)
    if real.labels is None:
        raise InputError(f"labels: {real.name} has none, but an evaluation needs them; pass labelled real data")
    return LabelledImages(real.images[:], real.labels)  # those of a data store are read here


def _left_out(figures: tuple[dict[str, Any], ...], config: EvaluationConfig) -> tuple[str, ...]:
    """What the fast mode did not do, in words."""
    if not config.fast:
        return ()
    left_out = []
    cut = [figure for figure in figures if figure.get("trained_on", 0) < figure.get("offered", 0)]
    if cut:
        most = max(figure["trained_on"] for figure in cut)
        left_out.append(f"{len(cut)} classifiers trained on {most} of {cut[0]['offered']} images")
    names = {figure["name"] for figure in figures}
    if "cnn" in names:
        full = replace(config, fast=False).cnn.epochs
        left_out.append(f"the CNN ran {config.cnn.epochs} epochs instead of {full} (more where these are few steps)")
    if RESNET in names:
        full, ran = replace(config, fast=False).resnet.epochs, config.resnet.epochs
        left_out.append(f"the residual network ran {ran} epochs instead of {full} (more where these are few steps)")
    if names & {"is", "fid[lenet]"}:
        full = replace(config, fast=False).scorer.epochs
        epochs = f"{config.scorer.epochs} epochs instead of {full} (more where these are few steps)"
        left_out.append(f"the classifier behind is and fid[lenet] ran {epochs}")
    return tuple(left_out)


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
    check_same_shape(images, test.images, "images", "real test images")
    check_same_shape(train.images, test.images, "real training images", "real test images")
    check_every_class(train.labels, classes, "real training labels")
    generated = LabelledImages(images, _generated_labels(labels, len(images), classes, names))
    run = _Run(generated, train, test, classes, config)
    device = choose_device(config.device)
    for name in names:
        check_installed(name)
    if config.cache is not None:
        check_folder(config.cache)
    if "fid[lenet]" in names:
        check_counts(len(images), len(test.images), config.scorer.hidden, config.fid.allow_few)
    if "fid" in names:
        check_counts(len(images), len(test.images), InceptionFeatures.dimensions, config.fid.allow_few)
        run.inception = SpreadFeatures(find_weights(config.weights), device, config.precision, config.processes)
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
