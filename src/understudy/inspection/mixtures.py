"""One release alone: do classes fall into two groups that are turned, mirrored or inverted versions of each other?

On half of the images of a class a prototype is fitted so that every image resembles either it or its changed version.
The other half is then placed on a line on which the prototype lies at 1 and its changed version at -1. If the class is
one group, whatever its shape along that line, the density in the middle is nowhere below both sides. So three intervals
of equal length are counted (left, middle, right), and the class counts as a mixture where the middle holds fewer than
either side beyond chance: exact binomial tests that assume a single peak and no other law. The chances of all classes,
which are independent, are combined by Fisher's method.

Which of the two groups is the right way up cannot be known without a reference: the larger one is taken for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from understudy.inspection.findings import FALSE_ALARM_RATE, Finding, fewer, listed, percent
from understudy.inspection.images import Change, Pictures, halves

MARGIN = 0.10
"""The smaller group must hold at least so much of the classes concerned."""
LIKENESS = 0.6
"""The changed larger group must explain at least so much of the difference between the two groups."""
_NOTICEABLE = 0.01  # a class with a smaller chance is named
_FEWEST_JUDGED = 20
_ROUNDS = 25
_EDGES = (-1.5, -0.5, 0.5, 1.5)
_SHRINKAGE = 0.1


@dataclass(frozen=True)
class Mixture:
    """One class seen as two groups, of which the smaller one may be the changed larger one."""

    label: int
    change: Change
    share: float
    likeness: float
    chance: float  # of so empty a middle in a single group
    groups: Pictures  # the means of the larger and the smaller group


def find_mixtures(
    classes: Sequence[Pictures], changes: Sequence[Change], names: Sequence[str], level: float
) -> tuple[list[Finding], list[Mixture]]:
    """At most one finding about orientation and one about intensity, with the classes in which it shows most."""
    seen = {
        change.name: [
            mixture
            for label, images in enumerate(classes)
            if (mixture := split_class(images, change, label)) is not None
        ]
        for change in changes
    }
    findings: list[Finding] = []
    shown: list[Mixture] = []
    for family in (["inverted"], [change.name for change in changes if change.name != "inverted"]):
        judged = [(combined(seen[name]), seen[name]) for name in family if name in seen]
        passed = [
            (chance, concerned)
            for chance, mixtures in judged
            if (concerned := _concerned(mixtures)) and chance <= level / len(changes) and _convincing(concerned)
        ]
        if passed:
            chance, concerned = max(passed, key=lambda each: float(np.mean([mixture.likeness for mixture in each[1]])))
            findings.append(_finding(concerned, chance, names))
            shown += concerned
    return findings, shown


def combined(mixtures: Sequence[Mixture]) -> float:
    """Fisher's method: the chance of chances so small if every class were a single group."""
    if not mixtures:
        return 1.0
    logarithms = [math.log(max(mixture.chance, 1e-300)) for mixture in mixtures]
    return float(chi2.sf(-2 * sum(logarithms), 2 * len(logarithms)))


def split_class(images: Pictures, change: Change, label: int) -> Mixture | None:
    """One class as two groups under one change; None where there are too few images to judge."""
    fitted, judged = halves(images)
    if len(judged) < _FEWEST_JUDGED:
        return None
    prototype, direction = _fit(fitted, change)
    places = _places(judged, prototype, change, direction)
    left, middle, right = (int(((places >= low) & (places < high)).sum()) for low, high in pairwise(_EDGES))
    changed = places < 0
    share = float(changed.mean())
    if share in (0.0, 1.0):
        return Mixture(label, change, 0.0, 0.0, 1.0, np.repeat(judged.mean(axis=0, keepdims=True), 2, axis=0))
    groups = np.stack([judged[~changed].mean(axis=0), judged[changed].mean(axis=0)])
    chance = max(fewer(middle, left), fewer(middle, right))
    return Mixture(label, change, share, _likeness(groups, change), chance, groups)


def _concerned(mixtures: Sequence[Mixture]) -> list[Mixture]:
    return [mixture for mixture in mixtures if mixture.chance <= _NOTICEABLE and mixture.share <= 0.5 + MARGIN]


def _convincing(mixtures: Sequence[Mixture]) -> bool:
    share, likeness = (float(np.mean([getattr(each, name) for each in mixtures])) for name in ("share", "likeness"))
    return share >= MARGIN and likeness >= LIKENESS


