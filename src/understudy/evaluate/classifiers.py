"""The downstream classifiers by name, with their settings stated: the thirteen of seed 000, and one more for colour.

The paper speaks of library defaults, but defaults miss its Tables A1 and A2 for several of them: bagging, boosting and
linear discriminant analysis come out 3 to 7 points above. The settings here come out within 2 points of the tables when
trained on the real 60,000 images (``benchmarks/classifiers.py``). They were chosen on public data, once, and are the
same for every data set. Pixels are scaled to 0..1 by their fixed range. The one more is a small residual network
(``resnet.py``): it stands beside the others and is no part of their averages, which stay those of the tables.

To add one: add a row to :data:`CLASSIFIERS`. Anything with ``fit(images, labels)``
and ``predict(images)`` on byte images will do; :class:`FlatClassifier` makes one of a scikit-learn estimator. Libraries
are imported where they are used: a process that trains one classifier loads no other's library.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError
from understudy.evaluate.checks import Images, Labels

if TYPE_CHECKING:
    from understudy.evaluate.cnn import CnnConfig, Counter, TrainedCnn
    from understudy.evaluate.resnet import ResnetConfig, TrainedResnet


RESNET = "resnet"  # the classifier for colour
NO_LIMIT = 2**31
FAST_LIMIT = 10_000
FAST_EPOCHS = 5


@dataclass(frozen=True)
class ClassifierSetup:
    """What a classifier may need to know before it sees data."""

    classes: int
    seed: int = 0
    cnn: CnnConfig | None = None  # None: the protocol of the published tables, with this seed
    threads: int = 1  # for the classifiers that can use more than one
    fast: bool = False  # train on at most as many images as the registry's row says
    resnet: ResnetConfig | None = None  # None: its own protocol, with this seed


class Classifier(Protocol):
    """Learns from labelled images and names the class of others."""

    settings: str  # in words, for the result
    note: str | None  # what a reader of the result must know about the training
    parameters: int | None  # of a network, once it is trained

    def fit(self, images: Images, labels: Labels, listener: Counter | None = None) -> None:
        """Learn from the images; a network tells after each epoch how many of how many are done."""

    def predict(self, images: Images) -> Labels:
        """Name the class of each image."""


@dataclass(frozen=True)
class ClassifierEntry:
    """A row of the registry: how to build a classifier, and how many images it may train on."""

    build: Callable[[ClassifierSetup], Classifier]
    cost: int  # seconds on 60,000 images of 28x28 on one core, roughly: the longest is started first
    limit: int = NO_LIMIT  # more training images than this are subsampled, and the result says so
    fast_limit: int = FAST_LIMIT  # the same in the fast mode
    in_tables: bool = True  # one of the thirteen of the published tables, and so a part of the averages

    def most_images(self, fast: bool) -> int:
        """How many images it trains on at most."""
        return min(self.limit, self.fast_limit) if fast else self.limit


class CnnClassifier:
    """The convolutional network as a downstream classifier."""

    def __init__(self, setup: ClassifierSetup) -> None:
        from understudy.evaluate.cnn import CnnConfig

        self.classes = setup.classes
        self.config = setup.cnn or CnnConfig(seed=setup.seed)
        self.settings = self.config.describe()
        self.note: str | None = None
        self.parameters: int | None = None
        self.trained: TrainedCnn | None = None

    def fit(self, images: Images, labels: Labels, listener: Counter | None = None) -> None:
        """Train the network for its fixed number of epochs."""
        from understudy.evaluate.cnn import train_cnn

        self.trained = train_cnn(images, labels, self.classes, self.config, listener)
        self.parameters = self.trained.parameters

    def predict(self, images: Images) -> Labels:
        """Name the most probable class of each image."""
        if self.trained is None:
            raise InputError("classifier: asked to predict before it was trained; call fit first")
        return self.trained.predict(images)


class ResnetClassifier:
    """The small residual network as a downstream classifier."""

    def __init__(self, setup: ClassifierSetup) -> None:
        from understudy.evaluate.resnet import ResnetConfig

        self.classes = setup.classes
        self.config = setup.resnet or ResnetConfig(seed=setup.seed)
        self.settings = self.config.describe()
        self.note: str | None = None
        self.parameters: int | None = None
        self.trained: TrainedResnet | None = None

    def fit(self, images: Images, labels: Labels, listener: Counter | None = None) -> None:
        """Train the network for its fixed number of epochs."""
        from understudy.evaluate.resnet import train_resnet

        self.trained = train_resnet(images, labels, self.classes, self.config, listener)
        self.parameters = self.trained.parameters

    def predict(self, images: Images) -> Labels:
        """Name the most probable class of each image."""
        if self.trained is None:
            raise InputError("classifier: asked to predict before it was trained; call fit first")
        return self.trained.predict(images)


class FlatClassifier:
    """A scikit-learn estimator on pixels in 0..1, one row for each image.

    Some estimators refuse images that hold nothing to learn, such as those of a generator that collapsed to black. They
    then name the commonest class, and a note says so: one bad classifier must not cost the figures of the others.
    """

    def __init__(self, estimator: Any, settings: str) -> None:
        self.estimator = estimator
        self.settings = settings
        self.note: str | None = None
        self.parameters: int | None = None
        self.commonest: int | None = None

    def fit(self, images: Images, labels: Labels, listener: Counter | None = None) -> None:
        """Train the estimator."""
        try:
            with _quietly():
                self.estimator.fit(_flat(images), labels)
        except (ValueError, np.linalg.LinAlgError) as error:
            reason = str(error).splitlines()[0]
            self.note = f"could not learn from these images ({reason}), so it names the commonest class"
            self.commonest = int(np.bincount(labels).argmax())

    def predict(self, images: Images) -> Labels:
        """Name the class of each image."""
        if self.commonest is not None:
            return np.full(len(images), self.commonest, dtype=np.int64)
        with _quietly():
            return np.asarray(self.estimator.predict(_flat(images)), dtype=np.int64)


def classifier_entry(name: str) -> ClassifierEntry:
    """The registry's row for ``name``."""
    if name not in CLASSIFIERS:
        raise InputError(f"classifier: '{name}' is unknown; choose from {', '.join(CLASSIFIERS)}")
    return CLASSIFIERS[name]


