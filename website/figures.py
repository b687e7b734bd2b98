"""The pictures of ``docs/epsilon.md``: drawn from the accountants and from committed results, nothing by hand.

``python website/figures.py`` writes ``docs/pictures/*.svg``; the same code and the same results give the same files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.engines.embedding.config import embedding_event
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.meaning import AttackBound, percent

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs/pictures"
CURVE = "curve-dp-merf-digits-over-epsilon"
DELTA = 1e-5
INK, SOFT, TEAL, AMBER, GROUND = "#1c2b2f", "#6b7b80", "#0b6b5f", "#b4610f", "#fbfdfc"
_SHADES = {1.0: "#0b6b5f", 3.0: "#b4610f", 10.0: "#7a3e9d"}


def main() -> None:
    """Write all pictures."""
    for name, text in pictures().items():
        (PICTURES / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/pictures/{name}")


def pictures() -> dict[str, str]:
    """Every picture under its name."""
    return {
        "two-worlds.svg": two_worlds(),
        "belief.svg": belief(),
        "attack.svg": attack(),
        "adding-up.svg": adding_up(),
        "quality.svg": quality(),
    }


# Drawing


@dataclass(frozen=True)
class Plot:
    """A rectangle with axes; values become pixels."""

    across: tuple[float, float]
    up: tuple[float, float]
    logarithmic: bool = False
    left: float = 70
    right: float = 600
    top: float = 30
    bottom: float = 270

    def x(self, value: float) -> float:
        """Where a value stands from left to right."""
        low, high = (math.log(end) for end in self.across) if self.logarithmic else self.across
        place = math.log(value) if self.logarithmic else value
        return self.left + (place - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Where a value stands from bottom to top."""
        low, high = self.up
        return self.bottom - (value - low) / (high - low) * (self.bottom - self.top)

    def line(self, points: Iterable[tuple[float, float]], colour: str, dashed: bool = False) -> str:
        """A line through points."""
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dashes}/>'

    def axes(self, across: Sequence[float], up: Sequence[float], names: tuple[str, str], percent: bool) -> str:
        """Marks, their figures, and what they count."""
        parts = [f'<path d="M{self.left} {self.top}V{self.bottom}H{self.right}" fill="none" stroke="{SOFT}"/>']
        for value in up:
            place = self.y(value)
            parts.append(f'<path d="M{self.left} {place:.1f}H{self.right}" stroke="#dfe6e5"/>')
            shown = f"{100 * value:g} %" if percent else f"{value:g}"
            parts.append(text(self.left - 8, place + 5, shown, anchor="end", colour=SOFT))
        for value in across:
            parts.append(text(self.x(value), self.bottom + 20, f"{value:g}", anchor="middle", colour=SOFT))
        parts.append(text((self.left + self.right) / 2, self.bottom + 42, names[0], anchor="middle"))
        parts.append(text(self.left - 50, self.top - 12, names[1]))
        return "".join(parts)


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = INK, size: int = 15) -> str:
    """Words at a place."""
    safe = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{safe}</text>'


def picture(title: str, parts: Iterable[str], height: int = 325) -> str:
    """One SVG of 640 pixels width, with a ground of its own so that it can be read on light and dark pages."""
    inner = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" role="img" aria-label="{title}" '
        f'font-family="system-ui, sans-serif">\n<title>{title}</title>\n'
        f'<rect width="640" height="{height}" rx="8" fill="{GROUND}"/>\n{inner}\n</svg>\n'
    )


# The pictures


def two_worlds() -> str:
    """The promise: the same training with and without one image."""
    parts = []
    for row, (name, last, colour) in enumerate((("with the image", True, AMBER), ("without it", False, SOFT))):
        y = 70 + 120 * row
        parts.append(text(30, y - 34, name, colour=INK))
        for number in range(6):
            kept = number < 5 or last
            fill = (AMBER if number == 5 else "#9fc5be") if kept else "none"
            dashes = "" if kept else ' stroke-dasharray="3 3"'
            parts.append(
                f'<rect x="{30 + 26 * number}" y="{y - 20}" width="20" height="20" rx="3" fill="{fill}" '
                f'stroke="{colour if number == 5 else "#7fa9a1"}"{dashes}/>'
            )
        parts.append(_arrow(200, y - 10, 265))
        parts.append(text(272, y - 5, "training, with noise"))
        parts.append(_arrow(420, y - 10, 470))
        parts.append(text(478, y - 5, "a release"))
    parts.append(f'<path d="M560 62V172" stroke="{TEAL}" stroke-width="2.5"/>')
    parts.append(text(560, 225, "at most e^epsilon times as likely, either way", anchor="end", colour=TEAL))
    return picture(
        "Two worlds: trained with one image, and without it; the releases can hardly be told apart", parts, 250
    )


def _arrow(start: float, y: float, end: float) -> str:
    head = f"M{end - 8} {y - 5}L{end} {y}L{end - 8} {y + 5}"
    return f'<path d="M{start} {y}H{end}{head}" fill="none" stroke="{SOFT}" stroke-width="2"/>'


