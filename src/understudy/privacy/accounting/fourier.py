"""The second accountant: Fourier transforms of the privacy loss, written without a line of the first.

Each kind of event becomes a law of its privacy loss on a common grid (``losses``), and the laws are composed by powers
of their Fourier transforms (``tilting``). Every figure is an upper bound. The two directions of a Poisson-sampled event
are composed each for itself, and the larger result counts.

Its limits: an event with losses above ``LARGEST_LOSS`` has no epsilon worth the name (inf, and delta 1); a grid that
would need too many points is made coarser, which makes the figure larger and never smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from understudy.errors import InputError
from understudy.privacy.accounting import losses
from understudy.privacy.accounting.losses import Array, LossPair
from understudy.privacy.accounting.tilting import ComposedLaw, TiltedProduct
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

FINEST_GRID, USUAL_GRID, COARSEST_GRID = 1e-10, 1e-4, 100.0
POINTS_PER_DEVIATION, MORE_POINTS = 4, 8
MOST_POINTS, MOST_EVALUATIONS, LONGEST_TRANSFORM = 2**17, 2**22, 2**21
LARGEST_LOSS = 1e6


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
