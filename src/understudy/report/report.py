"""``write_report``: everything about one or several runs or releases on one page that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from understudy.errors import InputError
from understudy.files import write_text
from understudy.release import meaning
from understudy.release.grid import png, tile
from understudy.release.verify import DOES_NOT_PROVE, PROVES
from understudy.report import charts
from understudy.report.subjects import Subject, read_subject

_CURVE = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # shares of epsilon
_STAMP = "not private: do not publish"
_TITLES = {
    "fid": "Fréchet Inception distance (lower is better)",
    "is": "Inception score (higher is better)",
    "fid[lenet]": "Fréchet distance of LeNet features (lower is better)",
}


def write_report(paths: Sequence[Path | str], destination: Path | str) -> Path:
    """Write the report about ``paths`` (run or release folders) to one HTML file.

    Privacy: all of it follows from releases and public progress, except the figures of ``evaluation.json``, which were
    computed with private data; they are stamped, and so is the page.
    """
    target = Path(destination)
    if not paths:
        raise InputError("report: no run or release was named; pass at least one folder")
    if target.is_dir():
        raise InputError(f"report: {target} is a folder; name a file such as {target / 'report.html'}")
    views = [_view(read_subject(path)) for path in paths]
    environment = Environment(
        loader=PackageLoader("understudy.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("page.html.j2").render(
        views=views,
        stamp=_STAMP if any(view["quality"] and view["quality"]["stamp"] for view in views) else None,
        created=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        proves=PROVES,
        does_not_prove=DOES_NOT_PROVE,
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"report: {target} cannot be written ({error.strerror}); choose another file") from None
    write_text(target, page)
    return target


def _view(subject: Subject) -> dict[str, Any]:
    """One subject as plain values for the page."""
    return {
        "name": subject.name,
        "problem": subject.problem,
        "state": _state(subject),
        "facts": _facts(subject),
        "rows": [(label, _picture(tile(images[np.newaxis]))) for label, images in subject.rows],
        "guarantee": _guarantee(subject),
        "checks": subject.verification.checks if subject.verification else (),
        "budget": _budget(subject),
        "quality": _quality(subject.evaluation),
        "command": (subject.run or {}).get("command"),
        "certificate": subject.release.certificate if subject.release else None,
        "events": [meaning.event_in_words(event) for event in subject.release.certificate.events]
        if subject.release
        else [],
    }


def _state(subject: Subject) -> str:
    if subject.verification is None:
        return "not released yet"
    return "verified" if subject.verification.passed else "not verified"


def _facts(subject: Subject) -> list[str]:
    """The short line below the title."""
    if subject.release is None:
        return [str(subject.run["method"])] if subject.run and "method" in subject.run else []
    domain = subject.release.domain
    channels, height, width = domain.shape
    return [
        subject.release.method,
        f"{height}x{width} {'grey' if channels == 1 else 'RGB'}",
        f"{domain.classes} classes" if domain.labelled else "no classes",
        f"about {domain.nominal_records:,} records (declared)",
    ]


def _guarantee(subject: Subject) -> dict[str, Any] | None:
    """The headline guarantee with what an attacker can gain from it."""
    if subject.release is None:
        return None
    headline = subject.release.certificate.headline
    epsilon, factor = headline.epsilon, meaning.odds_factor(headline.epsilon)
    bound = meaning.attack_bound(subject.release.certificate, [share * epsilon for share in _CURVE])
    return {
        "epsilon": meaning.round_up(epsilon, 2),
        "delta": f"{headline.delta:g}",
        "unit": headline.unit,
        "adjacency": headline.adjacency,
        "viewer": headline.viewer,
        "sentences": meaning.in_words(headline, bound),
        "odds": f"{float(meaning.round_up(factor, 1)):,.6g}" if factor < 1e6 else f"{factor:.0e}",
        "accuracy": meaning.percent(bound.accuracy()),
        "advantage": meaning.percent(bound.advantage()),
        "found": meaning.percent(bound.true_positive_rate(0.001)),
        "chart": Markup(charts.attack_chart(bound)),
    }


def _events(subject: Subject) -> list[str]:
    return [meaning.event_in_words(event) for event in subject.release.certificate.events] if subject.release else []


def _budget(subject: Subject) -> dict[str, Any] | None:
    """What was spent over time, with one public value beside it."""
    if not subject.progress:
        return None
    budget = (subject.run or {}).get("budget") or {}
    allowed = budget.get("epsilon") if isinstance(budget, Mapping) else None
    drawings = [charts.budget_chart(subject.progress, float(allowed) if isinstance(allowed, (int, float)) else None)]
    others = [name for name in subject.progress[-1] if name not in ("step", "seconds", "epsilon_spent")]
    drawings += [charts.value_chart(subject.progress, name) for name in others[:1]]
    return {
        "charts": [Markup(drawing) for drawing in drawings if drawing],
        "steps": f"{int(subject.progress[-1]['step']):,}",
        "seconds": f"{subject.progress[-1].get('seconds', 0.0):,.0f}",
    }


def _quality(evaluation: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Figures of an evaluation: accuracies as bars, everything else as numbers."""
    if evaluation is None:
        return None
    listed = [figure for figure in evaluation.get("figures", []) if isinstance(figure, Mapping) and "name" in figure]
    figures = [figure for figure in listed if isinstance(figure.get("value"), (int, float))]
    bars = [
        {"name": str(figure["name"]), "share": float(figure["value"]), "tested": figure.get("tested_on")}
        for figure in figures
        if "accuracy" in figure
    ]
    numbers = [
        {"name": _TITLES.get(str(figure["name"]), str(figure["name"])), "value": f"{float(figure['value']):.4g}"}
        for figure in figures
        if "accuracy" not in figure
    ]
    samples = evaluation.get("samples")
    return {"bars": bars, "numbers": numbers, "samples": samples, "stamp": evaluation.get("stamp", _STAMP)}


def _picture(pixels: np.ndarray[Any, Any]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode("ascii")