def belief() -> str:
    """What somebody who thought 50 to 50 may think at most."""
    parts = [text(30, 34, "From “50 to 50” that an image was in the data, to at most:")]
    for row, epsilon in enumerate((0.1, 1.0, 3.0, 10.0)):
        y, share = 70 + 52 * row, 1 / (1 + math.exp(-epsilon))
        parts.append(text(120, y + 5, f"epsilon {epsilon:g}", anchor="end"))
        parts.append(f'<rect x="135" y="{y - 14}" width="400" height="28" rx="4" fill="#e4ecea"/>')
        parts.append(f'<rect x="135" y="{y - 14}" width="{400 * share:.1f}" height="28" rx="4" fill="{TEAL}"/>')
        parts.append(text(545, y + 5, percent(share)))
    parts.append('<path d="M335 50V245" stroke="#fbfdfc" stroke-width="2" stroke-dasharray="4 4"/>')
    return picture("What a promise of epsilon 0.1, 1, 3 and 10 leaves of doubt", parts, 265)


def attack() -> str:
    """The best possible attack on one noisy release, calibrated to epsilon 1, 3 and 10."""
    plot = Plot((0, 1), (0, 1))
    shares = [number / 100 for number in range(101)]
    parts = [plot.axes((0, 0.2, 0.4, 0.6, 0.8, 1), (0, 0.25, 0.5, 0.75, 1), ("wrongly accused (share)", "found"), True)]
    parts.append(plot.line([(0, 0), (1, 1)], SOFT, dashed=True))
    for row, (epsilon, colour) in enumerate(_SHADES.items()):
        bound = _bound(_calibrated(epsilon))
        parts.append(plot.line([(share, bound.true_positive_rate(share)) for share in shares], colour))
        told = f"epsilon {epsilon:g}: right in {percent(bound.accuracy())} of cases"
        parts.append(text(330, 190 + 22 * row, told, colour=colour))
    parts.append(text(330, 190 + 22 * 3, "guessing: 50 %", colour=SOFT))
    return picture("The best possible attack on one noisy release, at epsilon 1, 3 and 10", parts)


def _calibrated(epsilon: float) -> Event:
    """The one release of dp-merf with the least noise that an epsilon allows."""
    return embedding_event(accounting.calibrate(lambda noise: [embedding_event(noise)], Budget(epsilon, DELTA)))


def _bound(event: Event) -> AttackBound:
    grid = [number / 10 for number in range(101)]
    return AttackBound(tuple((epsilon, accounting.delta([event], epsilon)) for epsilon in grid))


def adding_up() -> str:
    """Several runs on the same data: their composition beside the plain sum."""
    plot = Plot((1, 10), (0, 10))
    event, runs = _calibrated(1.0), range(1, 11)
    together = [(run, accounting.certified_epsilon([event.model_copy(update={"count": run})], DELTA)) for run in runs]
    parts = [
        plot.axes(
            list(runs), (0, 2, 4, 6, 8, 10), ("runs on the same data, each at epsilon 1", "epsilon of all"), False
        )
    ]
    parts.append(plot.line([(run, float(run)) for run in runs], SOFT, dashed=True))
    parts.append(plot.line(together, TEAL))
    parts += [_dot(plot, run, epsilon, TEAL) for run, epsilon in together]
    parts.append(
        text(plot.x(10) - 8, plot.y(together[-1][1]) - 14, f"{together[-1][1]:.1f}", anchor="end", colour=TEAL)
    )
    parts.append(text(plot.x(7), plot.y(7) - 12, "plain sum", anchor="end", colour=SOFT))
    return picture("Epsilon of one to ten runs of dp-merf on the same data, each at epsilon 1", parts)


def quality() -> str:
    """What a smaller epsilon costs: the committed sweep of dp-merf over epsilon, every run a point."""
    points = json.loads((ROOT / f"benchmarks/results/{CURVE}.json").read_text(encoding="utf-8"))["points"]
    plot = Plot((0.25, 12), (0.5, 1), logarithmic=True)
    found: dict[float, list[float]] = {}
    for point in points:
        found.setdefault(point["values"]["epsilon"], []).append(point["figures"]["cnn"])
    names = ("epsilon (each point is one run)", "accuracy on real digits of a classifier that saw generated ones only")
    parts = [plot.axes(sorted(found), (0.5, 0.6, 0.7, 0.8, 0.9, 1), names, True)]
    parts.append(plot.line([(epsilon, sum(some) / len(some)) for epsilon, some in sorted(found.items())], TEAL))
    parts += [_dot(plot, epsilon, share, AMBER) for epsilon, some in found.items() for share in some]
    return picture("Accuracy against epsilon: dp-merf on the bundled digits", parts)


def _dot(plot: Plot, x: float, y: float, colour: str) -> str:
    return f'<circle cx="{plot.x(x):.1f}" cy="{plot.y(y):.1f}" r="4" fill="{colour}"/>'


if __name__ == "__main__":
    main()
