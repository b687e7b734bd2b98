"""Charts as inline SVG, drawn with matplotlib and without any window or global state.

Colours are written as style variables with a fallback, so that the page can show them on dark ground; the words of a
chart are text, so that they can be searched and read aloud.
"""

from __future__ import annotations

import html
import re
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from understudy.privacy.meaning import AttackBound

INK, FAINT, ALARM = "#1d2a33", "#8b979e", "#a8321f"
SERIES = ("#0b6b63", "#b05c0b", "#4a5d94", "#86517a", "#66752b", "#7a6a58")
_VARIABLES = {INK: "--chart-ink", FAINT: "--chart-faint", ALARM: "--alarm"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES, start=1)
}
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 2, 2)), (0, (4, 1, 1, 1, 1, 1)), "-")
_STEP = "step"
_MOST_INSIDE, _MOST_BANDS = 3, 2  # names in a legend inside the axes; runs with a band of deviation
_MARKERS = ("o", "s", "D", "^", "v", "P")

Points = Sequence[tuple[float, float]]


def style(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th line: apart also where there is no colour."""
    return {"color": SERIES[number % len(SERIES)], "linestyle": _DASHES[number % len(_DASHES)]}


def legend(axes: Axes) -> None:
    """Few names inside the axes, many of them below."""
    _, names = axes.get_legend_handles_labels()
    if len(names) <= _MOST_INSIDE:
        axes.legend(frameon=False, loc="best")
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    columns = 1 if max(len(name) for name in names) > 28 else 2
    figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(names) // columns))
    figure.legend(frameon=False, loc="outside lower center", ncols=columns)


def marker(number: int) -> str:
    """The marker of the n-th line."""
    return _MARKERS[number % len(_MARKERS)]


def budget_chart(points: Sequence[dict[str, float]], budget: float | None, salt: str) -> str | None:
    """Epsilon spent over the steps of a run, below the budget; None when nothing was recorded."""
    spent = [(point["step"], point["epsilon_spent"]) for point in points if "epsilon_spent" in point]
    if not spent:
        return None

    def draw(axes: Axes) -> None:
        steps, epsilons = [spent[0][0], *(step for step, _ in spent)], [0.0, *(value for _, value in spent)]
        axes.step(steps, epsilons, where="post", color=SERIES[0], linewidth=2.2)
        axes.fill_between(steps, epsilons, step="post", color=SERIES[0], alpha=0.12, linewidth=0)
        if budget is not None:
            axes.axhline(budget, color=ALARM, linewidth=1.3, linestyle=(0, (5, 3)))
            where = ("axes fraction", "data")
            axes.annotate(f"budget {budget:g}", (1, budget), (-2, 4), where, "offset points", ha="right", color=ALARM)
        axes.set_ylim(0, 1.2 * max([*epsilons, budget or 0.0]))
        _label(axes, _STEP, "epsilon spent")

    return drawing(draw, "Epsilon spent over the steps of the run", salt)


def value_chart(points: Sequence[dict[str, float]], name: str, salt: str) -> str | None:
    """One value over the steps; None where there is nothing to see: fewer than two, or a count of steps."""
    values = [(point["step"], point[name]) for point in points if name in point]
    ratios = {round(value / step, 9) for step, value in values if step}
    if len(values) < 2 or (len(ratios) == 1 and values[0][1] != values[-1][1]):
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*zip(*values, strict=True), color=SERIES[2], linewidth=1.6)
        _label(axes, _STEP, name.replace("_", " "))

    return drawing(draw, f"{name.replace('_', ' ')} over the steps of the run", salt)


def norms_chart(runs: Sequence[tuple[str, Sequence[dict[str, float]]]], clip: float | None, salt: str) -> str | None:
    """Gradient norms before clipping with their deviation, after clipping, and the bound; for one or several runs."""
    runs = [(name, points) for name, points in runs if any("gradient_norm_before" in point for point in points)]
    if not runs:
        return None

    def draw(axes: Axes) -> None:
        for number, (name, points) in enumerate(runs):
            known = [point for point in points if "gradient_norm_before" in point]
            steps = [point["step"] for point in known]
            before = np.array([point["gradient_norm_before"] for point in known])
            spread = np.array([point.get("gradient_norm_before_deviation", 0.0) for point in known])
            title = name if len(runs) > 1 else "before clipping"
            axes.plot(steps, before, linewidth=1.8, label=title, **style(number))
            if len(runs) <= _MOST_BANDS:
                low, colour = np.maximum(before - spread, 0.0), SERIES[number % len(SERIES)]
                axes.fill_between(steps, low, before + spread, color=colour, alpha=0.14, linewidth=0)
            if len(runs) == 1 and all("gradient_norm_after" in point for point in known):
                after = [point["gradient_norm_after"] for point in known]
                axes.plot(steps, after, linewidth=1.8, label="after clipping", **style(1))
        if clip is not None:
            axes.axhline(clip, color=ALARM, linewidth=1.2, linestyle=(0, (5, 3)), label=f"clip bound {clip:g}")
        axes.set_ylim(bottom=0)
        _label(axes, _STEP, "gradient norm" if len(runs) == 1 else "gradient norm before clipping")
        legend(axes)

    return drawing(draw, "Gradient norms before and after clipping over the steps", salt)


def attack_chart(bounds: Sequence[tuple[str, AttackBound]], salt: str) -> str:
    """The most that a membership test can find, for each share of false alarms on a logarithmic scale."""
    rates = [10 ** (exponent / 20) for exponent in range(-100, 1)]

    def draw(axes: Axes) -> None:
        for number, (name, bound) in enumerate(bounds):
            found = [bound.true_positive_rate(rate) for rate in rates]
            axes.plot(rates, found, linewidth=2.2, label=name, **style(number))
        axes.plot(rates, rates, color=FAINT, linewidth=1.4, linestyle=(0, (1, 1.5)), label="guessing")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda rate, _: f"{100 * rate:g} %")
        axes.yaxis.set_major_formatter(lambda rate, _: f"{100 * rate:.0f} %")
        axes.set_xlim(1e-5, 1)
        axes.set_ylim(0, 1.04)
        _label(axes, "outsiders accused by mistake", "members found, at most")
        axes.legend(frameon=False, loc="upper left")

    return drawing(draw, "Share of members that the best membership test finds, by its share of false alarms", salt)


def distances_chart(generated: Sequence[float], held_out: Sequence[float] | None, salt: str) -> str:
    """How far generated images lie from their nearest training image, beside held-out real ones."""

    def draw(axes: Axes) -> None:
        highest = max([*generated, *(held_out if held_out is not None else ())]) or 1.0
        bins = np.linspace(0, highest * 1.02, 41).tolist()
        groups = [("generated", generated)] + ([("held-out real", held_out)] if held_out is not None else [])
        for number, (name, values) in enumerate(groups):
            shares = np.full(len(values), 1 / max(1, len(values)))
            axes.hist(values, bins, weights=shares, histtype="stepfilled", alpha=0.16, color=SERIES[number])
            axes.hist(values, bins, weights=shares, histtype="step", linewidth=1.8, label=name, **style(number))
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f} %")
        _label(axes, "distance to the nearest training image", "share of images")
        axes.legend(frameon=False, loc="best")

    return drawing(draw, "Distances to the nearest training image", salt)


def drawing(draw: Callable[[Axes], None], title: str, salt: str) -> str:
    """One chart as inline SVG; the salt keeps the ids of several drawings on one page apart and reproducible."""
    text = _saved(draw, salt, "svg").decode("utf-8")
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable}, {colour})")
    label = f'xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(title)}"'
    return re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', lambda found: f"<svg {found[1]} {label}>", text, count=1)


def picture(draw: Callable[[Axes], None], salt: str, kind: str) -> bytes:
    """One chart as a file of its own (``svg`` or ``png``) on white ground."""
    return _saved(draw, salt, kind, facecolor="white")


def _saved(draw: Callable[[Axes], None], salt: str, kind: str, facecolor: str = "none") -> bytes:
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None} if kind == "svg" else {}
    with matplotlib.rc_context(_settings(salt)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # names may be in any script
        buffer = BytesIO()
        _figure(draw).savefig(buffer, format=kind, dpi=200, facecolor=facecolor, metadata=metadata)
    return buffer.getvalue()


def _settings(salt: str) -> dict[Any, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.size": 10.0,
        "legend.fontsize": 9.0,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.formatter.useoffset": False,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "text.parse_math": False,
    }


def _figure(draw: Callable[[Axes], None]) -> Figure:
    figure = Figure(figsize=(4.7, 2.9), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, alpha=0.3, linewidth=0.7)
    draw(axes)
    if axes.get_xlabel() == _STEP:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def _label(axes: Axes, below: str, beside: str) -> None:
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
