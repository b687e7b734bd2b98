"""The second accountant: Fourier transforms of the privacy loss, written without a line of the first.

Each kind of event becomes a law of its privacy loss on a common grid (``losses``), and the laws are composed by powers
of their Fourier transforms. Every figure is an upper bound. The two directions of a Poisson-sampled event
are composed each for itself, and the larger result counts.

Its limits: an event with losses above ``LARGEST_LOSS`` has no epsilon worth the name (inf, and delta 1); a grid that
would need too many points is made coarser, which makes the figure larger and never smaller.

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
from dataclasses import dataclass

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from understudy.errors import InputError
from understudy.privacy.accounting import losses
from understudy.privacy.accounting.losses import Array, LossLaw, LossPair, grid_points
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

FINEST_GRID, USUAL_GRID, COARSEST_GRID = 1e-10, 1e-4, 100.0
POINTS_PER_DEVIATION, MORE_POINTS = 4, 8
MOST_POINTS, MOST_EVALUATIONS, LONGEST_TRANSFORM = 2**17, 2**22, 2**21
LARGEST_LOSS = 1e6
_WINDOW_TAIL = 1e-14
_ROUNDING = 1e-15


@dataclass(frozen=True)
class _Kind:
    """Executions of one kind, composed ``count`` times."""

    count: int
    pair: Callable[[float, float], LossPair]
    mean_square: float
    top: float
    points: int = MOST_POINTS


def epsilon(events: Sequence[Event], delta: float, grid: float | None = None) -> float:
    """The smallest epsilon, rounded up by the discretisation, that holds at ``delta``; inf where none was found."""
    tail = delta * 1e-7 / max(1, sum(event.count for event in events))
    kinds = _kinds(events, tail)
    if not kinds:
        return 0.0
    if _out_of_range(kinds):
        return math.inf
    step = _grid(kinds) if grid is None else grid
    composed = _compose(kinds, step, tail, lambda law: law.tilt_for_delta(delta))
    return max((law.epsilon(delta) for law in composed), default=math.inf)


def delta(events: Sequence[Event], epsilon: float, grid: float | None = None) -> float:
    """The smallest delta, rounded up by the discretisation, that holds at ``epsilon``."""
    tail = 1e-30 / max(1, sum(event.count for event in events))
    kinds = _kinds(events, tail)
    if not kinds:
        return 0.0
    if _out_of_range(kinds):
        return 1.0
    step = _grid(kinds) if grid is None else grid
    composed = _compose(kinds, step, tail, lambda law: law.tilt_for_loss(epsilon))
    return min(1.0, max((law.delta(epsilon) for law in composed), default=1.0))


def _kinds(events: Sequence[Event], tail: float) -> list[_Kind]:
    """Collect equal events; those without sampling are together one Gaussian, exactly."""
    counts: dict[tuple[float, object], int] = {}
    for event in events:
        key = (event.noise_multiplier, event.sampling)
        counts[key] = counts.get(key, 0) + event.count
    kinds, squared_distance = [], 0.0
    for (multiplier, sampling), count in counts.items():
        if isinstance(sampling, NoSampling) or _certain(sampling):
            squared_distance += count * _distance(multiplier) ** 2
        elif isinstance(sampling, PoissonSampling):
            kinds.append(_sampled(losses.poisson_pair, sampling.rate, multiplier, count, tail))
        elif isinstance(sampling, RoutedSampling):
            kinds.append(_sampled(losses.routed_pair, _rate(sampling.subsets), multiplier, count, tail))
        elif isinstance(sampling, RevealedRouting):
            kinds.append(_revealed(sampling, multiplier, count, tail))
        else:
            raise InputError(
                f"sampling: {sampling!r} is unknown to the fourier accountant; an unknown event is never accounted"
            )
    if squared_distance:
        kinds.append(_mixture(np.ones(1), np.array([math.sqrt(squared_distance)]), 0.0, tail))
    return kinds


def _certain(sampling: object) -> bool:
    """Sampling that leaves nothing to chance is none."""
    if isinstance(sampling, PoissonSampling):
        return sampling.rate == 1
    return isinstance(sampling, RoutedSampling) and sampling.subsets == 1


def _sampled(
    pair: Callable[[float, float, float, float], LossPair], rate: float, multiplier: float, count: int, tail: float
) -> _Kind:
    distance = _distance(multiplier)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    mean_square = sum(
        share * float(weights @ np.array([losses.sampled_loss(rate, distance, shift + z) ** 2 for z in nodes]))
        for share, shift in ((1 - rate, 0.0), (rate, distance))
    )
    top = losses.sampled_loss(rate, distance, distance + losses.quantile(tail))
    return _Kind(count, lambda grid, tail: pair(rate, distance, grid, tail), mean_square, top)


def _revealed(sampling: RevealedRouting, multiplier: float, count: int, tail: float) -> _Kind:
    weights, times, escaped = losses.revealed_components(count // sampling.rows, _rate(sampling.subsets), tail)
    return _mixture(weights, np.sqrt(sampling.rows * times) * _distance(multiplier), escaped, tail)


def _mixture(weights: Array, distances: Array, escaped: float, tail: float) -> _Kind:
    mean_square = float(weights @ (distances**2 + distances**4 / 4))
    top = float(np.max(distances**2 / 2 + losses.quantile(tail) * distances))
    points = min(MOST_POINTS, MOST_EVALUATIONS // weights.size)
    return _Kind(
        1, lambda grid, tail: losses.mixture_pair(weights, distances, escaped, grid, tail), mean_square, top, points
    )


def _out_of_range(kinds: Sequence[_Kind]) -> bool:
    """Losses so large that no figure would be worth the name."""
    composed = sum(kind.count * kind.mean_square for kind in kinds)
    return not (max(kind.top for kind in kinds) <= LARGEST_LOSS and composed <= LARGEST_LOSS**2)


def _distance(multiplier: float) -> float:
    """1/multiplier; where that is out of all range, the nearest value that is not (upwards, or plainly unbounded)."""
    return min(max(1 / multiplier, 1e-9), 1e9)


def _rate(subsets: int) -> float:
    return max(1 / subsets, 1e-300)


def _grid(kinds: Sequence[_Kind]) -> float:
    """The usual grid, finer where executions lose little, coarser where one loses much; more points if they must be."""
    total = sum(kind.count for kind in kinds)
    typical = math.sqrt(sum(kind.count * kind.mean_square for kind in kinds) / total)
    needed = max(FINEST_GRID, typical / POINTS_PER_DEVIATION)
    usual = max(min(USUAL_GRID, needed), max(kind.top / kind.points for kind in kinds))
    return usual if usual <= needed else max(needed, usual / MORE_POINTS)


def _compose(
    kinds: Sequence[_Kind], grid: float, tail: float, choose_tilt: Callable[[TiltedProduct], float]
) -> list[ComposedLaw]:
    """The composed laws, one for each direction, on a grid coarse enough for a transform; none if far too coarse."""
    while True:
        pairs = [kind.pair(grid, tail) for kind in kinds]
        counts = [kind.count for kind in kinds]
        both = [TiltedProduct([pair.remove for pair in pairs], counts, grid)]
        if any(pair.add is not pair.remove for pair in pairs):
            both.append(TiltedProduct([pair.add for pair in pairs], counts, grid))
        tilts = [choose_tilt(law) for law in both]
        windows = [law.window(tilt) for law, tilt in zip(both, tilts, strict=True)]
        longest = max(high - low for low, high in windows) / grid
        if not longest <= LONGEST_TRANSFORM * COARSEST_GRID / grid:
            return []
        if longest <= LONGEST_TRANSFORM:
            return [law.compose(tilt, window) for law, tilt, window in zip(both, tilts, windows, strict=True)]
        grid *= 1.1 * longest / LONGEST_TRANSFORM


# Composition


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
