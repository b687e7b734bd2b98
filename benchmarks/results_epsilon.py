"""What every row promises and to whom: each epsilon recomputed, and only like beside like.

An epsilon without its viewer, unit, adjacency and delta can be compared with nothing. So every figure that stands in a
table of results is a ``Promise``, ours from its certificate and a published one from ``published.json``; a figure that
leaves something out, or that would stand in one column with a promise of another kind, ends the writing of the page.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from understudy.errors import UnderstudyError
from understudy.federated.claims import claims_by_viewer
from understudy.methods.registry import get_method, method_names
from understudy.privacy import accounting, viewers
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Certificate, ClientLimits, Guarantee, parse_certificate
from understudy.privacy.events import Event
from understudy.report.published import PublishedRow

Row = dict[str, Any]
CUSTOMARY_DELTA = 1e-5
SMALLER_DELTA = 2.5e-4  # at which federated rows state their epsilons too
WORTH_A_WARNING = 0.01  # delta times the number of units
VIEWERS = ("public", "server", "client")
KIND = ("viewer", "unit", "adjacency", "coalition")  # what two promises share that may be compared
_STARTS = {"mean embedding": "an embedding", "central images": "central images"}  # by what a purpose holds
_RANDOM = "random weights"
_TEACHER = "the teacher's gradients"
_STATED = ("viewer", "unit", "adjacency", "delta")
_KNOWN_PARTS = {"accountant", viewers.LIMITS_PART}


@dataclass(frozen=True)
class Promise:
    """One epsilon with all that is needed to compare it; None stands for what a published source does not say."""

    source: str
    epsilon: float
    viewer: str
    unit: str
    adjacency: str | None
    delta: float | None
    units: int | None
    coalition: int | None = None
    at_smaller_delta: float | None = None
    published: bool = False

    def __str__(self) -> str:
        against = f"{self.viewer} (a coalition of {self.coalition})" if self.coalition else self.viewer
        kind = (f"against {against}", f"for one {self.unit}", self.adjacency)
        stated = ", ".join(word for word in kind if word)
        at = "" if self.delta is None else f" at delta {self.delta:g}"
        return f"{self.source} has epsilon {figure(self.epsilon)}{at} {stated}"


def figure(epsilon: float) -> str:
    """An epsilon with all the digits that its source has."""
    return f"{epsilon:,.10g}"


def require_alike(promises: Iterable[Promise], fields: Sequence[str] = KIND) -> None:
    """Refuse figures that must not stand in one column, because they promise different things."""
    known: dict[str, Promise] = {}
    for promise in promises:
        for field in fields:
            other = known.setdefault(field, promise) if getattr(promise, field) is not None else promise
            if getattr(other, field) != getattr(promise, field):
                raise SystemExit(f"{other}, but {promise}: two figures of different {field} must not share a column")


# Ours, from certificates


@cache
def federated_methods() -> frozenset[str]:
    """The methods that train with clients."""
    return frozenset(name for name in method_names() if ".federated." in type(get_method(name)).__module__)


def is_federated(row: Row) -> bool:
    """Whether a row or point is of a federation: by its method, or by what its certificate speaks of."""
    certificate = row.get("certificate") or {}
    stated = [*certificate.get("guarantees", ()), *certificate.get("events", ())]
    declared = any(str(item).startswith("nominal_clients") for item in certificate.get("assumed_public", ()))
    return declared or row.get("method") in federated_methods() or any(item.get("unit") == "client" for item in stated)


def unit_of(row: Row) -> str:
    """Whom the row's certificate protects: a record unless it says otherwise."""
    guarantees = (row.get("certificate") or {}).get("guarantees") or [{}]
    return str(guarantees[0].get("unit", "record"))


def start_of(row: Row) -> str:
    """What a row was trained from, and who names its samples, as its events say."""
    found = [name for word, name in _STARTS.items() if any(word in purpose for purpose in _purposes(row))]
    return (found or [_RANDOM])[0] + ("; named by a teacher" if has_teacher(row) else "")


