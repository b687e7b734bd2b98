"""Curves on a page and as files: what ``understudy curve`` has collected, drawn with its deviations and its price."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullFormatter, NullLocator

from understudy.errors import InputError
from understudy.experiments.curves import CERTIFIED, CURVE_FILE, Curve, Point
from understudy.experiments.total import Total
from understudy.files import read_json
from understudy.report import charts
from understudy.report.subjects import name_of
from understudy.report.views import NOTHING, STAMP

_TITLES = {
    "fid": "FID (lower is better)",
    "is": "Inception score (higher is better)",
    "cnn": "CNN accuracy",
    "resnet": "accuracy of the residual network",
}
_NUMBERS = ("fid", "fid[lenet]", "is")  # all other figures are shares
_WIDE = 20  # an axis whose largest value is so many times its smallest is drawn logarithmically
_MOST_NORMS = 6


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a curve."""
    return (folder / CURVE_FILE).is_file()


def read_curve(folder: Path) -> Curve:
    """The curve that ``understudy curve`` wrote."""
    raw = read_json(folder / CURVE_FILE, "curve")
    try:
        return Curve(
            keys=tuple(str(key) for key in raw["keys"]),
            metrics=tuple(str(name) for name in raw["metrics"]),
            points=tuple(Point(**point) for point in raw["points"]),
            totals=tuple(Total(**{key: total[key] for key in _TOTAL}) for total in raw["totals"]),
            problems={str(name): str(why) for name, why in raw["problems"].items()},
            command=raw["command"],
            device=raw["device"],
        )
    except (KeyError, TypeError, AttributeError):
        raise InputError(
            f"curve: {folder / CURVE_FILE} is not a curve; write it anew with `understudy curve`"
        ) from None


_TOTAL = ("data", "runs", "epsilon", "delta")


def sweep_view(folder: Path, number: int) -> dict[str, Any]:
    """A curve as plain values for the page.

    Privacy: its figures were computed with private data, and so were gradient norms; the view carries the stamp.
    """
    curve = read_curve(folder)
    drawings = [
        charts.drawing(draw, f"{metric_title(metric)} against {against}", f"curve-{number}-{place}")
        for place, (metric, against, draw) in enumerate(panels(curve))
    ]
    norms = norms_drawing(curve, f"norms-{number}")
    return {
        "name": name_of(folder),
        "keys": curve.keys,
        "metrics": [metric_title(name) for name in curve.metrics],
        "rows": [_row(point, curve) for point in curve.points],
        "charts": [Markup(drawing) for drawing in drawings],
        "norms": None if norms is None else Markup(norms),
        "totals": [total.in_words() for total in curve.totals],
        "problems": sorted(curve.problems.items()),
        "command": curve.command,
        "stamp": curve.stamp or (STAMP if norms else None),
    }


def panels(curve: Curve) -> list[tuple[str, str, Callable[[Axes], None]]]:
    """What to draw: each metric against each axis."""
    return [(metric, against, _drawer(curve, metric, against)) for metric in curve.metrics for against in curve.axes()]


def picture_files(curve: Curve) -> dict[str, bytes]:
    """The pictures of a curve by file name: SVG and PNG for each panel."""
    files: dict[str, bytes] = {}
    for metric, against, draw in panels(curve):
        suffix = "-by-epsilon" if against == CERTIFIED and len(curve.axes()) > 1 else ""
        stem = f"curve-{re.sub(r'[^a-z0-9]+', '-', metric.lower()).strip('-')}{suffix}"
        files |= {f"{stem}.{kind}": charts.picture(draw, stem, kind) for kind in ("svg", "png")}
    return files


def metric_title(name: str) -> str:
    """A metric as the label of an axis."""
    plain = name.replace("_", " ")
    return _TITLES.get(name, plain if name in _NUMBERS or plain.endswith("accuracy") else f"{plain} accuracy")


def norms_drawing(curve: Curve, salt: str) -> str | None:
    """Gradient norms of the points that recorded them; None where none did. They are private."""
    known = [point for point in curve.points if point.norms and point.repeat == 1][:_MOST_NORMS]
    runs = [(_short(point), point.norms) for point in known]
    clips = {point.clip for point in known}
    return charts.norms_chart(runs, clips.pop() if len(clips) == 1 else None, salt)


def _short(point: Point) -> str:
    """The settings of a point without the groups they are in."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point.values.items()) or point.folder


def _drawer(curve: Curve, metric: str, against: str) -> Callable[[Axes], None]:
    lines = curve.lines(metric, against)
    labels = list(dict.fromkeys(str(position) for line in lines for position in line.positions))
    numeric = all(_is_number(position) for line in lines for position in line.positions)

    def draw(axes: Axes) -> None:
        for number, line in enumerate(lines):
            places = [float(p) if numeric else float(labels.index(str(p))) for p in line.positions]
            look = {**charts.style(number), "linewidth": 1.8, "marker": charts.marker(number), "label": line.name}
            if any(line.deviations):
                axes.errorbar(places, line.means, line.deviations, capsize=3, **look)
            else:
                axes.plot(places, line.means, **look)
        _scale(axes, labels, sorted({float(label) for label in labels}) if numeric else None)
        if metric not in _NUMBERS:
            axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
        axes.set_xlabel(against)
        axes.set_ylabel(metric_title(metric))
        if len(lines) > 1:
            charts.legend(axes)

    return draw


def _scale(axes: Axes, labels: list[str], values: list[float] | None) -> None:
    """Names as they are; numbers logarithmic where they span much, with ticks at the values that were tried."""
    if values is None:
        axes.xaxis.set_major_locator(FixedLocator(list(range(len(labels)))))
        axes.xaxis.set_major_formatter(FixedFormatter(labels))
        axes.margins(x=0.15)
    elif values[0] > 0 and values[-1] > _WIDE * values[0]:
        axes.set_xscale("log")
        if len(values) <= 8:
            axes.xaxis.set_major_locator(FixedLocator(values))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{float(f'{value:.3g}'):,g}"))


def _row(point: Point, curve: Curve) -> dict[str, Any]:
    return {
        "method": point.method,
        "values": [str(point.values.get(key, NOTHING)) for key in curve.keys],
        "epsilon": NOTHING if point.epsilon is None else f"{point.epsilon:g}",
        "delta": NOTHING if point.delta is None else f"{point.delta:g}",
        "figures": [_figure(name, point.figures.get(name)) for name in curve.metrics],
    }


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.4g}" if name in _NUMBERS else f"{100 * value:.1f} %"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
