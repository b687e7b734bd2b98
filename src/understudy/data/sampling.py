"""Exact random draws, and the public rate and passes of Poisson sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError

Bits = Callable[[int], bytes]  # bits(n) returns n uniformly random bytes; os.urandom is the default everywhere

_BASE = 2**32


def uniform_integers(count: int, bound: int, bits: Bits) -> NDArray[np.int64]:
    """``count`` independent integers, each exactly uniform on 0..bound-1, by rejection."""
    if not 1 <= bound <= _BASE:
        raise ValueError(f"bound: {bound} does not lie in 1..{_BASE}")
    accepted_below = _BASE - _BASE % bound
    drawn = np.empty(count, dtype=np.int64)
    waiting = np.arange(count)
    while waiting.size:
        words = _words(waiting.size, bits)
        fine = words < accepted_below
        drawn[waiting[fine]] = words[fine] % bound
        waiting = waiting[~fine]
    return drawn


def coin_flips(count: int, rate: float, bits: Bits) -> NDArray[np.bool_]:
    """``count`` independent flips, each true with probability exactly ``rate``.

    A flip compares a uniform real number with ``rate``, digit by digit in base 2**32; further digits are drawn only
    while all digits so far are equal. So no rounding of ``rate`` (a float is a fraction) and no float keys.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate: {rate} does not lie in 0..1")
    if rate == 1:
        return np.ones(count, dtype=np.bool_)
    flips = np.zeros(count, dtype=np.bool_)
    undecided = np.arange(count)
    remainder = Fraction(rate)
    while undecided.size and remainder:
        digit, remainder = divmod(remainder * _BASE, 1)
        words = _words(undecided.size, bits)
        flips[undecided[words < int(digit)]] = True
        undecided = undecided[words == int(digit)]
    return flips


def _words(count: int, bits: Bits) -> NDArray[np.int64]:
    """``count`` uniform integers in 0..2**32-1."""
    return np.frombuffer(bits(4 * count), dtype="<u4").astype(np.int64)


MOST_IN_A_SUM = 16_384  # units that a sum of single precision may be expected to hold (docs/privacy.md, section 20)


def check_sum(expected_batch: float) -> None:
    """Refuse a step on so many units that the rounding of their sum could exceed the margin of a clipped unit."""
    if expected_batch > MOST_IN_A_SUM:
        raise InputError(
            f"batch: {expected_batch:,}, but a step sums in single precision, which is close enough for "
            f"{MOST_IN_A_SUM:,} units; pass a privacy.batch of at most that, and more steps"
        )


def sampling_rate(expected_batch: float, nominal_units: int) -> float:
    """The public rate of a batch of that expected size; what the event of the mechanism must carry."""
    if not (math.isfinite(expected_batch) and 0 < expected_batch <= nominal_units):
        raise InputError(
            f"batch: an expected size of {expected_batch} out of {nominal_units} nominal units;"
            f" pass a positive size of at most {nominal_units}"
        )
    return expected_batch / nominal_units


SPARE_DEVIATIONS = 2  # places for more units than expected; what does not fit takes a pass of its own
_TILE = 8


def places_in_pass(expected_batch: float, at_once: int) -> int:
    """Units of a Poisson batch that one pass of at most ``at_once`` has places for; public numbers alone decide.

    Passes are cut evenly, so that the last is seldom half empty.
    """
    wanted = expected_batch + SPARE_DEVIATIONS * math.sqrt(expected_batch)
    passes = math.ceil(wanted / at_once)
    return min(at_once, math.ceil(wanted / passes / _TILE) * _TILE)
