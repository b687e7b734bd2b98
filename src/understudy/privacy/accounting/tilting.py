"""Composition of privacy-loss laws by Fourier transforms of their tilted versions, for the Fourier accountant.

A law is *tilted* when its mass at loss l is multiplied by exp(tilt * l) and normalised. Powers of tilted laws are
tilted powers, so a composition can be computed at any tilt. Here it is chosen so that the composed law sits where the
answer lies, far out in the tail of the real one: there a plain transform keeps nothing but its rounding error (about
count * 1e-16 in delta), and a tilted one keeps most of its digits however small delta is.

What is cut off is counted into delta: mass that escaped the grid, mass above the transform's window (by Chernoff's
bound), and an allowance for rounding. Mass that wraps around from below the window only adds to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from understudy.privacy.accounting.losses import Array, LossLaw, grid_points

_WINDOW_TAIL = 1e-14
_ROUNDING = 1e-15


class TiltedProduct:
    """A product of loss laws, known by its cumulants: K(tilt) = ln E[exp(tilt * L); L finite]."""

    def __init__(self, laws: Sequence[LossLaw], counts: Sequence[int], grid: float) -> None:
        self.grid = grid
        self.laws = laws
        self.counts = counts
        with np.errstate(divide="ignore"):
            self._logs = [np.log(law.mass) for law in laws]
        self._places = [grid_points(law.first, law.first + law.mass.size - 1, grid) for law in laws]

    def _tilted(self, tilt: float) -> Iterator[tuple[int, LossLaw, Array, float, Array]]:
        """For each law: its count, itself, its losses, its ln E[exp(tilt * L)] and its tilted masses."""
        for count, law, places, logs in zip(self.counts, self.laws, self._places, self._logs, strict=True):
            exponents = logs + tilt * places
            peak = float(exponents.max())
            tilted = np.exp(exponents - peak)
            total = float(tilted.sum())
            yield count, law, places, peak + math.log(total), tilted / total

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """K and its first two derivatives: the tilted law's normaliser, mean and variance."""
        value = mean = variance = 0.0
        for count, _, places, logarithm, tilted in self._tilted(tilt):
            centre = float((tilted * places).sum())
            value += count * logarithm
            mean += count * centre
            variance += count * float((tilted * (places - centre) ** 2).sum())
        return value, mean, variance

    def tilt_for_delta(self, delta: float) -> float:
        """Where Chernoff's bound reaches ``delta``: tilt * K'(tilt) - K(tilt) = ln(1/delta)."""
        target = -math.log(delta)

        def excess(tilt: float) -> float:
            value, mean, _ = self.cumulants(tilt)
            return tilt * mean - value - target

        return self._solve(excess)

    def tilt_for_loss(self, loss: float) -> float:
        """The tilt, not below 0, whose law has its mean at ``loss``."""
        return self._solve(lambda tilt: self.cumulants(tilt)[1] - loss)

    def _solve(self, rising: Callable[[float], float]) -> float:
        """A root of a rising function of the tilt, roughly; the ends of the range where there is none."""
        if rising(0.0) >= 0:
            return 0.0
        low = high = 1.0
        while rising(high) < 0:
            low, high = high, high * 4
            if high > 30 / self.grid:
                return 30 / self.grid
        while low > 1e-12 and rising(low) >= 0:
            low, high = low / 4, low
        while high / low > 1.03:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if rising(middle) < 0 else (low, middle)
        return high

    def window(self, tilt: float) -> tuple[float, float]:
        """Losses outside which the tilted law has at most a negligible mass, by Chernoff's bound on either side."""
        value, mean, variance = self.cumulants(tilt)
        deviation = math.sqrt(variance) + self.grid
        price = -math.log(_WINDOW_TAIL)
        high, low = math.inf, -math.inf
        for factor in (1.0, 3.0, 8.0):
            extra = factor / deviation
            high = min(high, (self.cumulants(tilt + extra)[0] - value + price) / extra)
            low = max(low, -(self.cumulants(tilt - extra)[0] - value + price) / extra)
        return min(low, mean) - self.grid, max(high, mean) + self.grid

    def compose(self, tilt: float, window: tuple[float, float]) -> ComposedLaw:
        """Transform, raise to the counts, multiply, transform back."""
        first = math.floor(window[0] / self.grid)
        length = next_fast_len(math.ceil(window[1] / self.grid) - first + 1, real=True)
        magnitude, phase = np.zeros(length // 2 + 1), np.zeros(length // 2 + 1)
        offset, value, stays = 0, 0.0, 0.0
        for count, law, _, logarithm, tilted in self._tilted(tilt):
            transform = rfft(_fold(tilted, length))
            with np.errstate(divide="ignore"):
                magnitude += count * np.log(np.abs(transform))
            phase += count * np.angle(transform)
            offset += count * law.first
            value += count * logarithm
            stays += count * math.log1p(-min(law.escaped, 1 - 1e-15))
        mass = irfft(np.exp(magnitude) * np.exp(1j * phase), length)
        mass = np.roll(mass, -((first - offset) % length))
        places = grid_points(first, first + length - 1, self.grid)
        beyond = math.exp(min(0.0, value - tilt * float(places[-1]) + math.log(_WINDOW_TAIL)))
        return ComposedLaw(places, mass, tilt, value, beyond - math.expm1(stays), sum(self.counts))


def _fold(mass: Array, length: int) -> Array:
    """Sum the mass modulo ``length``: all that a transform of that length sees."""
    rows = -(-mass.size // length)
    padded = np.zeros(rows * length)
    padded[: mass.size] = mass
    return np.asarray(padded.reshape(rows, length).sum(axis=0))


class ComposedLaw:
    """A composed law: real mass at loss l is ``mass * exp(value - tilt * l)``."""

    def __init__(self, places: Array, mass: Array, tilt: float, value: float, lost: float, count: int) -> None:
        self.places = places
        self.tilt = tilt
        self.value = value
        self.lost = lost
        rounding = _ROUNDING * (10 + count) * float(mass.max())
        self.mass = np.maximum(mass, 0.0) + rounding

    def delta(self, epsilon: float) -> float:
        """Sum of (1 - exp(epsilon - l)) over the mass at l > epsilon, plus all that was lost."""
        return self._tail(epsilon)[0]

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon with ``self.delta(epsilon) <= delta``."""
        if self.lost >= delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0.0, float(self.places[-1])
        guess = min(high, max(low, float(self.places[self.places.size // 2])))
        for attempt in range(200):
            if high - low <= 1e-7 + 1e-9 * high:
                break
            found, slope = self._tail(guess)
            low, high = (guess, high) if found > delta else (low, guess)
            # Newton's step on ln(delta), pushed a little past the root so that both ends of the bracket close in.
            step = math.log(found / delta) * found / slope if slope > 0 else math.nan
            guess += step + math.copysign(2e-8 + 2e-10 * high, step)
            if attempt > 20 or not low < guess < high:
                guess = (low + high) / 2
        return high

    def _tail(self, epsilon: float) -> tuple[float, float]:
        """delta(epsilon) and minus its slope; ``lost`` and what lies below the window count in full."""
        start = int(np.searchsorted(self.places, epsilon, side="right"))
        gaps = epsilon - self.places[start:]
        with np.errstate(over="ignore"):
            real = self.mass[start:] * np.exp(self.value - self.tilt * self.places[start:])
            found = float(-(real * np.expm1(gaps)).sum()) + self.lost
            slope = float((real * np.exp(gaps)).sum())
        if epsilon < self.places[0]:
            found += _WINDOW_TAIL * math.exp(min(100.0, self.value - self.tilt * epsilon))
        return found, slope
