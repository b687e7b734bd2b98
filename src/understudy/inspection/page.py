"""An inspection as one HTML page that needs no network, in the design of the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.inspection import contents, mixtures, orientation, pixels
from understudy.inspection.findings import FALSE_ALARM_RATE
from understudy.inspection.images import CHANGES, prototypes
from understudy.inspection.inspection import Inspection
from understudy.inspection.samples import Samples
from understudy.report import pictures
from understudy.report.report import refuse_folder, render_page, save_page
from understudy.report.views import NOTHING

_COLUMNS = 10
_MOST_SHOWN = 20  # classes with pictures
_EXAMPLES = 12
_UNDO = {change.name: change for change in CHANGES}


def write_page(inspection: Inspection, destination: Path | str) -> Path:
    """Write the page.

    Privacy: without real data everything on it is post-processing of releases. With real data the page shows records
    and figures computed with them, and is stamped.
    """
    target = Path(destination)
    refuse_folder(target, "inspect", "inspection.html")
    save_page(target, "inspect", render(inspection))
    return target


def render(inspection: Inspection) -> str:
    """The page as text."""
    values = {
        "suspect": inspection.suspect.name,
        "normal": None if inspection.normal is None else inspection.normal.name,
        "private": inspection.private,
        "stamp": inspection.stamp,
        "findings": [_finding(finding) for finding in inspection.findings],
        "nothing": inspection.sentences()[0],
        "doubts": inspection.doubts,
        "legibility": None if inspection.legibility is None else inspection.legibility.in_words(),
        "evidence": [*_changed_images(inspection), *_groups(inspection)],
        "rows": _rows(inspection),
        "left_out": max(0, len(inspection.suspect.class_names) - _MOST_SHOWN),
        "prototypes": _prototypes(inspection),
        "shares": _share_table(inspection),
        "classes": _class_table(inspection),
        "balance": _balance_words(inspection),
        "margins": _margins(inspection),
        "rate": f"{FALSE_ALARM_RATE:g}",
        "per_class": max(len(images) for images in inspection.suspect.images),
    }
    return render_page("inspection.html.j2", values, "understudy.inspection")


def _finding(finding: Any) -> dict[str, Any]:
    values = finding.as_dict()
    return {
        **values,
        "estimate": _figure(finding.estimate),
        "bound": _figure(finding.bound),
        "margin": _figure(finding.margin),
        "rate": f"{finding.false_alarm_rate:g}",
    }


def _figure(value: float) -> str:
    return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3g}"


def _both(inspection: Inspection) -> list[tuple[str, Samples]]:
    subjects = [("suspect" if inspection.normal else "samples", inspection.suspect)]
    if inspection.normal is not None:
        subjects.insert(0, ("real" if inspection.normal.real else "normal", inspection.normal))
    return subjects


def _shown(inspection: Inspection) -> Sequence[tuple[int, str]]:
    return list(enumerate(inspection.suspect.class_names))[:_MOST_SHOWN]


def _rows(inspection: Inspection) -> list[dict[str, Any]]:
    """Side by side: the first images of every class."""
    return [
        {
            "name": name,
            "strips": [
                (title, pictures.strip(samples.images[label][:_COLUMNS]))
                for title, samples in _both(inspection)
                if len(samples.images[label])
            ],
        }
        for label, name in _shown(inspection)
    ]


def _prototypes(inspection: Inspection) -> list[dict[str, Any]]:
    """The mean and the cluster centres of every class."""
    found = []
    for label, name in _shown(inspection):
        strips = []
        for title, samples in _both(inspection):
            if len(samples.images[label]):
                each = prototypes(samples.images[label])
                shares = ", ".join(f"{100 * share:.0f} %" for share in each.shares)
                strips.append((title, pictures.strip(each.row()), shares))
        found.append({"name": name, "strips": strips})
    return found


def _changed_images(inspection: Inspection) -> list[dict[str, Any]]:
    """For each change that was found in comparison: images judged so, and the same images with it undone."""
    found = []
    for name, by_class in inspection.examples.items():
        rows = [
            (label, row) for place in range(8) for label, rows in enumerate(by_class) for row in rows[place : place + 1]
        ]
        if not rows:
            continue
        images = np.stack([inspection.suspect.images[label][row] for label, row in rows[:_EXAMPLES]])
        change = _UNDO[name]
        found.append(
            {
                "title": f"Images judged to be {change.words}",
                "strips": [("as they are", pictures.strip(images)), ("undone", pictures.strip(_undone(images, name)))],
            }
        )
    return found


def _undone(images: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    if name == "inverted":
        return 255 - images
    return np.ascontiguousarray(_UNDO[name].undo(images))  # type: ignore[arg-type]


def _groups(inspection: Inspection) -> list[dict[str, Any]]:
    """For each change that was found in one release alone: the means of the two groups of a class."""
    found = []
    for name in dict.fromkeys(mixture.change.name for mixture in inspection.mixtures):
        concerned = [mixture for mixture in inspection.mixtures if mixture.change.name == name][:_EXAMPLES]
        means = np.stack([mixture.groups for mixture in concerned])
        pixels_of = np.round(255 * np.clip(means, 0, 1)).astype(np.uint8)
        found.append(
            {
                "title": f"The two groups of each class: the smaller one looks {_UNDO[name].words}",
                "strips": [
                    ("larger group", pictures.strip(pixels_of[:, 0])),
                    ("smaller group", pictures.strip(pixels_of[:, 1])),
                ],
            }
        )
    return found


def _share_table(inspection: Inspection) -> dict[str, Any] | None:
    if not inspection.shares:
        return None
    changes = [change for change in CHANGES if change.name in next(iter(inspection.shares.values()))]
    return {
        "head": [change.words for change in changes],
        "lines": [
            (name, [f"{100 * shares[change.name]:.0f} %" for change in changes])
            for name, shares in inspection.shares.items()
        ],
    }


def _class_table(inspection: Inspection) -> list[dict[str, Any]]:
    """Recognition, pixel statistics and share of every class, the normal figure behind."""
    recognised = {seen.label: seen for seen in inspection.recognitions}
    subjects = [samples for _, samples in reversed(_both(inspection))]
    small = [samples.small() for samples in subjects]
    lines = []
    for label, name in enumerate(inspection.suspect.class_names):
        statistics = [pixels.pixel_statistics(each[label]) for each in small if len(each[label])]
        seen = recognised.get(label)
        lines.append(
            {
                "name": name,
                "recognised": f"{100 * seen.rate:.0f} %" if seen and inspection.normal else _own_rate(seen),
                "figures": [
                    " / ".join(f"{each.mean(measure):.2f}" for each in statistics) for measure in pixels.MARGINS
                ],
                "share": " / ".join(
                    NOTHING if samples.shares is None else f"{100 * samples.shares[label]:.1f} %"
                    for samples in subjects
                ),
            }
        )
    return lines


def _own_rate(seen: contents.Recognition | None) -> str:
    return NOTHING if seen is None or not seen.expected_total else f"{100 * seen.expected / seen.expected_total:.0f} %"


def _balance_words(inspection: Inspection) -> str | None:
    if inspection.suspect.domain.classes is None:
        return "The generator was trained without labels, so nothing is said about classes."
    if inspection.suspect.shares is None:
        return (
            "This generator draws its classes by a declared law and not by one that it learnt: their balance in the "
            "data cannot be seen in it."
        )
    return None


def _margins(inspection: Inspection) -> list[str]:
    if inspection.normal is None:
        return [
            f"Two groups: the smaller holds at least {100 * mixtures.MARGIN:.0f} %, and the change explains at least "
            f"{100 * mixtures.LIKENESS:.0f} % of the difference between them.",
            f"A class without a look of its own: less than {100 * contents.CONFUSED:.0f} % of the way from guessing to "
            f"all is recognised; of all classes together, less than {100 * contents.LEGIBLE:.0f} %.",
            f"Noise: more than {100 * pixels.NOISE_MARGIN:.0f} % of a class with a correlation of neighbouring pixels "
            f"below {pixels.NOISE_LEVEL:g}.",
            f"Colours: more than {100 * pixels.COLOUR_MARGIN:.0f} % of pairs with the same mean colour.",
            f"Balance: {contents.ALONE_FACTOR:g} times rarer or commoner than an equal part.",
            f"Blank images: more than {100 * pixels.BLANK_MARGIN:.0f} % of a class.",
        ]
    return [
        f"Turned or mirrored: more than {100 * CHANGES[0].margin:.0f} % of all images; inverted: more than "
        f"{100 * CHANGES[-1].margin:.0f} %; or {100 * orientation.CLASS_MARGIN:.0f} % of one class.",
        f"Recognition of a class: a fall by more than {100 * contents.RECOGNITION_MARGIN:.0f} % of the way from "
        f"guessing to all; of all classes together, to less than {100 * contents.LEGIBLE:.0f} % of it.",
        f"Noise: more than {100 * pixels.NOISE_MARGIN:.0f} % of a class with less than half of the usual correlation "
        "of neighbouring pixels.",
        f"Colours: {100 * pixels.COLOUR_LOSS:.0f} % more pairs whose mean colours are nearer than half of the usual.",
        f"Unknown content: more than {100 * contents.UNKNOWN_MARGIN:.0f} % of a class.",
        "Pixels: " + ", ".join(f"{name} by more than {margin:g}" for name, margin in pixels.MARGINS.items()) + ".",
        f"Balance: more than {contents.BALANCE_FACTOR:g} times rarer or commoner, beyond the noise in the shares.",
    ]
