"""Lower bounds on epsilon: from the errors of a test, through the trade-off curve of the events, and from one run.

The events of a plan are one of a family: the same events with all noise multiplied by one factor. A pair of error rates
that no member with a factor of f or more allows shows that the noise is below f times what is claimed; the epsilon of
that member is a lower bound on that of the mechanism, if it belongs to the family. That a pair is impossible at
factor one needs no such assumption: then the claim is false. Plain Gaussians have a closed form; sampled ones are read
from an accountant, whose figures are upper bounds within half a percent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.privacy import accounting
from understudy.privacy.events import Event

Numbers = NDArray[np.float64]
_STEPS = 60  # of a bisection
_CANDIDATES = np.linspace(0.1, 0.9, 17)
_RATES = 8  # candidate thresholds for sampled events, where each costs a call of the accountant
_CURVE_STEPS = 9  # to a seventh of a percent of the noise
_LARGEST_FACTOR = 1024.0
_ACCURACY = 0.005  # of the accountant, against us


@dataclass(frozen=True)
class Errors:
    """Rates of a test that says "with" above its threshold, each an upper bound at the risk that was asked for."""

    threshold: float
    false_alarms: float
    misses: float
    wrong: int


def count_errors(without: Numbers, with_unit: Numbers, threshold: float, risk: float) -> Errors:
    """Upper bounds on both rates at a threshold; they hold together with probability ``1 - risk``."""
    alarms, missed = int((without > threshold).sum()), int((with_unit <= threshold).sum())
    bounds = (upper_rate(alarms, len(without), risk / 2), upper_rate(missed, len(with_unit), risk / 2))
    return Errors(threshold, *bounds, alarms + missed)


def upper_rate(errors: int, trials: int, risk: float) -> float:
    """The largest rate under which so few errors have a chance of at least ``risk`` (Clopper and Pearson 1934)."""
    if errors >= trials:
        return 1.0
    from scipy.stats import beta

    return float(beta.ppf(1 - risk, errors + 1, trials - errors))


def correlation_of_neighbours(values: Numbers) -> float:
    """The correlation of each value with the next, in deviations from zero; large where trials share their noise."""
    if len(values) < 3:
        return 0.0
    spread = float(values.var())
    if spread == 0:
        return math.inf
    centred = values - values.mean()
    return float((centred[1:] * centred[:-1]).mean() / spread * math.sqrt(len(values) - 1))


class Family:
    """The events of a plan with their noise scaled; ``delta`` is where epsilon is read."""

    def __init__(self, events: Sequence[Event], delta: float) -> None:
        self.events, self.delta = tuple(events), delta
        self.plain = all(event.sampling.kind == "none" for event in events)
        self.shift = math.sqrt(sum(event.count / event.noise_multiplier**2 for event in events))  # where plain

    def choose_threshold(self, without: Numbers, with_unit: Numbers, risk: float) -> float:
        """The threshold that shows most on held-out trials."""
        pooled = np.concatenate([without, with_unit])
        if self.plain:
            places = [float(place) for place in np.quantile(pooled, _CANDIDATES)]
            tried = [count_errors(without, with_unit, place, risk) for place in places]
            return max(tried, key=lambda each: gaussian_shift(each.false_alarms, each.misses)).threshold
        places = [float(place) for place in np.unique(np.quantile(pooled, np.linspace(0.1, 0.9, _RATES)))]
        tried = [count_errors(without, with_unit, place, risk) for place in places]
        return max(tried, key=self._closeness).threshold

    def lower_epsilon(self, errors: Errors) -> float:
        """Epsilon is at least this, unless the bounds on the rates failed."""
        if self.plain:
            return gaussian_epsilon(gaussian_shift(errors.false_alarms, errors.misses), self.delta)
        factor = self._smallest_impossible(errors)
        if factor is None:
            return 0.0
        return (1 - _ACCURACY) * accounting.epsilon(self._scaled(factor), self.delta, "fourier")

    def _scaled(self, factor: float) -> list[Event]:
        return [event.model_copy(update={"noise_multiplier": event.noise_multiplier * factor}) for event in self.events]

    def _closeness(self, errors: Errors) -> float:
        """How much of the delta that the claim allows at this threshold the test has shown."""
        shown, epsilon = _shown(errors)
        allowed = accounting.delta(self.events, epsilon, "fourier")
        return shown / allowed if allowed > 0 else -math.inf

    def _smallest_impossible(self, errors: Errors) -> float | None:
        """The smallest factor whose events do not allow these rates; None where almost any noise allows them."""
        shown, epsilon = _shown(errors)

        def impossible(factor: float) -> bool:
            return shown > accounting.delta(self._scaled(factor), epsilon, "fourier")

        low, high = 0.5, 1.0
        while not impossible(high):
            if high >= _LARGEST_FACTOR:
                return None
            low, high = high, 2 * high
        while impossible(low) and low > 1 / _LARGEST_FACTOR:
            low, high = low / 2, low
        for _ in range(_CURVE_STEPS):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if impossible(middle) else (middle, high)
        return high


def _shown(errors: Errors) -> tuple[float, float]:
    """The delta that the rates show at the epsilon of the threshold, which is a log-likelihood ratio.

    Both directions of add-remove count: above zero the unit is added, below it is removed.
    """
    epsilon = abs(errors.threshold)
    first, second = errors.misses, errors.false_alarms
    if errors.threshold < 0:
        first, second = second, first
    return 1 - first - math.exp(epsilon) * second, epsilon


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
