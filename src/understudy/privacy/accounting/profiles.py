"""Privacy profiles, for the PLD accountant: delta as a function of epsilon, for one execution of an event.

A profile is delta(epsilon) = sup over sets of [P(set) - exp(epsilon) * Q(set)] for every real epsilon, negative ones
too. ``Phi`` is the normal distribution function and ``distance`` the distance of two Gaussians in deviations, that
is 1/noise_multiplier. All products exp(x) * Phi(y) are formed from logarithms, so that nothing overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]
Profile = Callable[[Array], Array]

MOST_COMPONENTS = 256


@dataclass(frozen=True)
class Direction:
    """One direction of an event: its profile, and the range of losses that holds all but a negligible mass."""

    profile: Profile
    lowest: float
    highest: float


def gaussian(distance: float, deviations: float) -> Direction:
    """The Gaussian mechanism: Phi(d/2 - e/d) - exp(e) * Phi(-d/2 - e/d)."""
    middle, reach = distance**2 / 2, distance * deviations
    return Direction(lambda epsilons: _gaussian(epsilons, distance), middle - reach, middle + reach)


def poisson_remove(rate: float, distance: float, deviations: float) -> Direction:
    """The unit is there under P: (1-rate) * Normal(0,1) + rate * Normal(d,1) against Normal(0,1)."""
    return Direction(
        lambda epsilons: _amplified(epsilons, rate, distance),
        _loss(rate, distance, -deviations),
        _loss(rate, distance, distance + deviations),
    )


def poisson_add(rate: float, distance: float, deviations: float) -> Direction:
    """The unit is there under Q: Normal(0,1) against the mixture."""
    return Direction(
        lambda epsilons: _amplified_reversed(epsilons, rate, distance),
        -_loss(rate, distance, deviations),
        -_loss(rate, distance, -deviations),
    )


def routed(rate: float, distance: float, deviations: float) -> Direction:
    """One routed query, both directions: advanced joint convexity at epsilon >= 0, symmetry below.

    h(alpha) = g * H_{1 + (alpha-1)/g}(Normal(d,1) || Normal(0,1)) for alpha = exp(epsilon) >= 1 and g = rate, and
    1 - alpha + alpha * h(1/alpha) for alpha < 1.
    """

    def profile(epsilons: Array) -> Array:
        upper = _amplified(np.abs(epsilons), rate, distance)
        below = np.minimum(epsilons, 0.0)
        return np.where(epsilons >= 0, upper, -np.expm1(below) + np.exp(below) * upper)

    lowest = -max(0.0, _loss(rate, distance, deviations))
    return Direction(profile, lowest, max(0.0, _loss(rate, distance, distance + deviations)))


def revealed(draws: int, rate: float, squared_distance: float, tail: float) -> tuple[Direction, float, int]:
    """A whole run whose routing is known: E_m[Gaussian profile at distance sqrt(m * squared_distance)].

    m, the number of times that a unit's subset was drawn, is Binomial(draws, rate). The chance of more than the largest
    m considered is counted as delta; where there are many values, neighbours are rounded up. With the
    direction come the mean square of the loss and the number of values.
    """
    law, deviations = stats.binom(draws, rate), float(stats.norm.isf(tail))
    lowest, highest = int(max(0.0, law.mean() - 10 * law.std())), _exceeded(law.sf, tail, int(law.mean()), draws)
    width = 1 + (highest - lowest) // MOST_COMPONENTS
    times = np.minimum(np.arange(lowest, highest + width, width), draws)
    weights = -np.diff(law.sf(times), prepend=1.0)
    beyond = float(law.sf(times[-1]))
    distances = np.sqrt(times * squared_distance)

    def profile(epsilons: Array) -> Array:
        total = np.full(epsilons.shape, beyond)
        for weight, distance in zip(weights, distances, strict=True):
            total += weight * _gaussian(epsilons, distance)
        return np.asarray(np.minimum(total, 1.0))

    lowest_loss = float(np.min(distances**2 / 2 - deviations * distances))
    highest_loss = float(distances[-1] ** 2 / 2 + deviations * distances[-1])
    mean_square = float((weights * (distances**2 + distances**4 / 4)).sum())
    return Direction(profile, lowest_loss, highest_loss), mean_square, times.size


def _exceeded(survival: Callable[[int], float], tail: float, low: int, high: int) -> int:
    """The smallest whole number that is exceeded with a chance of at most ``tail``; scipy's own ends at 1e-16."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if survival(middle) <= tail else (middle + 1, high)
    return high


def mean_square_loss(rate: float, distance: float) -> float:
    """About E[loss^2] of one sampled execution: sets the grid, and nothing depends on its last digits."""
    positions = np.linspace(-9.0, distance + 9.0, 4001)
    exponents = distance * positions - distance**2 / 2
    values = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + exponents)
    density = (1 - rate) * stats.norm.pdf(positions) + rate * stats.norm.pdf(positions - distance)
    return float(np.trapezoid(density * values**2, positions))


def _gaussian(epsilons: Array, distance: float) -> Array:
    if distance == 0:
        return np.asarray(-np.expm1(np.minimum(epsilons, 0.0)))
    scaled = epsilons / distance
    value = special.ndtr(distance / 2 - scaled) - np.exp(epsilons + special.log_ndtr(-distance / 2 - scaled))
    return np.asarray(np.clip(value, 0.0, 1.0))


def _amplified(epsilons: Array, rate: float, distance: float) -> Array:
    """rate * H_{1 + (exp(e)-1)/rate}(Normal(d,1) || Normal(0,1)); 1 - exp(e) where that order is not positive."""
    if rate >= 1:
        return _gaussian(epsilons, distance)
    inner = _inner_epsilon(epsilons, rate)
    reachable = inner > -np.inf
    value = rate * _gaussian(np.where(reachable, inner, 0.0), distance)
    return np.where(reachable, value, -np.expm1(np.minimum(epsilons, 0.0)))


def _amplified_reversed(epsilons: Array, rate: float, distance: float) -> Array:
    """rate * exp(e) * [exp(i) * Phi(i/d + d/2) - Phi(i/d - d/2)] with i = ln(1 + (exp(-e)-1)/rate); 0 beyond."""
    if rate >= 1:
        return _gaussian(epsilons, distance)
    inner = _inner_epsilon(-epsilons, rate)
    reachable = inner > -np.inf
    epsilons, inner = np.where(reachable, epsilons, 0.0), np.where(reachable, inner, 0.0)
    first = np.exp(math.log(rate) + epsilons + inner + special.log_ndtr(inner / distance + distance / 2))
    second = np.exp(math.log(rate) + epsilons + special.log_ndtr(inner / distance - distance / 2))
    return np.where(reachable, np.clip(first - second, 0.0, 1.0), 0.0)


def _inner_epsilon(epsilons: Array, rate: float) -> Array:
    """ln(1 + (exp(e) - 1)/rate), minus infinity where the bracket is not positive, and never plus infinity."""
    with np.errstate(divide="ignore", over="ignore"):
        direct = np.log1p(np.clip(np.expm1(np.minimum(epsilons, 1.0)) / rate, -1.0, 1e300))
    shifted = np.maximum(epsilons, 1.0)
    return np.where(epsilons <= 1.0, direct, shifted - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-shifted)))


def _loss(rate: float, distance: float, position: float) -> float:
    exponent = distance * position - distance**2 / 2
    return exponent if rate >= 1 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))
