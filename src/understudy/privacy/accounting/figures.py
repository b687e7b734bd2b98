"""The figures that other rooms ask for: epsilon, delta, and the epsilon that a certificate may claim.

Accountants are imported where they are called: each takes up to a second to load, and most commands need none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from understudy.errors import InputError
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

LARGEST_EPSILON = 1e6
"""An epsilon above this says nothing, and its digits are not to be trusted: it is reported as infinite."""

MOST_EXECUTIONS = 10**15
"""More executions than double precision can tell apart cost an infinite epsilon."""

_STEP, _GUARD = 1e-4, 1e-5


def epsilon(events: Sequence[Event], delta: float, accountant: str = "pld") -> float:
    """An upper bound on epsilon at ``delta``; inf where there is none, 0.0 for no events.

    ``accountant`` is ``"pld"`` (on dp_accounting), ``"fourier"`` (written independently of it) or ``"renyi"`` (a
    looser sanity check).
    """
    _check(events)
    if not 0 < delta < 1:
        raise InputError(f"delta: {delta} does not lie strictly between 0 and 1; pass for example delta=1e-5")
    figure: Callable[[Sequence[Event], float], float]
    if accountant == "pld":
        from understudy.privacy.accounting import pld

        figure = pld.epsilon
    elif accountant == "fourier":
        from understudy.privacy.accounting import fourier

        figure = fourier.epsilon
    elif accountant == "renyi":
        from understudy.privacy.accounting import renyi

        figure = renyi.epsilon
    else:
        raise InputError(f"accountant: {accountant!r} is unknown; choose pld, fourier or renyi")
    found = math.inf if _too_many(events) else figure(events, delta)
    return found if found <= LARGEST_EPSILON else math.inf


def delta(events: Sequence[Event], epsilon: float, accountant: str = "pld") -> float:
    """An upper bound on delta at ``epsilon``, by ``"pld"`` or ``"fourier"``; 0.0 for no events.

    The first cannot resolve values below about 3e-16 times the number of executions, the second those below 1e-29.
    """
    _check(events)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InputError(f"epsilon: {epsilon} is not a finite number of at least 0; pass for example epsilon=10")
    if accountant == "pld":
        from understudy.privacy.accounting import pld

        figure = pld.delta
    elif accountant == "fourier":
        from understudy.privacy.accounting import fourier

        figure = fourier.delta
    else:
        raise InputError(f"accountant: {accountant!r} gives no delta; choose pld or fourier")
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
