"""Classes: does each still look like itself, is any of its content unknown, and how many of each are there?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from understudy.inspection.findings import Finding, at_least, at_most, listed, percent
from understudy.inspection.images import Pictures, closest, distances, halves
from understudy.inspection.samples import Samples

RECOGNITION_MARGIN = 0.44
"""Of what there is above guessing, recognition of a class may lose so much before it is reported: for ten classes 40
points, for two 22."""
CONFUSED = 0.44
"""In one release alone: a class of which less than this share of the way from guessing to all is recognised cannot be
told from others: 50 % for ten classes, 72 % for two."""
LEGIBLE = 0.25
"""All classes together: less than this share of that way is hardly better than guessing."""
TELLING = 0.10
"""Whoever recognises images by no more than this share of that way is no judge."""
UNKNOWN_MARGIN = 0.25
REACH = 2.0
"""Unknown is what lies so many times as far (squared) from all normal images as all but 1 % of them lie themselves."""
BALANCE_FACTOR = 2.0
ALONE_FACTOR = 5.0
"""Without a reference: a class that is so many times rarer or commoner than if all were equally common."""
MISSING = 0.1
"""A class with less than this part of its due share is called missing."""
CHANGED, CONFUSED_CLASS, ILLEGIBLE = "changed-class", "confused-class", "classes-at-chance"
_DEVIATIONS = 6.0  # of the noise in a share; one in five hundred million is farther out
_FEWEST = 20
_MANY = 6  # changed classes, if they are also most of all, are one finding instead of one for each


@dataclass(frozen=True)
class Recognition:
    """How the images of a class are recognised by a judge that has seen other images of all classes."""

    label: int
    recognised: int
    total: int
    expected: int  # of the judge's own held-out images
    expected_total: int
    mistaken_for: int  # the class that it is taken for most often, other than itself
    unknown: int = 0

    @property
    def rate(self) -> float:
        """The share that is recognised."""
        return self.recognised / max(1, self.total)


def guessing(classes: int) -> float:
    """What is recognised by guessing, if all classes are equally common among what is judged."""
    return 1 / max(1, classes)


def above_guessing(share: float, classes: int) -> float:
    """Which part of the way from guessing to all so large a share is."""
    return share if classes < 2 else (share - guessing(classes)) / (1 - guessing(classes))


@dataclass(frozen=True)
class Legibility:
    """How many images of all classes together are recognised, beside guessing and beside held-out normal images."""

    recognised: int
    total: int
    expected: int  # of the judge's own held-out images; in one release alone, the same as recognised
    expected_total: int
    classes: int
    alone: bool

    @property
    def rate(self) -> float:
        """The share that is recognised."""
        return self.recognised / max(1, self.total)

    @property
    def expected_rate(self) -> float:
        """The share that would be, of images of the normal release."""
        return self.expected / max(1, self.expected_total)

    def in_words(self) -> str:
        """The share beside what guessing and normal images give."""
        beside = f"guessing gives {percent(guessing(self.classes))}"
        if not self.alone:
            beside = f"of those of the normal release {percent(self.expected_rate)} are, and {beside}"
        return f"{percent(self.rate)} of the images are recognised as their class, where {beside}"

    def doubts(self, level: float) -> list[str]:
        """Why it means nothing that nothing was found about classes; empty where it means something."""
        lowest = at_least(self.expected, self.expected_total, level)
        if above_guessing(lowest, self.classes) > TELLING:
            return []
        whose = "this release" if self.alone else "the normal release"
        return [
            f"Nothing can be said about the classes: {percent(self.expected_rate)} of {self.expected_total} images of "
            f"{whose} are recognised as their class by their nearest neighbours, where guessing gives "
            f"{percent(guessing(self.classes))}, so there is no judge of them. More images (--samples) may help, or "
            "the classes differ in what small grey pictures do not show."
        ]


def legibility(recognitions: Sequence[Recognition], classes: int, alone: bool) -> Legibility | None:
    """All classes together; None where there are no classes to tell apart."""
    if classes < 2 or not recognitions:
        return None
    expected, total = sum(seen.expected for seen in recognitions), sum(seen.expected_total for seen in recognitions)
    if alone:
        return Legibility(expected, total, expected, total, classes, alone)
    own = (sum(seen.recognised for seen in recognitions), sum(seen.total for seen in recognitions))
    return Legibility(*own, expected, total, classes, alone)


def find_illegible(seen: Legibility | None, level: float) -> list[Finding]:
    """Classes that are recognised hardly better than by guessing, all together."""
    if seen is None:
        return []
    bound = above_guessing(at_most(seen.recognised, seen.total, level / 2), seen.classes)
    expected = above_guessing(at_least(seen.expected, seen.expected_total, level / 2), seen.classes)
    if bound >= LEGIBLE or (not seen.alone and expected <= 2 * LEGIBLE):
        return []
    why = (
        "The generator has learnt little that sets them apart, or they differ in what small grey pictures do not show; "
        "--real says what real images give."
        if seen.alone
        else "The generator has learnt little that sets them apart, or the labels are mixed up."
    )
    return [
        Finding(
            kind="class",
            name=ILLEGIBLE,
            sentence=f"The classes can hardly be told from each other: {seen.in_words()}. {why}",
            statistic="share of the way from guessing to all that is recognised",
            estimate=above_guessing(seen.rate, seen.classes),
            bound=bound,
            margin=LEGIBLE,
        )
    ]


def recognise(
    normal: Sequence[Pictures], suspect: Sequence[Pictures], explained: Sequence[NDArray[np.bool_]] | None = None
) -> list[Recognition]:
    """Recognise suspect images by their nearest normal ones; classes with too few of either are left out.

    Images that are ``explained`` by a change that was found are never called unknown.
    """
    parts = [halves(images) for images in normal]
    galleries = [gallery if len(gallery) >= _FEWEST else gallery[:0] for gallery, _ in parts]
    found = []
    for label, ((_, held_out), images) in enumerate(zip(parts, suspect, strict=True)):
        if not len(galleries[label]) or not len(images):
            continue
        near = [distances(images, gallery) for gallery in galleries]
        own = [distances(held_out, gallery) for gallery in galleries]
        judged, expected = closest(near), closest(own)
        reach = REACH * float(np.quantile(np.min(own, axis=0), 0.99))
        far = np.min(near, axis=0) > reach
        others = np.bincount(judged[judged != label], minlength=len(galleries))
        found.append(
            Recognition(
                label=label,
                recognised=int((judged == label).sum()),
                total=len(images),
                expected=int((expected == label).sum()),
                expected_total=len(held_out),
                mistaken_for=int(others.argmax()),
                unknown=int((far if explained is None else far & ~explained[label]).sum()),
            )
        )
    return found


def find_changed_classes(recognitions: Sequence[Recognition], names: Sequence[str], level: float) -> list[Finding]:
    """Classes whose images are no longer recognised, and classes with content that the normal release does not have."""
    each = level / (3 * max(1, len(recognitions)))
    margin = RECOGNITION_MARGIN * (1 - guessing(len(names)))
    findings = []
    for seen in recognitions:
        highest = at_most(seen.recognised, seen.total, each)
        lowest = at_least(seen.expected, seen.expected_total, each)
        unknown = at_least(seen.unknown, seen.total, each)
        strange = unknown > UNKNOWN_MARGIN
        if len(names) > 1 and lowest - highest > margin:
            findings.append(_not_recognised(seen, names, (lowest - highest, margin), strange))
        elif strange:
            findings.append(_unknown(seen, names, unknown))
    return findings


def put_together(found: Sequence[Finding], names: Sequence[str]) -> list[Finding]:
    """The findings; where most of many classes have changed, that is said once, in the place of the first of them."""
    changed = [finding for finding in found if finding.name == CHANGED]
    classes = tuple(name for finding in changed for name in finding.classes)
    if len(classes) <= max(_MANY, len(names) / 2):
        return list(found)
    fall = sum(finding.estimate for finding in changed) / len(changed)
    once = replace(
        changed[0],
        sentence=f"{len(classes)} of {len(names)} classes do not look like the same classes of the normal release: "
        f"{listed(classes)}. The share of their images that are recognised falls by {percent(fall)} on average. With "
        "so many at once, the images of one of the two releases may be hardly legible, or the labels be mixed up.",
        statistic=f"{changed[0].statistic}: the mean of these classes, and the least of their bounds",
        estimate=fall,
        bound=min(finding.bound for finding in changed),
        classes=classes,
    )
    return [once if finding is changed[0] else finding for finding in found if finding not in changed[1:]]


def find_confused_classes(recognitions: Sequence[Recognition], names: Sequence[str], level: float) -> list[Finding]:
    """In one release alone: classes that the release itself cannot tell from others."""
    each, chance = level / max(1, len(recognitions)), guessing(len(names))
    least, findings = chance + CONFUSED * (1 - chance), []
    for seen in recognitions if len(names) > 1 else ():
        highest = at_most(seen.expected, seen.expected_total, each)
        if highest < least:
            rate, other = seen.expected / seen.expected_total, names[seen.mistaken_for]
            findings.append(
                Finding(
                    kind="class",
                    name=CONFUSED_CLASS,
                    sentence=f"Class {names[seen.label]} has no look of its own: {percent(rate)} of its images are "
                    f"recognised among the others of this release, where guessing gives {percent(chance)}; most of the "
                    f"rest look like class {other}. It may be missing from the data, or its labels are wrong.",
                    statistic="share of the images of the class that are recognised",
                    estimate=rate,
                    bound=highest,
                    margin=least,
                    classes=(names[seen.label],),
                )
            )
    return findings


def find_imbalance(suspect: Samples, normal: Samples | None) -> list[Finding]:
    """Classes that are missing, much rarer or much commoner than in the normal release, or than an equal part."""
    if suspect.shares is None or len(suspect.shares) < 2:
        return []
    shares = np.array(suspect.shares)
    equal = np.full(len(shares), 1 / len(shares))
    known = normal is not None and normal.shares is not None
    due = np.array(normal.shares) if normal is not None and normal.shares is not None else equal
    deviations = [each.deviation or 0.0 for each in (suspect, normal) if each is not None]
    noise = _DEVIATIONS * float(np.hypot.reduce(deviations))
    factor = BALANCE_FACTOR if known else ALONE_FACTOR
    findings = []
    for label, name in enumerate(suspect.class_names):
        share, expected = float(shares[label]), float(due[label])
        bound = _ratio_bound(share, expected, noise)
        if bound > factor:
            findings.append(_imbalance(name, share, expected, bound, factor, known))
    return findings


def _ratio_bound(share: float, expected: float, noise: float) -> float:
    """At least how many times rarer, or commoner, a class is, whatever the noise in its share."""
    rarer = max(0.0, expected - noise) / max(share + noise, 1e-9)
    commoner = max(0.0, share - noise) / max(expected + noise, 1e-9)
    return max(rarer, commoner)


def _imbalance(name: str, share: float, expected: float, bound: float, factor: float, known: bool) -> Finding:
    compared = f"{percent(expected)} in the normal release" if known else f"{percent(expected)} if all were equal"
    state = "practically missing" if share < MISSING * expected else "rare" if share < expected else "common"
    return Finding(
        kind="balance",
        name="missing-class" if state == "practically missing" else "imbalance",
        sentence=f"Class {name} is {state}: {100 * share:.1f} % of the images, against {compared}.",
        statistic="how many times rarer or commoner the class is, less six deviations of the noise in the shares; the "
        "declared number of records is taken to be about the true one",
        estimate=max(share, expected) / max(min(share, expected), 1e-9),
        bound=bound,
        margin=factor,
        classes=(name,),
        false_alarm_rate=1e-8,
    )


def _not_recognised(seen: Recognition, names: Sequence[str], beyond: tuple[float, float], strange: bool) -> Finding:
    name, other = names[seen.label], names[seen.mistaken_for]
    look = "most of them look like nothing in the normal release" if strange else f"most look like class {other}"
    return Finding(
        kind="class",
        name=CHANGED,
        sentence=f"Class {name} does not look like class {name} of the normal release: {percent(seen.rate)} of its "
        f"images are recognised, where {percent(seen.expected / seen.expected_total)} would be; {look}. It may be "
        "missing from the data, or its labels are wrong.",
        statistic="fall of the share of images that are recognised",
        estimate=seen.expected / seen.expected_total - seen.rate,
        bound=beyond[0],
        margin=beyond[1],
        classes=(name,),
    )


def _unknown(seen: Recognition, names: Sequence[str], bound: float) -> Finding:
    name = names[seen.label]
    where = f"of class {name} " if len(names) > 1 else ""
    return Finding(
        kind="unknown",
        name="unknown-content",
        sentence=f"About {percent(seen.unknown / seen.total)} of the images {where}look like nothing in the normal "
        "release: an unknown kind of image, or a fault that this inspection has no name for.",
        statistic="share of images that lie far from all normal ones",
        estimate=seen.unknown / seen.total,
        bound=bound,
        margin=UNKNOWN_MARGIN,
        classes=(name,),
    )
