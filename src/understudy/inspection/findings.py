"""Findings: what an inspection says, each with its statistic, its margin and its false-alarm rate.

They rest on bounds that hold for any number of samples: of a probability (Clopper, Pearson) and of a mean (Maurer,
Pontil). No normal approximation is used anywhere, so the stated false-alarm rate is a bound and not a hope.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

FALSE_ALARM_RATE = 1e-6  # the chance that an inspection reports anything although no effect is above its margin
Kind = Literal["orientation", "intensity", "class", "balance", "unknown", "variety", "noise"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in words and in figures.

    ``estimate`` is the best guess of the statistic and ``bound`` what it is at least (or at most), with the stated
    false-alarm rate; the finding was made because the bound lies beyond ``margin``.
    """

    kind: Kind
    name: str
    sentence: str
    statistic: str
    estimate: float
    bound: float
    margin: float
    classes: tuple[str, ...] = ()  # empty: all of them
    false_alarm_rate: float = FALSE_ALARM_RATE

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        rounded = {"estimate": round(self.estimate, 4), "bound": round(self.bound, 4)}
        return {**asdict(self), **rounded, "classes": list(self.classes)}


def percent(share: float) -> str:
    """A share in words, without more digits than it deserves."""
    return f"{100 * share:.0f} %"


def listed(names: tuple[str, ...] | list[str], most: int = 6) -> str:
    """Names of classes in a sentence."""
    shown = list(names[:most]) + ([f"{len(names) - most} more"] if len(names) > most else [])
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def at_least(count: int, total: int, level: float) -> float:
    """A lower bound of a probability that fails with a chance of at most ``level``.

    Trials need not have the same probability: then it bounds their average (Hoeffding 1956), as pooled classes need.
    """
    return 0.0 if count == 0 else float(beta.ppf(level, count, total - count + 1))


def at_most(count: int, total: int, level: float) -> float:
    """An upper bound of a probability that fails with a chance of at most ``level``."""
    return 1.0 if count == total else float(beta.isf(level, count + 1, total - count))


def mean_radius(values: NDArray[np.float64], level: float, width: float = 1.0) -> float:
    """How far the mean of independent values in a range of ``width`` may lie from the sample mean, to one side.

    The empirical Bernstein bound of Maurer and Pontil (2009), which is narrow where the values vary little.
    """
    number = len(values)
    if number < 2:
        return width
    logarithm = math.log(2 / level)
    spread = math.sqrt(2 * float(values.var(ddof=1)) * logarithm / number)
    return min(width, spread + width * 7 * logarithm / (3 * (number - 1)))


def fewer(count: int, other: int) -> float:
    """The chance of so few beside ``other`` if both were equally likely: one-sided binomial, exact."""
    return 1.0 if count + other == 0 else float(binom.cdf(count, count + other, 0.5))
