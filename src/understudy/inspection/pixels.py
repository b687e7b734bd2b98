"""Pixel statistics: brightness, background and contrast of each class, empty images, images that are all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.inspection.findings import Finding, at_least, listed, mean_radius, percent
from understudy.inspection.images import Pictures

MARGINS = {"brightness": 0.10, "background": 0.15, "contrast": 0.10}
"""How much the mean of a statistic (pixels lie in 0..1) may differ before it is reported."""
_WORDS = {
    "brightness": "mean pixel value",
    "background": "mean value of the outermost pixels",
    "contrast": "standard deviation of the pixels of an image",
}
_ALL = -1  # in place of a label: all classes together
Values = tuple[int, NDArray[np.float64], NDArray[np.float64]]  # a label, the values of normal and of suspect images
_WIDTH = {"brightness": 1.0, "background": 1.0, "contrast": 0.5}
BLANK_RANGE, BLANK_MARGIN = 0.1, 0.10
"""A blank image has pixels within this range; a class may hold so many of them."""
SAME = 0.01
"""Two images of a class differ by more than this (root mean square), or they are the same picture."""


@dataclass(frozen=True)
class PixelStatistics:
    """The statistics of each image of one class."""

    values: dict[str, NDArray[np.float64]]
    blank: int
    total: int

    def mean(self, name: str) -> float:
        """The mean of one of them."""
        return float(self.values[name].mean()) if self.total else float("nan")


def pixel_statistics(images: Pictures) -> PixelStatistics:
    """Brightness, background and contrast of each image, and how many are blank."""
    ring = np.ones(images.shape[1:], dtype=bool)
    ring[1:-1, 1:-1] = False
    values = {
        "brightness": images.mean(axis=(1, 2), dtype=np.float64),
        "background": images[:, ring].mean(axis=1, dtype=np.float64),
        "contrast": images.std(axis=(1, 2), dtype=np.float64),
    }
    blank = int((np.ptp(images.reshape(len(images), -1), axis=1) < BLANK_RANGE).sum()) if len(images) else 0
    return PixelStatistics(values, blank, len(images))


def find_pixel_changes(
    normal: Sequence[Pictures], suspect: Sequence[Pictures], names: Sequence[str], level: float
) -> list[Finding]:
    """Statistics that differ between the releases by more than their margin, over all classes that do."""
    pairs = [
        (label, pixel_statistics(usual), pixel_statistics(images))
        for label, (usual, images) in enumerate(zip(normal, suspect, strict=True))
        if len(usual) > 1 and len(images) > 1
    ]
    each = level / (4 * max(1, (len(pairs) + 1) * len(MARGINS)))
    findings = []
    for name, margin in MARGINS.items():
        values = [(label, usual.values[name], images.values[name]) for label, usual, images in pairs]
        together = [_pooled(values), *(values if len(values) > 1 else [])] if values else []
        beyond = [
            (label, float(usual.mean()), float(images.mean()), bound)
            for label, usual, images in together
            if (bound := _difference_bound(usual, images, each, _WIDTH[name])) > margin
        ]
        if beyond:
            everywhere = beyond[0][0] == _ALL
            findings.append(_pixel_finding(name, margin, beyond[:1] if everywhere else beyond, names))
    return findings


def _pooled(values: Sequence[Values]) -> Values:
    """All classes as one, with as many suspect as normal images of each, so that their means are comparable."""
    sizes = [min(len(usual), len(images)) for _, usual, images in values]
    usual_values = np.concatenate([usual[:size] for (_, usual, _), size in zip(values, sizes, strict=True)])
    suspect_values = np.concatenate([images[:size] for (_, _, images), size in zip(values, sizes, strict=True)])
    return _ALL, usual_values, suspect_values


def find_empty_classes(suspect: Sequence[Pictures], names: Sequence[str], level: float) -> list[Finding]:
    """Classes with blank images, and classes in which all images are practically the same; needs no reference."""
    each = level / (2 * max(1, len(suspect)))
    findings = []
    for label, images in enumerate(suspect):
        if len(images) < 2:
            continue
        seen = pixel_statistics(images)
        bound = at_least(seen.blank, seen.total, each)
        if bound > BLANK_MARGIN:
            findings.append(_blank(names[label], seen, bound))
            continue
        half = len(images) // 2
        apart = np.sqrt(np.square(images[:half] - images[half : 2 * half]).mean(axis=(1, 2), dtype=np.float64))
        if 0.5**half < each and bool((apart <= SAME).all()):  # by accident only if most pairs are the same anyway
            findings.append(_same(names[label], float(apart.mean())))
    return findings


def _difference_bound(usual: NDArray[np.float64], values: NDArray[np.float64], level: float, width: float) -> float:
    """At least how far apart two means are."""
    radius = mean_radius(usual, level, width) + mean_radius(values, level, width)
    return abs(float(values.mean()) - float(usual.mean())) - radius


def _pixel_finding(
    name: str, margin: float, beyond: Sequence[tuple[int, float, float, float]], names: Sequence[str]
) -> Finding:
    classes = () if beyond[0][0] == _ALL else tuple(names[label] for label, *_ in beyond)
    usual, found, bound = (float(np.mean([each[place] for each in beyond])) for place in (1, 2, 3))
    where = f" in class {listed(classes)}" if classes else ""
    return Finding(
        kind="intensity",
        name=name,
        sentence=f"The {_WORDS[name]} differs{where}: {found:.2f} on a scale from 0 to 1, against {usual:.2f} in the "
        "normal release.",
        statistic=f"difference of the {_WORDS[name]}",
        estimate=abs(found - usual),
        bound=bound,
        margin=margin,
        classes=classes,
    )


def _blank(name: str, seen: PixelStatistics, bound: float) -> Finding:
    return Finding(
        kind="variety",
        name="blank-images",
        sentence=f"About {percent(seen.blank / seen.total)} of the images of class {name} are blank: nothing can be "
        "seen in them.",
        statistic="share of images whose pixels are all nearly equal",
        estimate=seen.blank / seen.total,
        bound=bound,
        margin=BLANK_MARGIN,
        classes=(name,),
    )


def _same(name: str, apart: float) -> Finding:
    return Finding(
        kind="variety",
        name="one-picture",
        sentence=f"All images of class {name} are practically the same picture: the generator has collapsed there, or "
        "the data hold one image many times.",
        statistic="mean difference (root mean square) between two images of the class",
        estimate=apart,
        bound=apart,
        margin=SAME,
        classes=(name,),
    )
