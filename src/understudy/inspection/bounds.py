"""Bounds that hold for any number of samples: of a probability (Clopper, Pearson) and of a mean (Maurer, Pontil).

No normal approximation is used anywhere in an inspection, so the stated false-alarm rate is a bound and not a hope.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

FALSE_ALARM_RATE = 1e-6
"""The chance that an inspection reports anything although no effect is above its margin."""


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
