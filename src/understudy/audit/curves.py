"""From the errors of a test to a lower bound on epsilon, through the trade-off curve of the audited events.

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

from understudy.audit.bounds import Numbers, gaussian_epsilon, gaussian_shift, upper_rate
from understudy.privacy import accounting
from understudy.privacy.events import Event

_CANDIDATES = np.linspace(0.1, 0.9, 17)
_RATES = 8  # candidate thresholds for sampled events, where each costs a call of the accountant
_STEPS = 9  # to a seventh of a percent of the noise
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
        for _ in range(_STEPS):
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