def table_classifiers() -> tuple[str, ...]:
    """The thirteen of the published tables, over which averages are formed."""
    return tuple(name for name, entry in CLASSIFIERS.items() if entry.in_tables)


def check_installed(name: str) -> None:
    """Refuse a classifier whose library is not installed, before any work is done."""
    if name == "xgboost" and importlib.util.find_spec("xgboost") is None:
        raise InputError(
            "xgboost: the library is not installed; run python -m pip install 'understudy[evaluate]', or name the "
            "other classifiers in --metrics"
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings: iterations are limited on purpose, and what odd images do to it shows in the accuracy."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def _flat(images: Images) -> NDArray[np.float32]:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _estimator(
    place: str, words: str, cost: int, *, seeded: bool = True, threaded: bool = False, **settings: Any
) -> ClassifierEntry:
    """The row of an estimator with ``fit`` and ``predict``: where it lives, and its settings in words and as passed."""

    def build(setup: ClassifierSetup) -> Classifier:
        library, _, name = place.rpartition(".")
        check_installed(library)
        own = {**({"random_state": setup.seed} if seeded else {}), **({"n_jobs": setup.threads} if threaded else {})}
        return FlatClassifier(getattr(importlib.import_module(library), name)(**settings, **own), words)

    return ClassifierEntry(build, cost)


# fmt: off
CLASSIFIERS: Mapping[str, ClassifierEntry] = MappingProxyType({
    "mlp": _estimator(
        "sklearn.neural_network.MLPClassifier",
        "scikit-learn, one hidden layer of 100, ReLU, Adam, at most 30 epochs", 15,
        hidden_layer_sizes=(100,), activation="relu", max_iter=30),
    "cnn": ClassifierEntry(CnnClassifier, cost=1500),
    RESNET: ClassifierEntry(ResnetClassifier, cost=5000, in_tables=False),
    "adaboost": _estimator(
        "sklearn.ensemble.AdaBoostClassifier", "scikit-learn, 150 stumps (SAMME)", 170, n_estimators=150),
    "bagging": _estimator(
        "sklearn.ensemble.BaggingClassifier", "scikit-learn, 20 trees, each on a tenth of the images", 18,
        n_estimators=20, max_samples=0.1),
    "bernoulli_nb": _estimator(
        "sklearn.naive_bayes.BernoulliNB", "scikit-learn, pixels split at one half", 3, seeded=False, binarize=0.5),
    "decision_tree": _estimator("sklearn.tree.DecisionTreeClassifier", "scikit-learn defaults", 17),
    "gaussian_nb": _estimator("sklearn.naive_bayes.GaussianNB", "scikit-learn defaults", 2, seeded=False),
    "gradient_boosting": _estimator(
        "sklearn.ensemble.GradientBoostingClassifier",
        "scikit-learn, 50 rounds of trees of depth 3, each on a tenth of the images", 140,
        n_estimators=50, subsample=0.1),
    "lda": _estimator(
        "sklearn.discriminant_analysis.LinearDiscriminantAnalysis",
        "scikit-learn, eigenvalue solver, shrinkage one half", 5, seeded=False, solver="eigen", shrinkage=0.5),
    "linear_svc": _estimator(
        "sklearn.svm.LinearSVC", "scikit-learn, squared hinge loss in the primal, tolerance 0.01", 20,
        dual=False, tol=1e-2),
    "logistic_regression": _estimator(
        "sklearn.linear_model.LogisticRegression", "scikit-learn defaults, at most 100 iterations", 10, max_iter=100),
    "random_forest": _estimator(
        "sklearn.ensemble.RandomForestClassifier", "scikit-learn defaults (100 trees)", 36, threaded=True),
    "xgboost": _estimator(
        "xgboost.XGBClassifier",
        "xgboost, 50 rounds of trees of depth 3 at rate 0.1, each on a tenth of pixels", 100, threaded=True,
        n_estimators=50, max_depth=3, learning_rate=0.1, colsample_bytree=0.1),
})
# fmt: on