def from_random_weights(row: Row) -> bool:
    """Whether no event of a row bought a start."""
    return start_of(row).startswith(_RANDOM)


def has_teacher(row: Row) -> bool:
    """Whether a private teacher names its samples."""
    return _TEACHER in _purposes(row)


def _purposes(row: Row) -> list[str]:
    return [str(event.get("purpose")) for event in (row.get("certificate") or {}).get("events", ())]


def promises(stem: str, row: Row) -> tuple[Promise, ...]:
    """Every guarantee of the row's certificate, the headline first, confirmed from its events; none if not private."""
    try:
        return _promises(stem, row)
    except UnderstudyError as error:
        raise SystemExit(f"{stem}: {error}") from None


def _promises(stem: str, row: Row) -> tuple[Promise, ...]:
    federated = is_federated(row)
    if "certificate" not in row:
        raise SystemExit(f"{stem}: a federated row needs its certificate, which says against whom its epsilon holds")
    if federated:
        _check_stated(stem, row["certificate"])
    certificate = parse_certificate(row["certificate"])
    if certificate.not_private is not None:
        return ()
    _check_row(stem, row, certificate)
    for guarantee in certificate.guarantees:
        _confirm(stem, guarantee, certificate)
    smaller = _at_smaller_delta(stem, certificate) if federated else {}
    return tuple(
        Promise(
            stem,
            **guarantee.model_dump(include={"epsilon", "viewer", "unit", "adjacency", "delta", "coalition"}),
            units=_units(stem, certificate, guarantee.unit),
            at_smaller_delta=smaller.get(guarantee.viewer),
        )
        for guarantee in certificate.guarantees
    )


def _check_stated(stem: str, raw: Row) -> None:
    """A certificate may leave out what is usual; of a federation nothing is usual."""
    for number, guarantee in enumerate(raw["guarantees"], start=1):
        missing = [name for name in _STATED if guarantee.get(name) is None]
        if missing:
            raise SystemExit(
                f"{stem}: guarantee {number} does not state its {', '.join(missing)}; every epsilon of a federation "
                f"stands on the page with its {', '.join(_STATED)}"
            )


def _check_row(stem: str, row: Row, certificate: Certificate) -> None:
    """The figures beside the certificate are the certificate's own, and the first of them is the one for the public."""
    headline = certificate.headline
    if headline.viewer != "public":
        raise SystemExit(f"{stem}: the first guarantee is against {headline.viewer}; the first one is for the public")
    told = {guarantee.viewer: guarantee.epsilon for guarantee in certificate.guarantees}
    stated = {"epsilon": headline.epsilon, "delta": headline.delta, "epsilon_by_viewer": told}
    for name, certified in stated.items():
        if row.get(name, certified) != certified:
            raise SystemExit(f"{stem}: {name} {row[name]} stands beside a certificate that says {certified}")
    units = {event.unit for event in certificate.events} | {each.unit for each in certificate.guarantees}
    if len(units) > 1 or len({each.delta for each in certificate.guarantees}) > 1:
        raise SystemExit(f"{stem}: the certificate mixes units or deltas; a row of the page has one of each")


def _units(stem: str, certificate: Certificate, unit: str) -> int | None:
    """The declared, public number of units."""
    name = f"nominal_{unit}s: "
    found = [int(item.removeprefix(name)) for item in certificate.assumed_public if item.startswith(name)]
    if not found and unit == "client":
        raise SystemExit(f"{stem}: the certificate does not say how many clients were enrolled (nominal_clients)")
    return found[0] if found else None


