"""Lower bounds on epsilon from counted errors: Clopper-Pearson for many trials, and the bound for one training run."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_STEPS = 60


def upper_rate(errors: int, trials: int, risk: float) -> float:
    """The largest rate under which so few errors have a chance of at least ``risk`` (Clopper and Pearson 1934)."""
    if errors >= trials:
        return 1.0
    from scipy.stats import beta

    return float(beta.ppf(1 - risk, errors + 1, trials - errors))


def gaussian_shift(false_alarms: float, misses: float) -> float:
    """The mu of the Gaussian trade-off curve through a pair of error rates; below it the pair would be impossible.

    Dong, Roth, Su 2022: a test of Normal(0, 1) against Normal(mu, 1) has misses of at least
    Phi(Phi^-1(1 - false alarms) - mu).
    """
    from scipy.stats import norm

    if false_alarms >= 1 or misses >= 1:
        return 0.0
    return max(0.0, float(norm.isf(false_alarms) - norm.ppf(misses)))


def gaussian_epsilon(shift: float, delta: float) -> float:
    """The epsilon of Normal(shift, 1) against Normal(0, 1) at ``delta`` (Balle and Wang 2018), rounded down."""
    from scipy.stats import norm

    def excess(epsilon: float) -> float:
        near = norm.cdf(shift / 2 - epsilon / shift)
        far = math.exp(epsilon + norm.logcdf(-shift / 2 - epsilon / shift))
        return float(near - far) - delta

    if shift <= 0 or excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return low


def one_run_chance(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """At most the chance of so many correct guesses about canaries of one (epsilon, delta)-private run.

    Steinke, Nasr, Jagielski 2023, Theorem 5.2: every canary was included by a fair coin and ``guesses`` of them are
    guessed. With W ~ Binomial(guesses, e^epsilon / (1 + e^epsilon)) the chance of ``correct`` or more is at most
    P[W >= correct] + 2 * canaries * delta * max over i >= 1 of P[correct - i <= W < correct] / i.
    """
    from scipy.stats import binom

    rate = 1 / (1 + math.exp(-epsilon))
    chance = float(binom.sf(correct - 1, guesses, rate))
    if delta > 0 and correct > 0:
        below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, rate))
        chance += 2 * canaries * delta * float((below / np.arange(1, correct + 1)).max())
    return min(1.0, chance)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, risk: float) -> float:
    """The largest epsilon under which so many correct guesses have a chance of at most ``risk``; 0 where none has."""
    if guesses == 0 or one_run_chance(canaries, guesses, correct, 0.0, delta) > risk:
        return 0.0
    low, high = 0.0, 50.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        fits = one_run_chance(canaries, guesses, correct, middle, delta) <= risk
        low, high = (middle, high) if fits else (low, middle)
    return low


def correlation_of_neighbours(values: Numbers) -> float:
    """The correlation of each value with the next, in deviations from zero; large where trials share their noise."""
    if len(values) < 3:
        return 0.0
    spread = float(values.var())
    if spread == 0:
        return math.inf
    centred = values - values.mean()
    return float((centred[1:] * centred[:-1]).mean() / spread * math.sqrt(len(values) - 1))
