"""The downstream classifiers by name, with their settings stated.

To add one: write a function that builds it and add a row to :data:`CLASSIFIERS`. Anything with ``fit(images, labels)``
and ``predict(images)`` on byte images will do; :class:`FlatClassifier` makes one of a scikit-learn estimator.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError
from understudy.evaluate.checks import Images, Labels
from understudy.evaluate.cnn import CnnConfig, TrainedCnn, train_cnn

NO_LIMIT = 2**31


@dataclass(frozen=True)
class ClassifierSetup:
    """What a classifier may need to know before it sees data."""

    classes: int
    seed: int = 0
    cnn: CnnConfig | None = None  # None: the protocol of the published tables, with this seed


class Classifier(Protocol):
    """Learns from labelled images and names the class of others."""

    settings: str  # in words, for the result

    def fit(self, images: Images, labels: Labels) -> None:
        """Learn from the images."""

    def predict(self, images: Images) -> Labels:
        """Name the class of each image."""


@dataclass(frozen=True)
class ClassifierEntry:
    """A row of the registry: how to build a classifier, and how many images it may train on."""

    build: Callable[[ClassifierSetup], Classifier]
    limit: int = NO_LIMIT  # more training images than this are subsampled, and the result says so


class CnnClassifier:
    """The convolutional network as a downstream classifier."""

    def __init__(self, setup: ClassifierSetup) -> None:
        self.classes = setup.classes
        self.config = setup.cnn or CnnConfig(seed=setup.seed)
        self.settings = self.config.describe()
        self.trained: TrainedCnn | None = None

    def fit(self, images: Images, labels: Labels) -> None:
        """Train the network for its fixed number of epochs."""
        self.trained = train_cnn(images, labels, self.classes, self.config)

    def predict(self, images: Images) -> Labels:
        """Name the most probable class of each image."""
        if self.trained is None:
            raise InputError("classifier: asked to predict before it was trained; call fit first")
        return self.trained.predict(images)


class FlatClassifier:
    """A scikit-learn estimator on pixels in 0..1, one row for each image."""

    def __init__(self, estimator: Any, settings: str) -> None:
        self.estimator = estimator
        self.settings = settings

    def fit(self, images: Images, labels: Labels) -> None:
        """Train the estimator; its number of iterations is fixed, so reaching it is no reason to warn."""
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.estimator.fit(_flat(images), labels)

    def predict(self, images: Images) -> Labels:
        """Name the class of each image."""
        return np.asarray(self.estimator.predict(_flat(images)), dtype=np.int64)


def classifier_entry(name: str) -> ClassifierEntry:
    """The registry's row for ``name``."""
    if name not in CLASSIFIERS:
        raise InputError(f"classifier: '{name}' is unknown; choose from {', '.join(CLASSIFIERS)}")
    return CLASSIFIERS[name]


def _flat(images: Images) -> NDArray[np.float32]:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _mlp(setup: ClassifierSetup) -> Classifier:
    from sklearn.neural_network import MLPClassifier

    estimator = MLPClassifier((100,), activation="relu", max_iter=30, random_state=setup.seed)
    return FlatClassifier(estimator, "scikit-learn, one hidden layer of 100, ReLU, Adam, at most 30 epochs")


def _logistic_regression(setup: ClassifierSetup) -> Classifier:
    from sklearn.linear_model import LogisticRegression

    estimator = LogisticRegression(max_iter=100, random_state=setup.seed)
    return FlatClassifier(estimator, "scikit-learn defaults, at most 100 iterations")


CLASSIFIERS: Mapping[str, ClassifierEntry] = MappingProxyType(
    {
        "cnn": ClassifierEntry(CnnClassifier),
        "mlp": ClassifierEntry(_mlp, limit=60_000),
        "logistic_regression": ClassifierEntry(_logistic_regression, limit=60_000),
    }
)
