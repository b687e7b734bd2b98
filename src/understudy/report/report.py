"""``write_report``: everything about one or several runs or releases on one page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from understudy.data.dataset import ImageDataset
from understudy.errors import InputError
from understudy.files import write_text
from understudy.release.verify import DOES_NOT_PROVE, PROVES
from understudy.report import charts, pictures
from understudy.report.neighbours import check_neighbours, real_rows
from understudy.report.subjects import Subject, read_subject
from understudy.report.sweeps import is_sweep, sweep_view
from understudy.report.views import STAMP, View, build_view

_COMPARED_COLUMNS = 5


@dataclass(frozen=True)
class ReportOptions:
    """What goes onto the page: real data to be shown beside generated ones, or nothing that is private."""

    train_data: ImageDataset | None = None
    test_data: ImageDataset | None = None
    public: bool = False
    keys: Path | None = None  # public keys of which one must have signed every release
    notes: tuple[str, ...] = ()  # sentences above the comparison: what holds for all of it together


def write_report(paths: Sequence[Path | str], destination: Path | str, options: ReportOptions | None = None) -> Path:
    """Write the report about ``paths`` (folders of runs, releases or curves) to one HTML file.

    Privacy: releases and public progress may be shown. Evaluation figures, curves, diagnostics and nearest neighbours
    were computed with private data: their sections are stamped, and so is the page; ``public`` leaves them out.
    """
    options, target = options or ReportOptions(), Path(destination)
    if not paths:
        raise InputError("report: no run or release was named; pass at least one folder")
    refuse_folder(target, "report", "report.html")
    if options.public and options.train_data is not None:
        raise InputError("report: nearest neighbours show real records, so they have no place on a public page")
    sweeps = [path for path in paths if is_sweep(Path(path))]
    if options.public and sweeps:
        raise InputError(f"report: {sweeps[0]} is a curve, whose figures are not private; leave it or --public out")
    subjects = [_read(path, options) for path in paths if path not in sweeps]
    open_ones = [subject.name for subject in subjects if subject.release and subject.release.certificate.not_private]
    if options.public and open_ones:
        raise InputError(f"report: {open_ones[0]} was trained without privacy, so it has no place on a public page")
    views = [build_view(subject, number) for number, subject in enumerate(subjects, start=1)]
    curves = [sweep_view(Path(path), number) for number, path in enumerate(sweeps, start=1)]
    save_page(target, "report", _render(views, curves, options.notes))
    return target


def refuse_folder(target: Path, what: str, example: str) -> None:
    """Refuse a folder in place of a page."""
    if target.is_dir():
        raise InputError(f"{what}: {target} is a folder; name a file such as {target / example}")


def save_page(target: Path, what: str, text: str) -> None:
    """Write a page, in a new folder if need be."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{what}: {target} cannot be written ({error.strerror}); choose another file") from None
    write_text(target, text)


def render_page(template: str, values: Mapping[str, Any], *packages: str) -> str:
    """A page from a template of one of these packages or of the report."""
    loader = ChoiceLoader([PackageLoader(package) for package in (*packages, "understudy.report")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    created = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    return environment.get_template(template).render(**values, created=created)


def _read(path: Path | str, options: ReportOptions) -> Subject:
    subject = read_subject(path, options.public, options.keys)
    if options.train_data is None or subject.release is None:
        return subject
    neighbours = check_neighbours(subject.release, options.train_data, options.test_data)
    columns = max((len(images) for _, images in subject.rows), default=0)
    rows = real_rows(subject.release, options.train_data, columns)
    return replace(subject, neighbours=neighbours, real_rows=rows)


def _render(views: Sequence[View], curves: Sequence[dict[str, Any]], notes: Sequence[str]) -> str:
    private = any(view.values["private"] for view in views) or any(curve["stamp"] for curve in curves)
    values = {
        "views": [view.values for view in views],
        "curves": curves,
        "title": _title(views, curves),
        "notes": notes,
        "comparison": _comparison(views) if len(views) > 1 else None,
        "stamp": STAMP if private else None,
        "shows_records": any(view.values["neighbours"] for view in views),
    }
    return render_page("page.html.j2", values | _proofs(views))


def _proofs(views: Sequence[View]) -> dict[str, list[str]]:
    """What the verifications prove of every subject, and what of at least one they do not."""
    found = [view.subject.verification for view in views if view.subject.verification is not None]
    open_points = [item for result in found for item in result.does_not_prove]
    return {
        "proves": [item for item in PROVES if all(item in result.proves for result in found)],
        "does_not_prove": list(dict.fromkeys((*open_points, *DOES_NOT_PROVE))),
    }


def _title(views: Sequence[View], curves: Sequence[dict[str, Any]]) -> str:
    names = [view.subject.name for view in views] + [curve["name"] for curve in curves]
    return names[0] if len(names) == 1 else f"{len(names)} generators compared" if not curves else ", ".join(names)


def _comparison(views: Sequence[View]) -> dict[str, Any]:
    """All subjects side by side: a column each."""
    lines = (
        ("method", [view.subject.method for view in views]),
        ("epsilon", [_of(view, "guarantee", "epsilon") for view in views]),
        ("delta", [_of(view, "guarantee", "delta") for view in views]),
        ("best attack is right, at most", [_of(view, "guarantee", "accuracy") for view in views]),
        ("members found at 1 false alarm in 1,000, at most", [_of(view, "guarantee", "found") for view in views]),
        ("steps", [_of(view, "training", "steps") for view in views]),
    )
    accuracies = (("CNN accuracy ↑", "cnn"), ("residual network's accuracy ↑", "resnet"))
    figures = (("FID ↓", "fid"), ("Inception score ↑", "is"), *accuracies)
    qualities = [view.values["quality"] for view in views]
    stamp = STAMP if any(quality and quality["stamp"] for quality in qualities) else None
    measured = [(title, [each and each["figures"][key] for each in qualities], stamp) for title, key in figures]
    measured.append(("seconds", [_of(view, "diagnostics", "seconds") for view in views], STAMP))
    bounds = [(view.subject.name, view.bound) for view in views if view.bound is not None]
    return {
        "names": [view.subject.name for view in views],
        "states": [view.values["state"] for view in views],
        "pictures": [_samples(view.subject) for view in views],
        "lines": [(title, values) for title, values in lines if any(values)],
        "figures": [(title, values, stamp) for title, values, stamp in measured if any(values)],
        "chart": Markup(charts.attack_chart(bounds, "comparison")) if len(bounds) > 1 else None,
    }


def _of(view: View, section: str, key: str) -> str | None:
    values = view.values[section]
    return None if values is None or values[key] is None else str(values[key])


def _samples(subject: Subject) -> str | None:
    """The first images of every class in one picture."""
    rows = [np.asarray(images[:_COMPARED_COLUMNS]) for _, images in subject.rows]
    return pictures.grid(rows) if rows else None
