"""Calibration: the least noise that keeps a plan within its budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from understudy.errors import BudgetError
from understudy.privacy.accounting import figures
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event

SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-2, 1e6
_TOLERANCE = 3e-4
_DIGITS = 5


def calibrate(
    make_events: Callable[[float], Sequence[Event]], budget: Budget, *, largest: float = LARGEST_MULTIPLIER
) -> float:
    """The smallest noise multiplier whose events ``certified_epsilon`` puts within ``budget``.

    ``make_events`` gives the events of a plan for a multiplier; more noise must never cost more. The result has five
    significant digits, is at least ``SMALLEST_MULTIPLIER``, lies at most about 0.1 % above the optimum, and never
    overshoots the budget. BudgetError if nothing up to ``largest`` will do.
    """

    def fast(multiplier: float) -> float:
        return figures.round_up(figures.epsilon(make_events(multiplier), budget.delta, "fourier"))

    def certified(multiplier: float) -> float:
        return figures.certified_epsilon(make_events(multiplier), budget.delta)

    start = _smallest_passing(fast, budget, 1.0, largest)
    if certified(start) <= budget.epsilon:
        return start
    return _smallest_passing(certified, budget, start, largest)


class _Trial(NamedTuple):
    multiplier: float
    epsilon: float


def _smallest_passing(figure: Callable[[float], float], budget: Budget, start: float, largest: float) -> float:
    """The smallest multiplier with ``figure(multiplier) <= budget.epsilon``, within the tolerance."""
    failing, passing = _bracket(figure, budget, start, largest)
    while failing is not None and passing.multiplier > failing.multiplier * (1 + _TOLERANCE):
        middle = _round_up_digits(_between(failing, passing, budget.epsilon))
        if not failing.multiplier < middle < passing.multiplier:
            break
        trial = _Trial(middle, figure(middle))
        failing, passing = (failing, trial) if trial.epsilon <= budget.epsilon else (trial, passing)
    return passing.multiplier


def _bracket(
    figure: Callable[[float], float], budget: Budget, start: float, largest: float
) -> tuple[_Trial | None, _Trial]:
    """A multiplier that fails and one that passes; no failing one where the smallest of all passes."""
    failing, passing = None, None
    multiplier, least_step = start, 2 * _TOLERANCE
    while failing is None or passing is None:
        trial = _Trial(multiplier, figure(multiplier))
        ratio = trial.epsilon / budget.epsilon
        if ratio <= 1:
            passing = trial
            if multiplier <= SMALLEST_MULTIPLIER:
                break
            multiplier = max(
                SMALLEST_MULTIPLIER, _round_up_digits(multiplier * min(1 - min(least_step, 0.5), max(ratio, 0.5)))
            )
        else:
            failing = trial
            if multiplier >= largest:
                raise _refusal(trial, budget)
            multiplier = min(largest, _round_up_digits(multiplier * max(1 + least_step, min(ratio, 30.0))))
        least_step = min(30.0, 4 * least_step)
    return failing, passing


def _between(failing: _Trial, passing: _Trial, target: float) -> float:
    """Where a power law through both trials meets the target; the middle if one of them has no logarithm.

    A guess next to one end is moved a tolerance away from it, so that the next trial closes the bracket.
    """
    low, high, share = math.log(failing.multiplier), math.log(passing.multiplier), 0.5
    if math.isfinite(failing.epsilon) and passing.epsilon > 0:
        share = math.log(failing.epsilon / target) / math.log(failing.epsilon / passing.epsilon)
    margin = min(0.8 * _TOLERANCE, (high - low) / 2)
    return math.exp(min(high - margin, max(low + margin, low + share * (high - low))))


def _round_up_digits(value: float) -> float:
    """``value`` rounded up to five significant digits."""
    exponent = math.floor(math.log10(value)) - _DIGITS + 1
    # Whole powers of ten divide exactly where multiplying by their inverse would not.
    scaled = value * 10**-exponent if exponent < 0 else value / 10**exponent
    whole = math.ceil(scaled * (1 - 1e-12))
    return whole / 10**-exponent if exponent < 0 else float(whole * 10**exponent)


def _refusal(trial: _Trial, budget: Budget) -> BudgetError:
    return BudgetError(
        f"noise_multiplier: even {trial.multiplier:g} costs epsilon {trial.epsilon:g} at delta {budget.delta:g}, above "
        f"the budget of {budget.epsilon:g}; plan fewer or smaller accesses, or raise epsilon or delta"
    )
