"""Two releases: is the suspect one a mixture of normal images and of turned, mirrored or inverted ones, and how much?

For each class half of the normal images, and their changed versions, make galleries. An image is said to be changed in
the way of the gallery it resembles most. With ``a`` the chance that a normal image is mistaken for a changed one, ``b``
the chance that a changed one is recognised (both measured on the held-out half) and ``r`` the rate among suspect
images, the share of changed images is ``(r - a) / (b - a)``. It is reported where its exact lower bound is above the
margin: two generators of the same data differ a little, so a share of zero is never what is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.inspection.findings import Finding, at_least, at_most, percent
from understudy.inspection.images import Change, Pictures, closest, distances, halves

CLASS_MARGIN = 0.25
"""Of the images of one class, of which there are fewer and which differ more between generators."""
_FEWEST_HELD_OUT = 20
_DISTINGUISHABLE = 0.5  # a change must be recognised at least so much more often than it is mistaken


@dataclass(frozen=True)
class Verdicts:
    """How the images of one class were judged: counts for suspect images and for every known change of normal ones.

    Way 0 is "as normal"; ``confusion[g, t]`` counts held-out images changed in way t and judged to be of way g.
    """

    label: int
    judged: NDArray[np.intp]  # of each suspect image
    counts: NDArray[np.int64]
    confusion: NDArray[np.int64]
    held_out: int

    @property
    def total(self) -> int:
        """How many suspect images were judged."""
        return len(self.judged)


@dataclass(frozen=True)
class Share:
    """A share of changed images with its bounds."""

    change: Change
    estimate: float
    low: float
    high: float


def judge(normal: Pictures, suspect: Pictures, changes: Sequence[Change], label: int) -> Verdicts | None:
    """Judge every suspect image of one class; None where there are too few normal ones."""
    gallery, held_out = halves(normal)
    if len(held_out) < _FEWEST_HELD_OUT or not len(suspect):
        return None
    galleries = [gallery, *(change.apply(gallery) for change in changes)]

    size = len(galleries)

    def ways(images: Pictures) -> NDArray[np.intp]:
        return closest([distances(images, each) for each in galleries])

    known = [held_out, *(change.apply(held_out) for change in changes)]
    confusion = np.stack([np.bincount(ways(images), minlength=size) for images in known], axis=1)
    judged = ways(suspect)
    return Verdicts(label, judged, np.bincount(judged, minlength=size), confusion, len(held_out))


def find_changes(
    verdicts: Sequence[Verdicts], changes: Sequence[Change], names: Sequence[str], level: float
) -> list[Finding]:
    """Findings over all classes together, then those of single classes."""
    ways = len(changes) + 1
    each = level / (2 * (ways + ways**2) * (len(verdicts) + 1))  # every rate that may be bounded, from both sides
    pooled = pool(verdicts)
    found = _explain(pooled, changes, None, each) if pooled is not None else []
    everywhere = {share.change.name for share in found}
    findings = [_finding(share, share.change.margin, ()) for share in found]
    for verdict in verdicts if len(verdicts) > 1 else ():
        for share in _explain(verdict, changes, CLASS_MARGIN, each):
            if share.change.name not in everywhere:
                findings.append(_finding(share, CLASS_MARGIN, (names[verdict.label],)))
    return findings


def pool(verdicts: Sequence[Verdicts]) -> Verdicts | None:
    """All classes as one: suspect images of each in proportion to the held-out ones, so that rates are comparable."""
    if not verdicts:
        return None
    ratio = min(verdict.total / verdict.held_out for verdict in verdicts)
    judged = np.concatenate([verdict.judged[: int(ratio * verdict.held_out)] for verdict in verdicts])
    confusion = np.sum([verdict.confusion for verdict in verdicts], axis=0)
    counts = np.bincount(judged, minlength=len(confusion))
    return Verdicts(-1, judged, counts, confusion, sum(verdict.held_out for verdict in verdicts))


def estimate_share(verdict: Verdicts, way: int, change: Change, level: float, baseline: float | None = None) -> Share:
    """The share of images changed in one way; ``baseline`` raises the rate of mistakes that must be exceeded."""
    total, held_out = verdict.total, verdict.held_out
    rate, seen = verdict.counts[way] / total, int(verdict.counts[way])
    mistaken, recognised = int(verdict.confusion[way, 0]), int(verdict.confusion[way, way])
    a, b = mistaken / held_out, recognised / held_out
    if b - a < _DISTINGUISHABLE:
        return Share(change, 0.0, 0.0, 1.0)
    highest = max(at_most(mistaken, held_out, level), baseline or 0.0)
    low = (at_least(seen, total, level) - highest) / (at_most(recognised, held_out, level) - highest)
    lowest, surely = at_least(mistaken, held_out, level), at_least(recognised, held_out, level)
    high = (at_most(seen, total, level) - lowest) / max(surely - lowest, 1e-9)
    return Share(change, _unit((rate - a) / (b - a)), _unit(low), _unit(high))


def _explain(verdict: Verdicts, changes: Sequence[Change], margin: float | None, level: float) -> list[Share]:
    """Shares above the margin (None: each change has its own), the surest first.

    What a change found before is mistaken for counts as its mistake.
    """
    found: list[Share] = []
    left = list(range(1, len(changes) + 1))
    while left:
        shares = {
            way: estimate_share(verdict, way, changes[way - 1], level, _mistaken(verdict, way, found, changes, level))
            for way in left
        }
        beyond = {way: share.low - (share.change.margin if margin is None else margin) for way, share in shares.items()}
        best = max(beyond, key=lambda way: beyond[way])
        if beyond[best] <= 0:
            return found
        found.append(shares[best])
        left.remove(best)
    return found


def _mistaken(
    verdict: Verdicts, way: int, found: Sequence[Share], changes: Sequence[Change], level: float
) -> float | None:
    """At most the rate at which normal images, and images changed in ways found before, are judged to be of ``way``."""
    if not found:
        return None
    normal = at_most(int(verdict.confusion[way, 0]), verdict.held_out, level)
    rate = normal
    for share in found:
        column = changes.index(share.change) + 1
        confused = at_most(int(verdict.confusion[way, column]), verdict.held_out, level)
        rate += share.high * max(0.0, confused - normal)
    return rate


def _finding(share: Share, margin: float, classes: tuple[str, ...]) -> Finding:
    where = f"of class {classes[0]}" if classes else "of all classes together"
    return Finding(
        kind="intensity" if share.change.name == "inverted" else "orientation",
        name=share.change.name,
        sentence=f"About {percent(share.estimate)} of the images {where} are {share.change.words}, compared with the "
        f"normal ones: the share is at least {percent(share.low)}.",
        statistic=f"share of images that are {share.change.words}",
        estimate=share.estimate,
        bound=share.low,
        margin=margin,
        classes=classes,
    )


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))
