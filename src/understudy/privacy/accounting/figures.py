"""The figures that other rooms ask for: epsilon, delta, what a certificate may claim, and the noise a budget needs.

Accountants are imported where they are called: each takes up to a second to load, and most commands need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from understudy.errors import BudgetError, InputError
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

LARGEST_EPSILON = 1e6
"""An epsilon above this says nothing, and its digits are not to be trusted: it is reported as infinite."""

MOST_EXECUTIONS = 10**15
"""More executions than double precision can tell apart cost an infinite epsilon."""

_STEP, _GUARD = 1e-4, 1e-5
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-2, 1e6
_TOLERANCE = 3e-4
_DIGITS = 5


def epsilon(events: Sequence[Event], delta: float, accountant: str = "pld") -> float:
    """An upper bound on epsilon at ``delta``; inf where there is none, 0.0 for no events.

    ``accountant`` is ``"pld"`` (on dp_accounting), ``"fourier"`` (written independently of it) or ``"renyi"`` (a
    looser sanity check).
    """
    _check(events)
    if not 0 < delta < 1:
        raise InputError(f"delta: {delta} does not lie strictly between 0 and 1; pass for example delta=1e-5")
    if accountant not in ("pld", "fourier", "renyi"):
        raise InputError(f"accountant: {accountant!r} is unknown; choose pld, fourier or renyi")
    figure = _accountant(accountant).epsilon
    found = math.inf if _too_many(events) else figure(events, delta)
    return found if found <= LARGEST_EPSILON else math.inf


def delta(events: Sequence[Event], epsilon: float, accountant: str = "pld") -> float:
    """An upper bound on delta at ``epsilon``, by ``"pld"`` or ``"fourier"``; 0.0 for no events.

    The first cannot resolve values below about 3e-16 times the number of executions, the second those below 1e-29.
    """
    _check(events)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InputError(f"epsilon: {epsilon} is not a finite number of at least 0; pass for example epsilon=10")
    if accountant not in ("pld", "fourier"):
        raise InputError(f"accountant: {accountant!r} gives no delta; choose pld or fourier")
    figure = _accountant(accountant).delta
    return 1.0 if _too_many(events) else figure(events, epsilon)


def certified_epsilon(events: Sequence[Event], delta: float) -> float:
    """What a certificate may claim: the larger of the two numerical figures, rounded up to four decimals.

    The rounding leaves room for last-digit differences, so that a recomputation on another machine stays at or below
    the claim. For the same reason the first figure is read at a delta smaller by its allowance for rounding errors,
    which also differ from machine to machine.
    """
    if not events:
        return 0.0
    from understudy.privacy.accounting import pld

    first = epsilon(events, max(delta / 2, delta - pld.rounding(events)))
    return round_up(max(first, epsilon(events, delta, "fourier")))


def describe() -> dict[str, str]:
    """Who computes the figures and on what grid, for a certificate."""
    from understudy.privacy.accounting import fourier, pld

    return {
        "pld": f"dp_accounting, connect-the-dots, grid at most {pld.USUAL_GRID:g} where the losses allow",
        "fourier": f"understudy, FFT of the privacy loss, grid at most {fourier.USUAL_GRID:g} where the losses allow",
        "claim": "the larger of both, rounded up to four decimals",
    }


def round_up(figure: float) -> float:
    """``figure``, with a guard of a tenth of the last decimal, rounded up to four decimals."""
    if not math.isfinite(figure):
        return figure
    return round(math.ceil((figure * (1 + 1e-9) + _GUARD) / _STEP) * _STEP, 4)


def _check(events: Sequence[Event]) -> None:
    """Refuse what no accountant knows, instead of guessing."""
    for position, event in enumerate(events):
        if not isinstance(event, Event) or event.mechanism != "gaussian":
            raise InputError(f"event {position}: {event!r} is not a known event; unknown events are never accounted")
        if not isinstance(event.sampling, NoSampling | PoissonSampling | RoutedSampling | RevealedRouting):
            raise InputError(
                f"event {position}: sampling {event.sampling!r} is unknown; unknown events are never accounted"
            )


def _too_many(events: Sequence[Event]) -> bool:
    return sum(event.count for event in events) > MOST_EXECUTIONS


# The least noise that keeps a plan within its budget


def calibrate(
    make_events: Callable[[float], Sequence[Event]], budget: Budget, *, largest: float = LARGEST_MULTIPLIER
) -> float:
    """The smallest noise multiplier whose events ``certified_epsilon`` puts within ``budget``.

    ``make_events`` gives the events of a plan for a multiplier; more noise must never cost more. The result has five
    significant digits, is at least ``SMALLEST_MULTIPLIER``, lies at most about 0.1 % above the optimum, and never
    overshoots the budget. BudgetError if nothing up to ``largest`` will do.
    """

    def fast(multiplier: float) -> float:
        return round_up(epsilon(make_events(multiplier), budget.delta, "fourier"))

    def certified(multiplier: float) -> float:
        return certified_epsilon(make_events(multiplier), budget.delta)

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


def _accountant(name: str) -> Any:
    if name == "pld":
        from understudy.privacy.accounting import pld as found
    elif name == "fourier":
        from understudy.privacy.accounting import fourier as found  # type: ignore[no-redef]
    else:
        from understudy.privacy.accounting import renyi as found  # type: ignore[no-redef]
    return found
