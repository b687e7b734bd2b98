"""What is inspected: samples of a release, class by class, or (not private) real images in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.inspection.images import Pictures, small
from understudy.methods.registry import ANNOTATED
from understudy.privacy.events import CLASS_MEANS
from understudy.release.release import Release
from understudy.report.pictures import planes_last

FEWEST = 40
"""Fewer images of a class say nothing at a false-alarm rate of one in a million."""
MOST_CLASSES = 200
ALL_IMAGES = "all images"


@dataclass(frozen=True)
class Samples:
    """Images of each class, which are independent draws of one law; an unlabelled set has the one class "all images".

    ``shares`` is the law of the classes where it was learnt from the data, and ``deviation`` of how much noise in it
    the certificate speaks; both are None where the law was declared and says nothing about the data, or where nobody
    can tell how much noise is in it.
    """

    name: str
    domain: Domain
    images: tuple[NDArray[np.uint8], ...]
    shares: tuple[float, ...] | None = None
    deviation: float | None = None
    real: bool = False

    @property
    def class_names(self) -> tuple[str, ...]:
        """What the classes are called."""
        if self.domain.classes is None:
            return (ALL_IMAGES,)
        return self.domain.class_names or tuple(str(label) for label in range(self.domain.classes))

    def small(self) -> tuple[Pictures, ...]:
        """The images of each class as the tests see them."""
        return tuple(small(images) for images in self.images)


def draw_samples(
    release: Release, per_class: int, name: str, watch: Callable[[int, int], None] | None = None
) -> Samples:
    """``per_class`` fresh images of every class of a release; ``watch`` hears how many of all images are drawn.

    Privacy: post-processing of the release; any number of samples costs nothing.
    """
    if release.certificate.not_private is not None:
        raise InputError(
            f"inspect: {name} is {release.certificate.not_private}; inspect a release of a private method, or compare "
            "with real data by --real"
        )
    _check_number(per_class, name)
    _check_classes(release.domain)
    labels = [None] if release.domain.classes is None else [[label] for label in range(release.domain.classes)]
    images = list[NDArray[np.uint8]]()
    for label in labels:
        heard = None if watch is None else partial(_count, watch, per_class * len(images), per_class * len(labels))
        images.append(release.sample(per_class, label, watch=heard)[0])
        if heard is not None:
            heard(per_class)
    weights, deviation = release.generator.config.label_weights, _deviation_of_shares(release)
    if weights is None or deviation is None:
        return Samples(name, release.domain, tuple(images))
    total = sum(weights)
    return Samples(name, release.domain, tuple(images), tuple(weight / total for weight in weights), deviation)


def _count(watch: Callable[[int, int], None], before: int, total: int, drawn: int) -> None:
    """Tell how many of all images there are, from those of the class that is being drawn."""
    watch(before + drawn, total)


def real_samples(data: ImageDataset, per_class: int) -> Samples:
    """Up to ``per_class`` real images of every class.

    Privacy: these are private records. Whatever is computed with them is not private, and says so.
    """
    _check_number(per_class, data.name)
    _check_classes(data.domain)
    planes = planes_last(data.images)
    if data.labels is None:
        return Samples(data.name, data.domain, (planes[:per_class],), real=True)
    groups = [np.flatnonzero(data.labels == label) for label in range(data.domain.classes or 0)]
    counts = np.array([len(group) for group in groups], dtype=np.float64)
    return Samples(
        data.name,
        data.domain,
        tuple(planes[group[:per_class]] for group in groups),
        tuple(float(share) for share in counts / max(1.0, counts.sum())),
        0.0,
        real=True,
    )


def check_comparable(suspect: Samples, normal: Samples) -> None:
    """Refuse two sets of images that cannot be compared class by class."""
    shapes = [" x ".join(str(side) for side in each.domain.shape) for each in (suspect, normal)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"inspect: {suspect.name} has images of {shapes[0]} and {normal.name} of {shapes[1]}; compare two of one "
            "shape (--shape brings real data to it)"
        )
    classes = [each.domain.classes for each in (suspect, normal)]
    if classes[0] != classes[1]:
        words = ["no classes" if number is None else f"{number} classes" for number in classes]
        raise InputError(
            f"inspect: {suspect.name} has {words[0]} and {normal.name} has {words[1]}; compare two with the same ones"
        )
    if suspect.class_names != normal.class_names:
        pair = next(pair for pair in zip(suspect.class_names, normal.class_names, strict=True) if pair[0] != pair[1])
        raise InputError(
            f"inspect: class {pair[0]!r} of {suspect.name} is called {pair[1]!r} in {normal.name}; declare the same "
            "names in the same order"
        )
    if not any(len(images) >= FEWEST for images in normal.images):
        raise InputError(
            f"inspect: {normal.name} has fewer than {FEWEST} images in every class, which is too few to compare with; "
            "pass more of them"
        )


def _check_number(per_class: int, name: str) -> None:
    if per_class < FEWEST:
        raise InputError(
            f"samples: {per_class} of each class of {name} are too few to say anything with a false-alarm rate of one "
            f"in a million; pass --samples {FEWEST} or more"
        )


def _check_classes(domain: Domain) -> None:
    if (domain.classes or 1) > MOST_CLASSES:
        raise InputError(f"inspect: {domain.classes} classes; at most {MOST_CLASSES} can be shown on one page")


def _deviation_of_shares(release: Release) -> float | None:
    """The standard deviation of the noise in the share of a class, as far as config and certificate state it.

    Class sizes come with the noisy embedding: a unit counts with the square root of ``size_share``, and the noise of
    the whole has the event's multiplier. This takes the declared number of units to be about the true one. None where
    nobody can tell: an annotator counted the labels; or clients sent embeddings of norm one, whatever they hold, and
    how much noise that means for a share depends on how alike the clients are.
    """
    noise = [event.noise_multiplier for event in release.certificate.events if event.purpose == CLASS_MEANS]
    share = _setting(release.method_config, "size_share")
    if release.method == ANNOTATED or not noise or share is None:
        return None
    return min(noise) / share**0.5 / release.domain.nominal_units


def _setting(values: Mapping[str, Any], name: str) -> float | None:
    """A positive number of that name anywhere in a config."""
    for key, value in values.items():
        if key == name and isinstance(value, (int, float)) and value > 0:
            return float(value)
        if isinstance(value, Mapping) and (found := _setting(value, name)) is not None:
            return found
    return None
