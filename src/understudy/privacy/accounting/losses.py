"""Privacy-loss laws on a grid, for the Fourier accountant.

A pair of output laws (P with the unit, Q without) has the loss L = ln dP/dQ. This file puts the law of L under P on
the points ``grid * k``, so that whatever is read from it is an upper bound, and almost no mean is lost.

**The split.** Take the outcomes with a <= L < b, where a and b = a + grid are neighbouring points, with masses p
under P and q under Q. They are replaced by two outcomes with losses a and b and masses x and y under P, chosen so
that both masses stay what they were::

    x + y = p,    x * exp(-a) + y * exp(-b) = q    =>    y = (p - q * exp(a)) / (1 - exp(-grid)),    0 <= y <= p

Merging the two again (which of a and b it was is forgotten) would give back a pair no worse than (p, q), so the new
pair dominates the old one, and dominating pairs compose. Losses rounded up would be valid too, but would add half a
grid step to every one of up to a million executions; the split adds no mean under exp(-L), only variance.

Mass above the last point escapes to an infinite loss; mass below the first one is raised to the first point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, log_ndtr, ndtr, ndtri

Array = NDArray[np.float64]

MOST_COMPONENTS = 256


@dataclass(frozen=True)
class LossLaw:
    """Mass under P at the losses ``grid * (first + k)``; ``escaped`` is the mass at an infinite loss."""

    first: int
    mass: Array
    escaped: float


@dataclass(frozen=True)
class LossPair:
    """The laws for both neighbours: the unit is there under P (``remove``) or under Q (``add``)."""

    remove: LossLaw
    add: LossLaw


def quantile(tail: float) -> float:
    """How many standard deviations leave at most ``tail`` of a normal law above."""
    return float(-ndtri(max(tail, 1e-300)))


def sampled_loss(rate: float, distance: float, position: float) -> float:
    """The loss ln(1 - rate + rate * exp(distance * position - distance^2 / 2)) at an outcome."""
    exponent = distance * position - distance**2 / 2
    if rate >= 1:
        return exponent
    return float(np.logaddexp(np.log1p(-rate), np.log(rate) + exponent))


def grid_points(first: int, last: int, grid: float) -> Array:
    """The losses ``grid * k`` for k from ``first`` to ``last``."""
    return grid * np.arange(first, last + 1, dtype=np.float64)


def gaussian_pair(distance: float, grid: float, tail: float) -> LossPair:
    """Normal(distance, 1) against Normal(0, 1)."""
    return mixture_pair(np.ones(1), np.array([distance]), 0.0, grid, tail)


def revealed_components(draws: int, rate: float, tail: float) -> tuple[Array, Array, float]:
    """How often a subset is drawn: (weights, times drawn, weight above the last).

    The times are Binomial(draws, rate). Where there are many, neighbours are rounded up to the largest among
    them, which can only increase the loss.
    """
    mean, deviation = draws * rate, float(np.sqrt(draws * rate * (1 - rate)))
    reach = deviation * quantile(tail) + quantile(tail) ** 2
    lowest, highest = max(0, int(mean - reach)), min(draws, int(mean + reach) + 1)
    step = max(1, -(-(highest - lowest) // MOST_COMPONENTS))
    times = np.arange(lowest, highest + step, step, dtype=np.float64).clip(max=draws)
    above = bdtrc(times, draws, rate)
    above[times >= draws] = 0.0
    enough = int(np.argmax(above <= max(tail, above[-1]))) + 1
    times, above = times[:enough], above[:enough]
    weights = -np.diff(above, prepend=1.0)
    return weights, times, float(above[-1])


def mixture_pair(weights: Array, distances: Array, escaped: float, grid: float, tail: float) -> LossPair:
    """A Gaussian pair whose distance is drawn by ``weights`` and known to everybody; distance 0 loses nothing."""
    reach = quantile(tail)
    top = int(np.max(distances**2 / 2 + reach * distances) / grid) + 2
    upper = np.zeros(top + 1)
    centre = 0.0
    for weight, distance in zip(weights, distances, strict=True):
        if distance == 0:
            centre += weight
            continue
        start = max(0, int((distance**2 / 2 - reach * distance) / grid) - 1)
        stop = min(top, int((distance**2 / 2 + reach * distance) / grid) + 2)
        edges = grid_points(start, stop, grid)
        here = distance / 2 - edges / distance
        low, high = _split(ndtr(here), log_ndtr(here - distance), edges, grid)
        upper[start : start + low.size] += weight * low
        upper[start + 1 : start + 1 + high.size] += weight * high
        upper[start] += weight * float(ndtr(-here[0])) * (start > 0)
        escaped += weight * float(ndtr(here[-1]))
    return _symmetric(upper, centre, escaped, grid)


def routed_pair(rate: float, distance: float, grid: float, tail: float) -> LossPair:
    """The dominating pair of one routed query: advanced joint convexity, the same in both directions.

    With beta = 1 + (exp(l) - 1)/rate and t = ln(beta) the profile at l >= 0 is
    delta(l) = rate * [Phi(d/2 - t/d) - beta * Phi(-d/2 - t/d)]. Its slope gives Q(L > l) = Phi(-d/2 - t/d), hence
    P(L > l) = delta(l) + exp(l) * Q(L > l) = (1 - rate) * Phi(-d/2 - t/d) + rate * Phi(d/2 - t/d), which is free of
    cancellation. The pair is symmetric, P(L < -l) = Q(L > l), and what is left,
    1 - P(L > 0) - Q(L > 0) = (1 - rate) * (2 * Phi(d/2) - 1), sits at zero loss.
    """
    if rate >= 1:
        return gaussian_pair(distance, grid, tail)
    top = int(max(0.0, sampled_loss(rate, distance, distance + quantile(tail))) / grid) + 2
    edges = grid_points(0, top, grid)
    position = _unsampled_loss(edges, rate) / distance
    above_p = (1 - rate) * ndtr(-distance / 2 - position) + rate * ndtr(distance / 2 - position)
    low, high = _split(above_p, log_ndtr(-distance / 2 - position), edges, grid)
    upper = np.append(low, 0.0)
    upper[1:] += high
    centre = (1 - rate) * float(ndtr(distance / 2) - ndtr(-distance / 2))
    return _symmetric(upper, centre, float(above_p[-1]), grid)


def poisson_pair(rate: float, distance: float, grid: float, tail: float) -> LossPair:
    """(1 - rate) * Normal(0, 1) + rate * Normal(distance, 1) against Normal(0, 1), and the other way round."""
    if rate >= 1:
        return gaussian_pair(distance, grid, tail)
    reach = quantile(tail)
    first = int(np.floor(sampled_loss(rate, distance, -reach) / grid)) - 1
    last = int(np.ceil(sampled_loss(rate, distance, distance + reach) / grid)) + 1
    edges = grid_points(first, last, grid)
    position = _unsampled_loss(edges, rate) / distance + distance / 2
    above_p = (1 - rate) * ndtr(-position) + rate * ndtr(distance - position)
    below_p = (1 - rate) * ndtr(position) + rate * ndtr(position - distance)
    right = position[:-1] > 0
    mass_p = np.where(right, above_p[:-1] - above_p[1:], below_p[1:] - below_p[:-1])
    log_mass_q = np.where(right, _log_falls(log_ndtr(-position)), _log_falls(log_ndtr(position)[::-1])[::-1])
    low, high = _shares(mass_p, log_mass_q, edges[:-1], grid)
    mass = np.append(low, 0.0)
    mass[1:] += high
    mirrored = (mass * np.exp(-edges))[::-1]
    mirrored[0] += ndtr(-position[-1])
    mass[0] += below_p[0]
    return LossPair(
        remove=LossLaw(first, mass, float(above_p[-1])), add=LossLaw(-last, mirrored, float(ndtr(position[0])))
    )


def _unsampled_loss(losses: Array, rate: float) -> Array:
    """ln(1 + (exp(l) - 1)/rate): the loss before sampling; minus infinity where sampling makes l impossible."""
    small, large = np.minimum(losses, 1.0), np.maximum(losses, 1.0)
    with np.errstate(divide="ignore", over="ignore"):
        near = np.log1p(np.clip(np.expm1(small) / rate, -1.0, 1e300))
    far = large - np.log(rate) + np.log1p(-(1 - rate) * np.exp(-large))
    return np.where(losses <= 1.0, near, far)


def _split(above_p: Array, log_above_q: Array, edges: Array, grid: float) -> tuple[Array, Array]:
    """The shares (lower point, upper point) of every interval, from the mass above each edge under P and Q."""
    return _shares(above_p[:-1] - above_p[1:], _log_falls(log_above_q), edges[:-1], grid)


def _shares(mass_p: Array, log_mass_q: Array, lower_edges: Array, grid: float) -> tuple[Array, Array]:
    """Split ``mass_p`` so that the masses under P and under Q are both kept (see the module's docstring)."""
    mass_p = np.maximum(mass_p, 0.0)
    with np.errstate(over="ignore"):
        upper = (mass_p - np.exp(log_mass_q + lower_edges)) / -np.expm1(-grid)
    upper = np.clip(upper, 0.0, mass_p)
    return mass_p - upper, upper


def _log_falls(log_values: Array) -> Array:
    """ln(v[k] - v[k+1]) for a falling sequence given by its logarithms."""
    with np.errstate(divide="ignore", invalid="ignore"):
        falls = log_values[:-1] + np.log(-np.expm1(log_values[1:] - log_values[:-1]))
    return np.where(np.isnan(falls), -np.inf, falls)


def _symmetric(upper: Array, centre: float, escaped: float, grid: float) -> LossPair:
    """Complete a pair with P(L < -l) = Q(L > l) from its losses >= 0: Q's mass at l is exp(-l) times P's.

    ``upper[0]`` is what the intervals above zero put on zero; those below zero put there the same once more.
    """
    count = upper.size - 1
    lower = (upper[1:] * np.exp(-grid_points(1, count, grid)))[::-1]
    mass = np.concatenate([lower, [centre + 2 * upper[0]], upper[1:]])
    law = LossLaw(-count, mass, escaped)
    return LossPair(remove=law, add=law)
