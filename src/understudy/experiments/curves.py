"""Curves: privacy against utility over the points of a sweep, each of which is a run of its own with a certificate.

A sweep lays values of one or two settings over a base; the first setting is the horizontal axis, the second gives one
line for each of its values, and repeated points give a mean with a deviation.

Privacy: the figures of a point are computed with real data and carry the stamp of their evaluation. Every point spends
its own budget on the same data, so a curve states what all of them together have spent.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from understudy.errors import InputError
from understudy.evaluate.evaluation import STAMP
from understudy.experiments.total import Total, read_object
from understudy.privacy.certificate import read_certificate
from understudy.release.folders import CERTIFICATE, find_release

BUDGET_KEYS = ("epsilon", "delta")
CERTIFIED = "certified epsilon"
MOST_POINTS = 1000
_MOST_NORMS = 200  # of a run, in the file of a curve


@dataclass(frozen=True)
class Axis:
    """A setting by its dotted name, or ``epsilon`` or ``delta`` of the budget, and the values to try."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class PlannedPoint:
    """The settings of one point of a sweep; ``repeat`` counts from 1."""

    values: dict[str, Any]
    repeat: int = 1

    @property
    def name(self) -> str:
        """The name of its folder: readable, and different for different points."""
        text = ",".join(f"{key}={_shown(value)}" for key, value in self.values.items())
        plain = re.sub(r"[^A-Za-z0-9._=,+-]", "_", text)[:100]
        mark = "" if plain == text else "-" + sha256(text.encode()).hexdigest()[:8]
        return f"{plain}{mark}{f'~{self.repeat}' if self.repeat > 1 else ''}"


@dataclass(frozen=True)
class Point:
    """One finished run of a sweep: its settings, its certified price and its figures."""

    folder: str
    method: str
    values: dict[str, Any]
    repeat: int
    epsilon: float | None  # certified; None for a method without privacy
    delta: float | None
    figures: dict[str, float]
    runs_on_this_data: int
    seconds: float | None = None
    stamp: str | None = STAMP
    clip: float | None = None
    norms: list[dict[str, float]] = field(default_factory=list)  # private: gradient norms over the steps


