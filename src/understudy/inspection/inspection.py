"""``inspect``: everything that can be said about what is wrong with a release, alone or beside a normal one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError
from understudy.inspection import contents, mixtures, orientation, pixels
from understudy.inspection.findings import FALSE_ALARM_RATE, Finding
from understudy.inspection.images import Change, Pictures, possible_changes
from understudy.inspection.samples import FEWEST, Samples, check_comparable

PRIVATE = (
    "computed from samples of releases only: post-processing, so every statement here is as private as the releases "
    "and costs no further budget"
)
NOT_PRIVATE = "not private: do not publish"
_FAMILIES = 8  # orientation or mixtures, classes, all classes together, pixels, noise, colours, empty classes; the last
# share pays for the noise in balance


@dataclass(frozen=True)
class Inspection:
    """What was found, and the figures behind it."""

    suspect: Samples
    normal: Samples | None
    findings: tuple[Finding, ...]
    shares: dict[str, dict[str, float]] = field(default_factory=dict)  # by class, of each change
    recognitions: tuple[contents.Recognition, ...] = ()
    legibility: contents.Legibility | None = None
    mixtures: tuple[mixtures.Mixture, ...] = ()
    examples: dict[str, tuple[tuple[int, ...], ...]] = field(
        default_factory=dict
    )  # by change: rows judged so, by class

    @property
    def private(self) -> bool:
        """Whether every statement follows from releases alone."""
        return not (self.suspect.real or (self.normal is not None and self.normal.real))

    @property
    def stamp(self) -> str:
        """What must be said about the privacy of all this."""
        return PRIVATE if self.private else NOT_PRIVATE

    @property
    def doubts(self) -> list[str]:
        """What nothing can be said about, though nothing was found there."""
        told = any(finding.name == contents.ILLEGIBLE for finding in self.findings)
        return [] if told or self.legibility is None else self.legibility.doubts(FALSE_ALARM_RATE / _FAMILIES)

    def sentences(self) -> list[str]:
        """The findings in words and what nothing can be said about, or that there is neither, beside what chance and
        normal images give."""
        told = [*(finding.sentence for finding in self.findings), *self.doubts]
        return told or [self._nothing()]

    def _nothing(self) -> str:
        recognised = "" if self.legibility is None else f"{self.legibility.in_words()}, and "
        found = "Nothing was found" if self.normal else "Nothing was found in this release by itself"
        words = f"{found}: {recognised}no effect is above its margin, at a false-alarm rate of {FALSE_ALARM_RATE:g}."
        if self.normal is None:
            words += " Whether its images are as many-sided as the data cannot be seen without them: --real compares."
        return words

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        names = self.suspect.class_names
        return {
            "suspect": self.suspect.name,
            "normal": None if self.normal is None else self.normal.name,
            "private": self.private,
            "stamp": self.stamp,
            "false_alarm_rate": FALSE_ALARM_RATE,
            "samples_per_class": max(len(images) for images in self.suspect.images),
            "findings": [finding.as_dict() for finding in self.findings],
            "shares": self.shares,
            "doubts": self.doubts,
            "recognition": None if self.legibility is None else _recognition(self.legibility),
            "recognised": {names[seen.label]: round(seen.rate, 4) for seen in self.recognitions},
            "class_shares": None if self.suspect.shares is None else [round(each, 6) for each in self.suspect.shares],
        }


def _recognition(seen: contents.Legibility) -> dict[str, float | None]:
    """Plain data: the share that is recognised, beside guessing and normal images."""
    return {
        "rate": round(seen.rate, 4),
        "guessing": round(contents.guessing(seen.classes), 4),
        "normal": None if seen.alone else round(seen.expected_rate, 4),
    }


def inspect_samples(suspect: Samples, normal: Samples | None = None) -> Inspection:
    """Inspect samples alone, or beside normal ones.

    The false-alarm rate holds for all findings together: where no effect is above its margin, the chance of any report
    is at most one in a million, over the draws of the samples.
    """
    if not any(len(images) >= FEWEST for images in suspect.images):
        raise InputError(
            f"inspect: {suspect.name} has fewer than {FEWEST} images in every class, which is too few; pass more"
        )
    if normal is None:
        return _alone(suspect)
    check_comparable(suspect, normal)
    return _compared(suspect, normal)


def _alone(suspect: Samples) -> Inspection:
    classes, names, level = suspect.small(), suspect.class_names, FALSE_ALARM_RATE / _FAMILIES
    changes = possible_changes(*classes[0].shape[1:])
    usable = [images if len(images) >= FEWEST else images[:0] for images in classes]
    if not suspect.domain.labelled:  # upright images of many kinds have no one prototype; their background has
        changes = tuple(change for change in changes if change.name == "inverted")
    found, groups = mixtures.find_mixtures(usable, changes, names, level)
    recognitions = contents.recognise(usable, usable)
    seen = contents.legibility(recognitions, len(names), alone=True)
    illegible = contents.find_illegible(seen, level)
    found = [*found, *illegible]
    if seen is not None and not illegible and not seen.doubts(level):  # else there is no judge of single classes
        found += contents.find_confused_classes(recognitions, names, level)
    found += pixels.find_noise(suspect.images, None, names, level)
    found += pixels.find_lost_colours(suspect.images, None, level)
    found += pixels.find_empty_classes(classes, names, level)
    found = _of_seen_classes([*found, *contents.find_imbalance(suspect, None)])
    return Inspection(
        suspect, None, tuple(found), mixtures=tuple(groups), recognitions=tuple(recognitions), legibility=seen
    )


def _compared(suspect: Samples, normal: Samples) -> Inspection:
    images, usual, names = suspect.small(), normal.small(), suspect.class_names
    changes, level = possible_changes(*images[0].shape[1:]), FALSE_ALARM_RATE / _FAMILIES
    verdicts = [
        verdict
        for label, (other, own) in enumerate(zip(usual, images, strict=True))
        if (verdict := orientation.judge(other, own, changes, label)) is not None
    ]
    found = orientation.find_changes(verdicts, changes, names, level)
    restored, explained = _restore(images, verdicts, changes, {finding.name for finding in found})
    recognitions = contents.recognise(usual, restored, explained)
    strange = contents.find_changed_classes(recognitions, names, level)
    noise = pixels.find_noise(suspect.images, normal.images, names, level)
    lost = [*strange, *noise]
    found = _withdraw(found, lost, orientation.find_changes(_without(verdicts, lost, names), changes, names, level))
    found_names = {finding.name for finding in found}
    restored, _ = _restore(images, verdicts, changes, found_names)
    seen = contents.legibility(recognitions, len(names), alone=False)
    changed = [finding for finding in strange if finding.name == contents.CHANGED]
    found += [*strange, *([] if changed else contents.find_illegible(seen, level))]
    found += noise
    found += pixels.find_lost_colours(suspect.images, normal.images, level)
    found += pixels.find_pixel_changes(usual, restored, names, level)
    found += pixels.find_empty_classes(images, names, level)
    found = _of_seen_classes([*found, *contents.find_imbalance(suspect, normal)])
    return Inspection(
        suspect,
        normal,
        tuple(contents.put_together(found, names)),
        shares=_shares(verdicts, changes, names),
        recognitions=tuple(recognitions),
        legibility=seen,
        examples=_examples(verdicts, changes, {finding.name for finding in found}, len(names)),
    )


def _of_seen_classes(found: Sequence[Finding]) -> list[Finding]:
    """The findings without those on how a missing class looks: a generator that saw no image of it draws anything."""
    missing = {name for finding in found if finding.name == "missing-class" for name in finding.classes}
    on_looks = ("orientation", "intensity", "unknown", "noise")
    return [
        finding
        for finding in found
        if finding.kind not in on_looks or not finding.classes or not set(finding.classes) <= missing
    ]


def _without(
    verdicts: Sequence[orientation.Verdicts], strange: Sequence[Finding], names: Sequence[str]
) -> list[orientation.Verdicts]:
    """The verdicts on classes that are still themselves; a finding of noise that names none is about all of them."""
    telling = [finding for finding in strange if finding.name == contents.CHANGED or finding.kind == "noise"]
    lost = {name for finding in telling for name in finding.classes or names}
    return [verdict for verdict in verdicts if names[verdict.label] not in lost]


def _withdraw(found: Sequence[Finding], strange: Sequence[Finding], again: Sequence[Finding]) -> list[Finding]:
    """A class that nothing explains cannot testify to a change: what rests on such classes alone is withdrawn.

    Findings are only ever taken away here, so the false-alarm rate stays what it was.
    """
    if not strange:
        return list(found)
    kept = {(finding.name, finding.classes) for finding in again}
    return [finding for finding in found if (finding.name, finding.classes) in kept]


def _restore(
    images: Sequence[Pictures], verdicts: Sequence[orientation.Verdicts], changes: Sequence[Change], found: set[str]
) -> tuple[list[Pictures], list[NDArray[np.bool_]]]:
    """Suspect images with every change that was found undone, so that one fault is not reported under many names.

    Also which of them that concerns.
    """
    restored = [each.copy() for each in images]
    explained = [np.zeros(len(each), dtype=np.bool_) for each in images]
    for verdict in verdicts:
        for way, change in enumerate(changes, start=1):
            rows = verdict.judged == way
            if change.name in found and rows.any():
                restored[verdict.label][rows] = change.undo(images[verdict.label][rows])
                explained[verdict.label] |= rows
    return restored, explained


def _shares(
    verdicts: Sequence[orientation.Verdicts], changes: Sequence[Change], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """The estimated share of each change in each class, for the table."""
    return {
        names[verdict.label]: {
            change.name: round(orientation.estimate_share(verdict, way, change, 0.01).estimate, 4)
            for way, change in enumerate(changes, start=1)
        }
        for verdict in verdicts
    }


def _examples(
    verdicts: Sequence[orientation.Verdicts], changes: Sequence[Change], found: set[str], classes: int
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """For each change that was found the first images of every class that were judged so."""
    by_label = {verdict.label: verdict for verdict in verdicts}
    return {
        change.name: tuple(
            tuple(int(row) for row in np.flatnonzero(by_label[label].judged == way)[:8]) if label in by_label else ()
            for label in range(classes)
        )
        for way, change in enumerate(changes, start=1)
        if change.name in found
    }
