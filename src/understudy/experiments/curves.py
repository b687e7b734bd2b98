"""What an experiment has found: its points, each a run of its own with a certificate, as a curve or side by side.

The first key of a curve is its horizontal axis, the second gives one line for each of its values, and repeated points
give a mean with a deviation. A comparison has methods instead of keys.

Privacy: the figures of a point are computed with real data and carry the stamp of their evaluation. Every point spends
its own budget on the same data, so a curve states what all of them together have spent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from understudy.errors import InputError
from understudy.evaluate.evaluation import STAMP
from understudy.experiments.points import BUDGET_KEYS, PlannedPoint, hashable, shown_value
from understudy.experiments.total import Total
from understudy.files import read_object
from understudy.methods.config import build_config
from understudy.methods.registry import get_method, method_names
from understudy.privacy.certificate import read_certificate
from understudy.release.folders import CERTIFICATE, find_release
from understudy.runs.folder import RunFolder

CURVE_FILE, COMPARE_FILE = "curve.json", "compare.json"
CERTIFIED = "certified epsilon"
_ABSENT = object()
_MOST_NORMS = 200  # of a run, in the file of a curve


@dataclass(frozen=True)
class Point:
    """One finished run of an experiment: its settings, its certified price and its figures."""

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
    """An experiment as far as it has come."""

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
        named = [f"{key} = {shown_value(point.values.get(key))}" for key in self.keys[1:]]
        several = len({each.method for each in self.points}) > 1
        return ", ".join(([point.method] if several else []) + named) or point.method


class Comparison(Curve):
    """Methods side by side: points that differ in their method, so there is nothing to draw them against."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``compare.json``."""
        names = ("method", "folder", "epsilon", "delta", "figures", "runs_on_this_data", "seconds")
        told = super().as_dict()
        return {
            **{name: told[name] for name in ("schema", "metrics", "stamp")},
            "rows": [{name: point[name] for name in names} for point in told["points"]],
            **{name: told[name] for name in ("totals", "problems")},
        }


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
    files = RunFolder(folder)
    if not files.begun:
        raise InputError(f"curve: {folder} is not the folder of a run; pass folders that `understudy train` wrote")
    run, certificate = read_object(files.description, "run"), read_certificate(find_release(folder) / CERTIFICATE)
    evaluation = read_object(files.evaluation, "evaluation") if files.evaluation.is_file() else {}
    figures = {str(figure["name"]): float(figure["value"]) for figure in known_figures(evaluation)}
    headline = next(iter(certificate.guarantees), None)
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
        seconds=next(reversed(files.seconds()), None),
        stamp=evaluation.get("stamp", STAMP),
        clip=clip_bound(run),
        norms=_norms(files.diagnostics),
    )


def known_figures(evaluation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of an evaluation that have a name and a number; a strange file gives none."""
    listed = evaluation.get("figures")
    figures = [figure for figure in listed if isinstance(figure, Mapping)] if isinstance(listed, list) else []
    return [figure for figure in figures if "name" in figure and isinstance(figure.get("value"), (int, float))]


def clip_bound(run: Mapping[str, Any] | None) -> float | None:
    """The clip bound of a run, where its config names one."""
    config = (run or {}).get("config")
    privacy = config.get("privacy") if isinstance(config, Mapping) else None
    clip = privacy.get("clip") if isinstance(privacy, Mapping) else None
    return float(clip) if isinstance(clip, (int, float)) else None


def _line(name: str, group: Sequence[Sequence[Point]], metric: str, against: str) -> Line:
    rows = []
    for points in group:
        figures = [point.figures[metric] for point in points]
        prices = [point.epsilon for point in points if point.epsilon is not None]
        if against == CERTIFIED and not prices:
            continue  # without a guarantee there is no place on this axis
        position = fmean(prices) if against == CERTIFIED else hashable(points[0].values.get(against))
        rows.append((position, fmean(figures), stdev(figures) if len(figures) > 1 else 0.0))
    if all(isinstance(row[0], (int, float)) for row in rows):
        rows.sort(key=lambda row: float(row[0]))
    return Line(name, *(tuple(column) for column in zip(*rows, strict=True))) if rows else Line(name, (), (), ())


def _value_of(run: Mapping[str, Any], key: str, folder: Path) -> Any:
    """A setting of a run by its dotted name, also one that its file leaves out because it has its default."""
    stored, method = run.get("budget" if key in BUDGET_KEYS else "config"), run.get("method")
    value = _at(stored, key)
    if value is _ABSENT and isinstance(stored, Mapping) and method in method_names():
        value = _at(build_config(get_method(str(method)).config_type, stored), key)
    if value is _ABSENT:
        raise InputError(f"--over: the run in {folder} has no setting {key!r}; name one that all runs have")
    return value


def _at(place: object, key: str) -> object:
    """What stands at a dotted name, in plain data or in a config."""
    for part in key.split("."):
        place = place.get(part, _ABSENT) if isinstance(place, Mapping) else getattr(place, part, _ABSENT)
    return place


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