@dataclass(frozen=True)
class Line:
    """One line of a curve: positions, means and deviations over repeats."""

    name: str
    positions: tuple[Any, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """A sweep as far as it has come."""

    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    points: tuple[Point, ...]
    totals: tuple[Total, ...] = ()
    problems: dict[str, str] = field(default_factory=dict)  # points that broke down, with the reason
    command: str | None = None
    device: str | None = None

    @property
    def stamp(self) -> str | None:
        """The stamp of the figures: there unless all of them were computed with data that were declared public."""
        return next((point.stamp for point in self.points if point.stamp), None)

    def axes(self) -> tuple[str, ...]:
        """What the figures are drawn against: the first key and, where it differs between points, the price."""
        key = self.keys[:1] if self.keys and self.keys[0] != "epsilon" else ()
        return (*key, CERTIFIED) if self.epsilon_varies() or not key else key

    def lines(self, metric: str, against: str) -> list[Line]:
        """The figures of ``metric`` against a key or ``CERTIFIED``, sorted along the axis; repeats are one position."""
        groups: dict[str, dict[Any, list[Point]]] = {}
        for point in self.points:
            if metric in point.figures:
                same = json.dumps(point.values, sort_keys=True) if point.values else point.epsilon
                groups.setdefault(self._line_of(point), {}).setdefault(same, []).append(point)
        return [_line(name, list(group.values()), metric, against) for name, group in groups.items()]

    def epsilon_varies(self) -> bool:
        """Whether the certified epsilon differs by more than rounding and calibration leave."""
        epsilons = [point.epsilon for point in self.points if point.epsilon is not None]
        return len(epsilons) == len(self.points) > 0 and max(epsilons) > 1.02 * min(epsilons)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``curve.json``."""
        return {
            "schema": 1,
            "keys": list(self.keys),
            "metrics": list(self.metrics),
            "stamp": self.stamp,
            "points": [asdict(point) for point in self.points],
            "totals": [{**asdict(total), "in_words": total.in_words()} for total in self.totals],
            "problems": dict(self.problems),
            "command": self.command,
            "device": self.device,
        }

    def _line_of(self, point: Point) -> str:
        named = [f"{key} = {_shown(point.values.get(key))}" for key in self.keys[1:]]
        several = len({each.method for each in self.points}) > 1
        return ", ".join(([point.method] if several else []) + named) or point.method


def parse_axis(text: str) -> Axis:
    """``privacy.queries=1000,2000`` as an axis; values are read as JSON, else as text."""
    key, separator, raw = text.partition("=")
    key = key.strip()
    if not separator or not key or not raw.strip():
        raise InputError(f"--over: {text!r} is not of the form key=value,value; for example epsilon=1,3,10")
    values = tuple(_parsed(part.strip()) for part in re.split(r",(?![^\[]*\])", raw) if part.strip())
    if len({_hashable(value) for value in values}) < len(values):
        raise InputError(f"--over: {text!r} names a value twice; use --repeats to run points several times")
    if key in BUDGET_KEYS and not all(isinstance(value, (int, float)) for value in values):
        raise InputError(f"--over: {text!r}: {key} takes numbers; for example {key}=1,3,10")
    return Axis(key, values)


def plan_points(axes: Sequence[Axis], repeats: int = 1) -> list[PlannedPoint]:
    """Every combination of the values, each ``repeats`` times."""
    if not axes:
        raise InputError("--over: nothing to vary was named; pass for example --over epsilon=1,3,10")
    if len(axes) > 2:
        raise InputError(f"--over: {len(axes)} settings to vary; pass one for the axis and at most one for the lines")
    if len({axis.key for axis in axes}) < len(axes):
        raise InputError(f"--over: {axes[0].key} is named twice; put all of its values behind one --over")
    if repeats < 1:
        raise InputError(f"--repeats: {repeats}; pass 1 or more")
    count = math.prod(len(axis.values) for axis in axes) * repeats
    if count > MOST_POINTS:
        raise InputError(f"--over: {count} runs; at most {MOST_POINTS} make a curve, so name fewer values")
    combinations = itertools.product(*(axis.values for axis in axes))
    chosen = [dict(zip((axis.key for axis in axes), values, strict=True)) for values in combinations]
    return [PlannedPoint(values, repeat) for repeat in range(1, repeats + 1) for values in chosen]


def in_order(points: Sequence[Point]) -> tuple[Point, ...]:
    """Points by their settings, numbers by size, repeats side by side."""

    def place(value: Any) -> tuple[bool, float, str]:
        number = isinstance(value, (int, float))
        return (not number, float(value) if number else 0.0, str(value))

    order = [
        ([place(value) for value in point.values.values()], point.epsilon or 0.0, point.repeat) for point in points
    ]
    return tuple(points[number] for number in sorted(range(len(points)), key=order.__getitem__))


def read_point(folder: Path, keys: Sequence[str], metrics: Sequence[str], planned: PlannedPoint | None = None) -> Point:
    """A finished and evaluated run as a point of a curve.

    Privacy: copies figures that were computed with real data, together with their stamp.
    """
    if not (folder / "run.json").is_file():
        raise InputError(f"curve: {folder} is not the folder of a run; pass folders that `understudy train` wrote")
    run, certificate = read_object(folder / "run.json", "run"), read_certificate(find_release(folder) / CERTIFICATE)
    evaluation = read_object(folder / "evaluation.json", "evaluation") if (folder / "evaluation.json").is_file() else {}
    figures, headline = figures_of(evaluation), next(iter(certificate.guarantees), None)
    wanted = list(metrics) or list(figures)
    missing = [name for name in wanted if name not in figures]
    if missing or not wanted:
        what = missing[0] if missing else "any figure"
        raise InputError(f"curve: {folder} has no figure for {what}; measure it with `understudy evaluate` first")
    return Point(
        folder=folder.name,
        method=certificate.method,
        values=planned.values if planned else {key: _value_of(run, key, folder) for key in keys},
        repeat=planned.repeat if planned else 1,
        epsilon=headline.epsilon if headline else None,
        delta=headline.delta if headline else None,
        figures={name: figures[name] for name in wanted},
        runs_on_this_data=certificate.runs_on_this_data,
        seconds=_seconds(folder / "progress.jsonl"),
        stamp=evaluation.get("stamp", STAMP),
        clip=_clip(run),
        norms=_norms(folder / "private" / "diagnostics.jsonl"),
    )


def shown_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """The figures that a curve shows: those asked for, and for all classifiers together their two averages."""
    names: list[str] = []
    for metric in metrics:
        names += ["average_accuracy", "calibrated_accuracy"] if metric == "downstream" else [metric]
    return tuple(dict.fromkeys(names))


def figures_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an evaluation by name."""
    listed = evaluation.get("figures")
    figures = [figure for figure in listed if isinstance(figure, Mapping)] if isinstance(listed, list) else []
    numbers = [figure for figure in figures if isinstance(figure.get("value"), (int, float)) and "name" in figure]
    return {str(figure["name"]): float(figure["value"]) for figure in numbers}


def _line(name: str, group: Sequence[Sequence[Point]], metric: str, against: str) -> Line:
    rows = []
    for points in group:
        figures = [point.figures[metric] for point in points]
        prices = [point.epsilon for point in points if point.epsilon is not None]
        if against == CERTIFIED and not prices:
            continue  # without a guarantee there is no place on this axis
        position = fmean(prices) if against == CERTIFIED else _hashable(points[0].values.get(against))
        rows.append((position, fmean(figures), stdev(figures) if len(figures) > 1 else 0.0))
    if all(isinstance(row[0], (int, float)) for row in rows):
        rows.sort(key=lambda row: float(row[0]))
    return Line(name, *(tuple(column) for column in zip(*rows, strict=True))) if rows else Line(name, (), (), ())


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, bool, type(None))) else json.dumps(value)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _value_of(run: Mapping[str, Any], key: str, folder: Path) -> Any:
    """A setting of a run by its dotted name."""
    place: Any = run.get("budget") if key in BUDGET_KEYS else run.get("config")
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            raise InputError(f"--over: the run in {folder} has no setting {key!r}; name one that all runs have")
        place = place[part]
    return place


def _clip(run: Mapping[str, Any]) -> float | None:
    """The clip bound, where the method has one."""
    privacy = (run.get("config") or {}).get("privacy") or {}
    clip = privacy.get("clip")
    return float(clip) if isinstance(clip, (int, float)) else None


def _norms(path: Path) -> list[dict[str, float]]:
    """Gradient norms that a run kept among its private diagnostics, thinned out; a torn line is skipped."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows.append({key: float(row[key]) for key in row if key == "step" or key.startswith("gradient_norm")})
        except (ValueError, TypeError):
            continue
    rows = [row for row in rows if "step" in row and "gradient_norm_before" in row]
    return rows[:: max(1, -(-len(rows) // _MOST_NORMS))]


def _seconds(path: Path) -> float | None:
    """How long a run had worked at its last report."""
    try:
        return float(json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["seconds"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