def _fit(images: Pictures, change: Change) -> tuple[Pictures, NDArray[np.float64]]:
    """The prototype (1, H, W) of which the images are copies or changed copies, and the direction that tells them best.

    The better of two beginnings is kept; the prototype is the larger group, by convention.
    """
    best, least = (images.mean(axis=0, keepdims=True), images), np.inf
    for prototype in _beginnings(images):
        for _ in range(_ROUNDS):
            changed = _nearer_to_changed(images, prototype, change)
            if changed.mean() > 0.5:
                prototype = np.ascontiguousarray(change.apply(prototype))
                changed = _nearer_to_changed(images, prototype, change)
            restored = np.where(changed[:, np.newaxis, np.newaxis], change.undo(images), images)
            prototype = restored.mean(axis=0, keepdims=True)
        remaining = float(np.square(restored - prototype).mean())
        if remaining < least:
            best, least = (prototype, restored), remaining
    return best[0], _direction(best[0], best[1], change)


def _beginnings(images: Pictures) -> list[Pictures]:
    """Two cluster centres, each as a place to start from."""
    from sklearn.cluster import KMeans

    flat = images.reshape(len(images), -1)
    if np.ptp(flat, axis=0).max() == 0:
        return [images[:1]]
    centres = KMeans(2, n_init=4, random_state=0).fit(flat).cluster_centers_.astype(np.float32)
    return [centre.reshape(1, *images.shape[1:]) for centre in centres]


def _nearer_to_changed(images: Pictures, prototype: Pictures, change: Change) -> NDArray[np.bool_]:
    other = change.apply(prototype)
    nearer: NDArray[np.bool_] = np.square(images - other).sum(axis=(1, 2)) < np.square(images - prototype).sum(
        axis=(1, 2)
    )
    return nearer


def _direction(prototype: Pictures, restored: Pictures, change: Change) -> NDArray[np.float64]:
    """Fisher's discriminant between the restored images and their changed versions, with a shrunken covariance."""
    covariance = np.zeros((prototype.size, prototype.size))
    for each in (restored, change.apply(restored)):
        covariance += np.cov(np.ascontiguousarray(each).reshape(len(each), -1).astype(np.float64), rowvar=False) / 2
    spread = float(np.trace(covariance)) / prototype.size
    covariance = (1 - _SHRINKAGE) * covariance + (_SHRINKAGE * spread + 1e-9) * np.eye(prototype.size)
    difference = (prototype - change.apply(prototype)).reshape(-1).astype(np.float64)
    return np.asarray(np.linalg.solve(covariance, difference), dtype=np.float64)


def _places(
    images: Pictures, prototype: Pictures, change: Change, direction: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Where images lie along the direction, with the prototype at 1 and its changed version at -1."""
    other = change.apply(prototype)
    half = float(((prototype - other) / 2).reshape(-1) @ direction)
    if half < 1e-9:
        return np.zeros(len(images))
    centred = (images - (prototype + other) / 2).reshape(len(images), -1).astype(np.float64)
    return np.asarray(centred @ direction / half, dtype=np.float64)


def _likeness(groups: Pictures, change: Change) -> float:
    """How much of the difference between two group means the change explains: 1 all of it, 0 or less nothing."""
    expected = change.apply(groups[:1])[0]
    difference = float(np.square(groups[1] - groups[0]).sum())
    return 1 - float(np.square(groups[1] - expected).sum()) / difference if difference > 1e-9 else 0.0


def _finding(mixtures: Sequence[Mixture], chance: float, names: Sequence[str]) -> Finding:
    change, classes = mixtures[0].change, tuple(names[mixture.label] for mixture in mixtures)
    share = float(np.mean([mixture.share for mixture in mixtures]))
    where = f"class {classes[0]}" if len(classes) == 1 else f"the classes {listed(classes)}"
    return Finding(
        kind="intensity" if change.name == "inverted" else "orientation",
        name=change.name,
        sentence=f"The images of {where} fall into two groups each: about {percent(share)} look like the others "
        f"{change.words}. Without a reference it cannot be told which group is right; the larger one is taken for it.",
        statistic="chance that the middle between the groups is so empty by accident (Fisher's method over classes)",
        estimate=share,
        bound=chance,
        margin=FALSE_ALARM_RATE,
        classes=classes,
    )
