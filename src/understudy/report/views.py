"""Subjects as plain values for the page: what each section says, with a stamp on whatever came from private data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from understudy.experiments.curves import clip_bound, known_figures
from understudy.experiments.reproduce import train_command
from understudy.privacy import meaning
from understudy.privacy.certificate import Certificate, Guarantee, round_up
from understudy.privacy.claims.statements import claim_in_words, kept_claim_in_words
from understudy.report import charts, pictures
from understudy.report.published import comparable_rows, published_note
from understudy.report.subjects import Subject

STAMP = "not private: do not publish"
NOTHING = "\u2013"
_SHARES = tuple((step / 24) ** 1.5 for step in range(24))  # of epsilon; dense where the bound bends
_FALSE_ALARMS = (10, 100, 1000, 10_000)  # one outsider in so many is accused by mistake
_TITLES = {
    "fid": "FID",
    "is": "Inception score",
    "fid[lenet]": "Fréchet distance of LeNet features",
    "cnn": "CNN",
    "resnet": "Residual network",
    "mlp": "MLP",
}
_IN_TABLE = ("fid", "is", "cnn")  # figures that stand beside published ones where there are any
_MOST_PANELS = 4
_SHORT_NAME = 3  # letters of a class name that fit beside its samples; longer ones stand above them


@dataclass(frozen=True)
class View:
    """One subject, ready to be shown."""

    subject: Subject
    bound: meaning.AttackBound | None
    values: dict[str, Any]


def build_view(subject: Subject, number: int) -> View:
    """The sections about one subject; ``number`` keeps its charts apart from those of others."""
    certificate = subject.release.certificate if subject.release else None
    bound = _bound(certificate) if certificate and certificate.guarantees else None
    quality = _quality(subject)
    values = {
        "name": subject.name,
        "problem": subject.problem,
        "state": _state(subject),
        "facts": _facts(subject),
        "rows": [(label, pictures.strip(images)) for label, images in subject.rows],
        "long_names": any(label is not None and len(label) > _SHORT_NAME for label, _ in subject.rows),
        "left_out": _left_out(subject),
        "beside_real": _beside_real(subject),
        "guarantee": _guarantee(certificate, bound, f"attack-{number}") if certificate and bound else None,
        "checks": subject.verification.checks if subject.verification else (),
        "delta_remarks": subject.verification.remarks if subject.verification else (),
        "stated": subject.verification.stated if subject.verification else (),
        "signature": subject.verification.signature if subject.verification else None,
        "training": _training(subject, f"training-{number}"),
        "diagnostics": _diagnostics(subject, f"diagnostics-{number}"),
        "quality": quality,
        "kept_claims": _kept_claims(subject),
        "neighbours": _neighbours(subject, f"neighbours-{number}"),
        "command": _command(subject),
        "certificate": certificate,
        "not_private": certificate.not_private if certificate else None,
        "events": [meaning.event_in_words(event) for event in certificate.events] if certificate else [],
    }
    stamped = [values[name] for name in ("diagnostics", "kept_claims", "neighbours", "not_private", "beside_real")]
    stamped.append(quality and quality["stamp"])
    return View(subject, bound, {**values, "private": any(part is not None for part in stamped)})


def _left_out(subject: Subject) -> int:
    """Classes of which no sample is shown."""
    classes = subject.domain.classes if subject.domain else None
    return max(0, classes - len(subject.rows)) if classes and subject.rows else 0


def _beside_real(subject: Subject) -> dict[str, Any] | None:
    """Generated and real images of each class that has both."""
    real = dict(subject.real_rows)
    rows = [
        (name, pictures.strip(images), pictures.strip(real.pop(name))) for name, images in subject.rows if name in real
    ]
    return {"rows": rows, "stamp": STAMP} if rows else None


def _bound(certificate: Certificate) -> meaning.AttackBound:
    return meaning.attack_bound(certificate, [share * certificate.headline.epsilon for share in _SHARES])


def _state(subject: Subject) -> str:
    if subject.verification is None:
        return "not released yet"
    if subject.release is not None and subject.release.certificate.not_private:
        return "not private"
    return subject.verification.verdict


def _facts(subject: Subject) -> list[str]:
    """The short line below the title."""
    facts = [subject.method] if subject.method else []
    if subject.domain is None:
        return facts
    channels, height, width = subject.domain.shape
    return [
        *facts,
        f"{height} x {width} {'grey' if channels == 1 else 'RGB'}",
        f"{subject.domain.classes} classes" if subject.domain.labelled else "no classes",
        *([f"about {people:,} people"] if (people := subject.domain.nominal_people) else []),
        f"about {subject.domain.nominal_records:,} records",
    ]


def _guarantee(certificate: Certificate, bound: meaning.AttackBound, salt: str) -> dict[str, Any]:
    """The headline guarantee with what an attacker can gain from it."""
    headline = certificate.headline
    factor = meaning.odds_factor(headline.epsilon)
    return {
        "epsilon": round_up(headline.epsilon, 2),
        "delta": f"{headline.delta:g}",
        "unit": headline.unit,
        "adjacency": headline.adjacency,
        "viewer": headline.viewer,
        "sentences": meaning.in_words(headline, bound),
        "viewers": meaning.by_viewer(certificate.guarantees),
        "further": [_further(guarantee) for guarantee in certificate.guarantees[1:] if guarantee.unit != "client"],
        "data_dependent": [words for claim in certificate.data_dependent or () for words in claim_in_words(claim)],
        "odds": f"{float(round_up(factor, 1)):,.6g}" if factor < 1e6 else f"{factor:.0e}",
        "accuracy": meaning.percent(bound.accuracy()),
        "advantage": meaning.percent(bound.advantage()),
        "found": meaning.percent(bound.true_positive_rate(0.001)),
        "attacks": [_attack(bound, one_in) for one_in in _FALSE_ALARMS],
        "chart": Markup(charts.attack_chart([("no attack does better", bound)], salt)),
    }


def _further(guarantee: Guarantee) -> str:
    """A guarantee beside the headline in one line: how much, for whom, and against whom."""
    return (
        f"{meaning.claim(guarantee)} per {guarantee.unit}, {guarantee.adjacency} adjacency, against {guarantee.viewer}"
    )


def _attack(bound: meaning.AttackBound, one_in: int) -> dict[str, str]:
    """The best test that accuses at most one outsider in so many: what it finds, and what its accusation is worth."""
    rate = 1 / one_in
    found = bound.true_positive_rate(rate)
    return {
        "false_alarms": f"1 in {one_in:,}",
        "found": meaning.percent(found),
        "odds": f"{float(round_up(found / rate, 1)):,.6g} : 1",
        "certainty": meaning.percent(found / (found + rate)),
    }


def _training(subject: Subject, salt: str) -> dict[str, Any] | None:
    """What was spent over time, and the public values beside it."""
    if not subject.progress:
        return None
    budget = (subject.run or {}).get("budget") or {}
    allowed = budget.get("epsilon") if isinstance(budget, Mapping) else None
    limit = float(allowed) if isinstance(allowed, (int, float)) else None
    drawings = [charts.budget_chart(subject.progress, limit, f"{salt}-budget")]
    others = [name for name in subject.progress[-1] if name not in ("step", "epsilon_spent")]
    drawings += _small_charts(subject.progress, others, salt)
    return {
        "charts": [Markup(drawing) for drawing in drawings if drawing],
        "title": "Training" if drawings[0] is None else "Budget spent over training",
        "steps": f"{int(subject.progress[-1]['step']):,}",
    }


def _diagnostics(subject: Subject, salt: str) -> dict[str, Any] | None:
    """How long it took, and private values over the steps: gradient norms in one chart, all else in small ones."""
    points = subject.diagnostics
    seconds = None if subject.seconds is None else f"{subject.seconds:,.0f}"
    if not points:
        return None if seconds is None else {"charts": [], "seconds": seconds, "stamp": STAMP}
    drawings = [charts.norms_chart([(subject.name, points)], clip_bound(subject.run), f"{salt}-norms")]
    known = ("step", "gradient_norm_before", "gradient_norm_before_deviation", "gradient_norm_after")
    others = [name for name in points[-1] if name not in known]
    drawings += _small_charts(points, others, salt)
    shown = [Markup(drawing) for drawing in drawings if drawing]
    return {"charts": shown, "seconds": seconds, "stamp": STAMP} if shown or seconds else None


def _kept_claims(subject: Subject) -> dict[str, Any] | None:
    """Data-dependent claims of the private folder in words, beside the guarantee of the same run."""
    if subject.release is None or not subject.kept_claims or not subject.release.certificate.guarantees:
        return None
    beside = f"The guarantee of the same run: {meaning.claim(subject.release.certificate.headline)}."
    return {
        "stamp": STAMP,
        "lines": [beside, *(words for claim in subject.kept_claims for words in kept_claim_in_words(claim))],
    }


def _small_charts(points: Sequence[dict[str, float]], names: Sequence[str], salt: str) -> list[str | None]:
    return [charts.value_chart(points, name, f"{salt}-{place}") for place, name in enumerate(names[:_MOST_PANELS])]


def _quality(subject: Subject) -> dict[str, Any] | None:
    """Figures of an evaluation: accuracies as bars, the others as numbers, and the published rows to compare with."""
    evaluation = subject.evaluation
    if evaluation is None:
        return None
    published = _published(subject)
    figures = [figure for figure in known_figures(evaluation) if not (published and figure["name"] in _IN_TABLE)]
    bars = [
        {"name": _title(figure), "share": min(1.0, max(0.0, float(figure["value"]))), "worth": _worth(figure)}
        for figure in figures
        if _is_share(figure)
    ]
    numbers = [
        {"name": _title(figure), "value": f"{float(figure['value']):.4g}", "worth": _worth(figure)}
        for figure in figures
        if not _is_share(figure)
    ]
    tested = next(
        (figure["tested_on"] for figure in known_figures(evaluation) if isinstance(figure.get("tested_on"), int)), None
    )
    in_table = [figure for figure in known_figures(evaluation) if published and figure["name"] in _IN_TABLE]
    return {
        "bars": bars,
        "numbers": numbers,
        "worth": [(_title(figure), worth) for figure in in_table if (worth := _worth(figure))],
        "samples": evaluation.get("samples"),
        "left_out": [str(text) for text in _listed(evaluation.get("left_out"))],
        "tested": tested,
        "stamp": evaluation.get("stamp", STAMP),
        "published": published,
        "note": published_note(),
        "figures": {key: headline_figure(evaluation, key) for key in (*_IN_TABLE, "resnet")},
    }


def _is_share(figure: Mapping[str, Any]) -> bool:
    return "accuracy" in figure or str(figure["name"]).endswith("_accuracy")


def _worth(figure: Mapping[str, Any]) -> str | None:
    """The verdict on a score, with what chance and what real images give in its place; older files have none."""
    beside = figure.get("yardstick")
    if not isinstance(beside, Mapping) or not isinstance(beside.get("verdict"), str):
        return None
    named = ((beside.get("chance_means", "chance"), beside.get("chance")), ("real images", beside.get("real")))
    shown = [f"{name} {_shown(value, _is_share(figure))}" for name, value in named if isinstance(value, (int, float))]
    return f"{beside['verdict']} ({', '.join(shown)})"


def _shown(value: float, is_share: bool) -> str:
    return f"{100 * value:.1f} %" if is_share else f"{value:.4g}"


def _title(figure: Mapping[str, Any]) -> str:
    """What a figure is called; of a network with its size, which older files do not tell."""
    name, size = str(figure["name"]), figure.get("parameters")
    title = _TITLES.get(name, name.replace("_", " "))
    return f"{title} ({size:,} parameters)" if isinstance(size, int) else title


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def headline_figure(evaluation: Mapping[str, Any] | None, name: str) -> str | None:
    """One figure as text: an accuracy in percent, anything else as a number."""
    for figure in known_figures(evaluation or {}):
        if figure["name"] == name:
            return _shown(float(figure["value"]), _is_share(figure))
    return None


def _published(subject: Subject) -> list[dict[str, str | None]]:
    """What others report on the same data at the same level of epsilon, against the same viewer for the same unit."""
    if subject.release is None or subject.data is None:
        return []
    first = next(iter(subject.release.certificate.guarantees), None)
    claim = (math.inf, "public", "record") if first is None else (first.epsilon, first.viewer, first.unit)
    return [
        {
            "method": row.method,
            "epsilon": NOTHING if row.epsilon is None else f"{row.epsilon:g}",
            "fid": NOTHING if row.fid is None else f"{row.fid:g}",
            "is": NOTHING if row.inception_score is None else f"{row.inception_score:.2f}",
            "cnn": NOTHING if row.cnn_accuracy is None else f"{100 * row.cnn_accuracy:.1f} %",
            "source": row.source,
        }
        for row in comparable_rows(subject.data, *claim)
    ]


def _neighbours(subject: Subject, salt: str) -> dict[str, Any] | None:
    """Pairs of generated and real images, the closest first, and the distances of many."""
    check = subject.neighbours
    if check is None:
        return None
    held_out = None if check.held_out is None else [float(value) for value in check.held_out]
    return {
        "generated": pictures.strip(check.generated),
        "real": pictures.strip(check.real),
        "count": len(check.distances),
        "median": f"{np.median(check.distances):.3f}",
        "held_out": None if held_out is None else f"{np.median(held_out):.3f}",
        "suspicious": None if check.suspicious is None else f"{100 * check.suspicious:.1f} %",
        "chart": Markup(charts.distances_chart([float(value) for value in check.distances], held_out, salt)),
        "stamp": STAMP,
    }


def _command(subject: Subject) -> str | None:
    """The command that plans the same accesses again; None where too little is known."""
    run, domain, method = subject.run or {}, subject.domain, subject.method
    budget, config = run.get("budget"), run.get("config")
    if subject.release is not None:
        config = subject.release.method_config
        first = next(iter(subject.release.certificate.guarantees), None)
        budget = budget or (first and {"epsilon": first.epsilon, "delta": first.delta})
    if method is None or domain is None or not isinstance(config, Mapping):
        return None
    return train_command(method, _limits(budget), domain, config, subject.data)


def _limits(budget: object) -> tuple[float, float] | None:
    if not isinstance(budget, Mapping):
        return None
    epsilon, delta = budget.get("epsilon"), budget.get("delta")
    return (epsilon, delta) if isinstance(epsilon, (int, float)) and isinstance(delta, (int, float)) else None