def _confirm(stem: str, guarantee: Guarantee, certificate: Certificate) -> None:
    """Both numerical accountants come out at or below the claim, and delta pays for the limits of the answers."""
    events = viewers.events_seen(certificate.events, guarantee)
    for accountant in ("pld", "fourier"):
        found = _epsilon(_counted(events), guarantee.accounted_delta, accountant)
        if found > guarantee.epsilon:
            raise SystemExit(f"{stem}: {accountant} gives epsilon {found}, above the claimed {guarantee.epsilon}")
    if guarantee.limits is None or guarantee.viewer == "server":
        return
    needed = viewers.limits_delta(guarantee.limits, guarantee.epsilon)
    kept = (guarantee.delta_parts or {}).get(viewers.LIMITS_PART, 0.0)
    if needed > kept * (1 + 1e-6):
        raise SystemExit(f"{stem}: the limits of answers cost {needed:g} of delta, but {kept:g} is set aside for them")


def _at_smaller_delta(stem: str, certificate: Certificate) -> dict[str, float]:
    """What holds against each viewer at the smaller delta, by both accountants; delta pays for the limits there too."""
    unknown = {part for each in certificate.guarantees for part in each.delta_parts or ()} - _KNOWN_PARTS
    if unknown:
        raise SystemExit(f"{stem}: delta has a part {sorted(unknown)[0]!r} that cannot be recomputed at another delta")
    limits = {guarantee.limits for guarantee in certificate.guarantees}
    if len(limits) > 1:
        raise SystemExit(f"{stem}: the guarantees state different limits for the answers of a client")
    coalitions = [each.coalition for each in certificate.guarantees if each.coalition is not None]
    return dict(_claims(_counted(certificate.events), limits.pop(), next(iter(coalitions), None)))


