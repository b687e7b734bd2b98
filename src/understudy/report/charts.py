"""Charts as inline SVG, drawn with matplotlib and without any window or global state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from understudy.release.meaning import AttackBound

INK, ACCENT, FAINT, WARM = "#22303c", "#0f766e", "#9aa8b3", "#b45309"


def budget_chart(points: Sequence[dict[str, float]], budget: float | None) -> str | None:
    """Epsilon spent over the steps of a run, below the budget; None when nothing was recorded."""
    spent = [(point["step"], point["epsilon_spent"]) for point in points if "epsilon_spent" in point]
    if not spent:
        return None
    with matplotlib.rc_context(_style("budget")):
        figure, axes = _figure(6.4, 2.9)
        steps, epsilons = [spent[0][0], *(step for step, _ in spent)], [0.0, *(value for _, value in spent)]
        axes.step(steps, epsilons, where="post", color=ACCENT, linewidth=2.2)
        axes.fill_between(steps, epsilons, step="post", color=ACCENT, alpha=0.12, linewidth=0)
        if budget is not None:
            axes.axhline(budget, color=WARM, linewidth=1.4, linestyle=(0, (5, 3)))
            axes.annotate(
                f"budget {budget:g}", (1, budget), (-2, 4), ("axes fraction", "data"), "offset points", ha="right"
            )
        axes.set_ylim(0, 1.18 * max([*epsilons, budget or 0.0]))
        axes.set_xlabel("step")
        axes.set_ylabel("epsilon spent")
        return _svg(figure)


def value_chart(points: Sequence[dict[str, float]], name: str) -> str | None:
    """One public value over the steps."""
    values = [(point["step"], point[name]) for point in points if name in point]
    if len(values) < 2:
        return None
    with matplotlib.rc_context(_style(name)):
        figure, axes = _figure(6.4, 2.9)
        axes.plot(*zip(*values, strict=True), color=INK, linewidth=1.6)
        axes.set_xlabel("step")
        axes.set_ylabel(name)
        return _svg(figure)


def attack_chart(bound: AttackBound) -> str:
    """The most that a membership test can find, for each share of false alarms on a logarithmic scale."""
    rates = [10 ** (exponent / 20) for exponent in range(-100, 1)]
    with matplotlib.rc_context(_style("attack")):
        figure, axes = _figure(6.4, 2.9)
        axes.plot(
            rates,
            [bound.true_positive_rate(rate) for rate in rates],
            color=ACCENT,
            linewidth=2.2,
            label="no attack can do better",
        )
        axes.plot(rates, rates, color=FAINT, linewidth=1.4, linestyle=(0, (5, 3)), label="guessing")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda rate, _: f"{100 * rate:g} %")
        axes.set_xlim(1e-5, 1)
        axes.set_ylim(0, 1.04)
        axes.set_xlabel("share of outsiders accused by mistake")
        axes.set_ylabel("share of members found")
        axes.legend(frameon=False, loc="upper left")
        return _svg(figure)


def _style(salt: str) -> dict[Any, Any]:
    """Settings for one drawing; the salt keeps the ids of several drawings on one page apart and reproducible."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.family": "sans-serif",
        "font.size": 11.0,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "text.parse_math": False,
    }


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.8)
    return figure, axes


def _svg(figure: Figure) -> str:
    """The drawing alone, without XML prologue and metadata, scaling with the page."""
    buffer = StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', r'<svg \1 xmlns="http://www.w3.org/2000/svg" role="img">', text, count=1
    )
