"""Pixel statistics: brightness, background, contrast and noise of each class, colours, empty or equal images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.inspection.findings import Finding, at_least, at_most, listed, mean_radius, percent
from understudy.inspection.images import Pictures

MARGINS = {"brightness": 0.10, "background": 0.15, "contrast": 0.10}
"""How much the mean of a statistic (pixels lie in 0..1) may differ before it is reported."""
_WORDS = {
    "brightness": "mean pixel value",
    "background": "mean value of the outermost pixels",
    "contrast": "standard deviation of the pixels of an image",
}
_FEWEST = 10  # images, or pairs of them, to say anything of noise or colours
_DARK = 0.06  # sum of red, green and blue below which an image is too dark to have a colour
_ALL = -1  # in place of a label: all classes together
Values = tuple[int, NDArray[np.float64], NDArray[np.float64]]  # a label, the values of normal and of suspect images
_WIDTH = {"brightness": 1.0, "background": 1.0, "contrast": 0.5}
BLANK_RANGE, BLANK_MARGIN = 0.1, 0.10
"""A blank image has pixels within this range; a class may hold so many of them."""
NOISE_LEVEL = 0.2
"""An image whose neighbouring pixels are correlated less is noise; drawings and photographs have 0.4 to 0.9."""
NOISE_MARGIN = 0.5
"""Of a class so many images may be noise; beside a normal release, so many more of them than there, and there an image
counts as noise that has less than half of the usual correlation."""
ONE_COLOUR, COLOUR_MARGIN = 0.01, 0.75
"""Alone: the mean colours of two images of a class are the same within this; so many pairs may be that."""
COLOUR_LOSS = 0.4
"""Beside a normal release: by so much may the share of pairs grow whose colours are nearer than half of the usual."""
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


def correlations(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Of each image (N, H, W[, 3]) the correlation of neighbouring pixels: about 0 for noise, 1 for an even picture."""
    grey = images.astype(np.float32)
    grey = grey.mean(axis=3) if grey.ndim == 4 else grey
    across, down = _correlation(grey[:, :, 1:], grey[:, :, :-1]), _correlation(grey[:, 1:], grey[:, :-1])
    return (across + down) / 2


def _correlation(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    left, right = (each.reshape(len(each), -1).astype(np.float64) for each in (first, second))
    left, right = left - left.mean(axis=1, keepdims=True), right - right.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.square(left).sum(axis=1) * np.square(right).sum(axis=1))
    together = (left * right).sum(axis=1)
    return np.divide(together, spread, out=np.ones_like(spread), where=spread > 1e-6)


def find_noise(
    suspect: Sequence[NDArray[np.uint8]], normal: Sequence[NDArray[np.uint8]] | None, names: Sequence[str], level: float
) -> list[Finding]:
    """Classes whose images are noise, by what noise is or by what the normal release has; one finding for them all.

    The limit beside a normal release is taken from one half of its images, and they are judged by it in the other half.
    """
    each, noisy = level / (2 * max(1, len(suspect))), []
    for label, images in enumerate(suspect):
        if len(images) < _FEWEST or (normal is not None and len(normal[label]) < 2 * _FEWEST):
            continue
        usual = None if normal is None else correlations(normal[label])
        limit, least = NOISE_LEVEL, 0.0
        if usual is not None:
            half = len(usual) // 2
            limit = max(limit, float(np.median(usual[:half])) / 2)
            least = at_most(int((usual[half:] < limit).sum()), len(usual) - half, each)
        found = correlations(images)
        bound = at_least(int((found < limit).sum()), len(found), each) - least
        if bound > NOISE_MARGIN:
            noisy.append((names[label], float((found < limit).mean()), bound, float(found.mean()), usual))
    return [_noise(noisy, len(names))] if noisy else []


def find_lost_colours(
    suspect: Sequence[NDArray[np.uint8]], normal: Sequence[NDArray[np.uint8]] | None, level: float
) -> list[Finding]:
    """Whether images of a class share one colour, or vary in colour far less than those of the normal release.

    Pairs of images of one class are compared by their mean colours, whatever their brightness, over all classes.
    """
    if suspect[0].ndim != 4:
        return []
    same = total = usual_same = usual_total = 0
    for label, images in enumerate(suspect):
        limit = ONE_COLOUR
        if normal is not None:
            usual = _colour_distances(normal[label])
            half = len(usual) // 2
            if half < _FEWEST:
                continue
            limit = float(np.median(usual[:half])) / 2
            usual_same += int((usual[half:] < limit).sum())
            usual_total += len(usual) - half
        found = _colour_distances(images)
        same, total = same + int((found < limit).sum()), total + len(found)
    if not total:
        return []
    bound = at_least(same, total, level / 2) - (at_most(usual_same, usual_total, level / 2) if normal else 0.0)
    margin = COLOUR_MARGIN if normal is None else COLOUR_LOSS
    share = None if normal is None else usual_same / usual_total
    return [_colours(same / total, share, bound, margin)] if bound > margin else []


def _colour_distances(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """How far the mean colours of two images lie apart, for independent pairs of them.

    A colour is the share of red, green and blue, so that light and dark images of one tint have the same.
    """
    mean = images.mean(axis=(1, 2), dtype=np.float64) / 255
    colour, half = mean / np.maximum(mean.sum(axis=1, keepdims=True), _DARK), len(mean) // 2
    distances: NDArray[np.float64] = np.sqrt(np.square(colour[:half] - colour[half : 2 * half]).sum(axis=1))
    return distances


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


def _noise(noisy: Sequence[tuple[str, float, float, float, NDArray[np.float64] | None]], classes: int) -> Finding:
    named = tuple(name for name, *_ in noisy)
    share = float(np.mean([each[1] for each in noisy]))
    found = round(float(np.mean([each[3] for each in noisy])), 2) + 0.0  # never -0.00
    usual = [float(each[4].mean()) for each in noisy if each[4] is not None]
    where = "The images" if len(named) == classes else f"The images of class {listed(named)}"
    beside = (
        f"those of the normal release have {np.mean(usual):.2f}"
        if usual
        else "drawings and photographs have 0.4 to 0.9"
    )
    return Finding(
        kind="noise",
        name="noise",
        sentence=f"{where} are noise, or drowned in it: neighbouring pixels have a correlation of {found:.2f}, where "
        f"{beside} and pure noise has 0. The generator has learnt little, or the data are like that.",
        statistic="share of images whose neighbouring pixels hardly resemble each other"
        + (", less that of the normal release" if usual else ""),
        estimate=share,
        bound=min(each[2] for each in noisy),
        margin=NOISE_MARGIN,
        classes=() if len(named) == classes else named,
    )


def _colours(share: float, usual: float | None, bound: float, margin: float) -> Finding:
    if usual is None:
        sentence = (
            f"The variety of colours is lost: {percent(share)} of all pairs of images of a class have the same mean "
            "colour. If the data are grey, declare one channel (--shape 1xHxW); else the generator has not learnt them."
        )
    else:
        sentence = (
            f"The variety of colours is lost: {percent(share)} of all pairs of images of a class differ in their mean "
            f"colour by less than half of what is usual; in the normal release {percent(usual)} do."
        )
    return Finding(
        kind="variety",
        name="lost-colours",
        sentence=sentence,
        statistic="share of pairs of images with nearly the same mean colour"
        + ("" if usual is None else ", less that of the normal release"),
        estimate=share - (usual or 0.0),
        bound=bound,
        margin=margin,
    )