def _counted(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events without what no accountant reads, so that equal ones are accounted once for all rows."""
    return tuple(event.model_copy(update={"purpose": None, "planned": None, "executed": None}) for event in events)


@cache
def _epsilon(events: tuple[Event, ...], delta: float, accountant: str) -> float:
    return accounting.epsilon(events, delta, accountant)


@cache
def _claims(
    events: tuple[Event, ...], limits: ClientLimits | None, coalition: int | None
) -> tuple[tuple[str, float], ...]:
    if limits is None:
        return (("public", accounting.certified_epsilon(events, SMALLER_DELTA)),)
    about = 1.01 * _epsilon(events, SMALLER_DELTA, "fourier") + 0.01  # where the search begins, not what it finds
    claims = claims_by_viewer(events, limits, Budget(about, SMALLER_DELTA), coalition or limits.clients)
    return tuple((claim.viewer, claim.epsilon) for claim in claims)


# Published ones


def published_promise(row: PublishedRow) -> Promise | None:
    """What a published row promises; None where it has no epsilon."""
    if row.epsilon is None:
        return None
    source = f"the published {row.method!r} on {row.dataset}"
    federated = row.unit == "client" or row.like in federated_methods()
    wanted = ("viewer", "unit", "delta") if federated else ("viewer", "unit")
    missing = [name for name in wanted if getattr(row, name) is None]
    if missing or row.viewer is None or row.unit is None:
        raise SystemExit(
            f"{source} has epsilon {figure(row.epsilon)} without its {', '.join(missing)} (published.json)"
        )
    if row.like in federated_methods() and row.unit != "client":
        raise SystemExit(f"{source} is for one {row.unit}, but {row.like}, which it stands beside, is for one client")
    kind = (row.viewer, row.unit, row.adjacency, row.delta, row.units)
    return Promise(source, row.epsilon, *kind, published=True)


# Columns and remarks


def viewer_columns(rows: Sequence[Sequence[Promise]]) -> tuple[list[str], list[list[str]]]:
    """One column for each viewer that any row speaks of: heads that say what they hold, and a cell for each row."""
    found = {promise.viewer for row in rows for promise in row}
    columns = [viewer for viewer in VIEWERS if viewer in found]
    for viewer in columns:
        same = [promise for row in rows for promise in row if promise.viewer == viewer]
        require_alike(same, (*KIND, "delta"))
    heads = [_head([promise for row in rows for promise in row if promise.viewer == viewer]) for viewer in columns]
    return heads, [[_cell(viewer, row) for viewer in columns] for row in rows]


def _head(same: Sequence[Promise]) -> str:
    adjacency = next((promise.adjacency for promise in same if promise.adjacency), "adjacency not stated")
    coalition = next((f", a coalition of {promise.coalition}" for promise in same if promise.coalition), "")
    return f"epsilon against `{same[0].viewer}`{coalition} ({adjacency})"


def _cell(viewer: str, row: Sequence[Promise]) -> str:
    for promise in row:
        if promise.viewer == viewer:
            smaller = promise.at_smaller_delta
            brackets = "" if promise.published else f" ({'none' if smaller is None else _rounded_up(smaller)})"
            return figure(promise.epsilon) + brackets
    return "not stated" if any(promise.published for promise in row) else "none"


def _rounded_up(epsilon: float) -> str:
    """A recomputed figure, which may differ in its last digits from machine to machine."""
    return f"{math.ceil(epsilon * 100) / 100:,.2f}"


def columns_in_words(rows: Sequence[Sequence[Promise]], docs: str) -> str:
    """What a table of viewers protects and at which delta; a warning where that is large for so many units."""
    first = next(promise for row in rows for promise in row)
    assert first.delta is not None, "every figure of a federation states it"
    text = (
        f"Protected is one {first.unit} with all its images, and each column is one viewer "
        f"([viewers]({docs}federated.md#what-is-promised-against-whom)). Epsilon is at delta {first.delta:g}, and in "
        f"brackets at delta {SMALLER_DELTA:g}. *None*: nothing is promised. *Not stated*: the source has no figure."
    )
    alarming = _by_units(promise for row in rows for promise in row)
    if not alarming:
        return paragraph(text)
    shares = [
        f"{delta:g} times {units:,} {unit}s is {_share(total)}" + (" (as published)" if published else "")
        for (delta, unit, units, published), total in alarming.items()
    ]
    ours = sorted({units for _, _, units, published in alarming if not published})
    smaller = "".join(f" At {SMALLER_DELTA:g} it is {_share(SMALLER_DELTA * units)} for {units:,}." for units in ours)
    warning = (
        f"**Delta is large here:** {', '.join(shares)}. Above {WORTH_A_WARNING:g} delta alone may well mean that some "
        f"{first.unit} is exposed outright.{smaller}"
    )
    return paragraph(text) + "\n" + paragraph(warning)


def paragraph(text: str) -> str:
    """Text in lines of the usual length."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _share(total: float) -> str:
    return f"{total:.2f}" if total >= 0.1 else f"{total:.2g}"


def _by_units(found: Iterable[Promise]) -> dict[tuple[float, str, int, bool], float]:
    """Delta times units, where that is worth a warning; ours first."""
    known = {
        (promise.delta, promise.unit, promise.units, promise.published): promise.delta * promise.units
        for promise in sorted(found, key=lambda promise: promise.published)
        if promise.delta is not None and promise.units is not None
    }
    return {key: share for key, share in known.items() if share > WORTH_A_WARNING}


def delta_remark(by_dataset: dict[str, list[Promise]]) -> str:
    """One plain remark for all tables: how many units delta alone would let out, in expectation."""
    where: dict[tuple[float, str, int], list[str]] = {}
    for dataset, found in by_dataset.items():
        for delta, unit, units, published in _by_units(found):
            if not published:
                where.setdefault((delta, unit, units), []).append(dataset)
    if not where:
        return ""
    told = [
        f"{delta:g}{', the customary one,' if delta == CUSTOMARY_DELTA else ''} times {units:,} {unit}s is "
        f"{_share(delta * units)} ({', '.join(datasets)})"
        for (delta, unit, units), datasets in where.items()
    ]
    return paragraph(
        "**A remark on delta.** Delta should lie far below one over the number of protected units: by delta alone, "
        f"delta times that number is how many units may be published whole, in expectation. Here {'; '.join(told)}. "
        f"Above {WORTH_A_WARNING:g} that deserves a warning; above a tenth, epsilon promises less than it sounds like."
    )
