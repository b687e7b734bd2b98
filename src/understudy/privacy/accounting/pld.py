"""The main accountant: privacy-loss distributions, on ``dp_accounting``.

Each kind of event gives its privacy profile, sampled on a uniform grid; ``dp_accounting`` turns the samples into a
privacy-loss distribution by the pessimistic connect-the-dots rule, composes it, and reads the result. Every figure is
an upper bound.

A profile is delta(epsilon) = sup over sets of [P(set) - exp(epsilon) * Q(set)] for every real epsilon, negative ones
too, of one execution of an event. ``Phi`` is the normal distribution function and ``distance`` the distance of two
Gaussians in deviations, that is 1/noise_multiplier. All products exp(x) * Phi(y) are formed from logarithms, so that
nothing overflows.

Its limits. The composition works in double precision, which leaves an error of some ``1e-16 * count`` in delta;
``rounding`` is an allowance for it, taken off the allowed delta. Where that would be more than a tenth of delta (at a
million executions: below 3e-9) the composed distribution cannot be read, and Chernoff's bound is returned instead, some
ten percent higher. An event with losses above ``LARGEST_LOSS`` has no epsilon worth the name: inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from numpy.typing import NDArray
from scipy import special, stats

from understudy.errors import InputError
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

Array = NDArray[np.float64]
Profile = Callable[[Array], Array]

USUAL_GRID, FINEST_GRID = 1e-4, 1e-10
POINTS_PER_DEVIATION = 4
MOST_POINTS, MOST_POINTS_COMPOSED, MOST_EVALUATIONS = 2**18, 2**20, 2**22
LARGEST_LOSS = 1e6
MOST_COMPONENTS = 256


@dataclass(frozen=True)
class Direction:
    """One direction of an event: its profile, and the range of losses that holds all but a negligible mass."""

    profile: Profile
    lowest: float
    highest: float


@dataclass(frozen=True)
class _Piece:
    """``count`` executions with the same profile; the two directions may be one object."""

    count: int
    remove: Direction
    add: Direction
    mean_square: float
    points: int = MOST_POINTS


def epsilon(events: Sequence[Event], delta: float, grid: float | None = None) -> float:
    """The smallest epsilon that holds at ``delta``, rounded up by the discretisation; inf where none was found."""
    pieces = _pieces(events, tail=delta * 1e-7)
    if not pieces:
        return 0.0
    if _out_of_range(pieces):
        return math.inf
    step = _grid(pieces) if grid is None else grid
    allowed = delta - rounding(events)
    if allowed < 0.9 * delta:
        return max(_chernoff(parts, step, delta) for parts in _directions(pieces))
    composed = [_compose(parts, step, tail=delta * 1e-7) for parts in _directions(pieces)]
    return max(_read_epsilon(distribution, allowed) for distribution in composed)


def delta(events: Sequence[Event], epsilon: float, grid: float | None = None) -> float:
    """The smallest delta that holds at ``epsilon``, rounded up; never below the allowance for rounding."""
    pieces = _pieces(events, tail=1e-16)
    if not pieces:
        return 0.0
    if _out_of_range(pieces):
        return 1.0
    step = _grid(pieces) if grid is None else grid
    composed = [_compose(parts, step, tail=1e-16) for parts in _directions(pieces)]
    found = max(float(distribution.get_delta_for_epsilon(epsilon)) for distribution in composed)
    return min(1.0, found + rounding(events))


def rounding(events: Sequence[Event]) -> float:
    """An allowance for rounding errors in a composed delta: several times the largest error that was seen."""
    sampled = [e for e in events if not (isinstance(e.sampling, RevealedRouting) or _unsampled(e.sampling))]
    return 3e-16 * sum(event.count for event in sampled)


def _unsampled(sampling: object) -> bool:
    """Whether every unit takes part for sure, so that executions add up to one Gaussian, exactly."""
    return (
        isinstance(sampling, NoSampling)
        or (isinstance(sampling, PoissonSampling) and sampling.rate == 1)
        or (isinstance(sampling, RoutedSampling) and sampling.subsets == 1)
    )


def _pieces(events: Sequence[Event], tail: float) -> list[_Piece]:
    """Collect equal events; those without sampling are together one Gaussian, exactly."""
    tail /= max(1, sum(event.count for event in events))
    deviations = float(stats.norm.isf(tail))
    counts: dict[tuple[float, object], int] = {}
    for event in events:
        key = (event.noise_multiplier, event.sampling)
        counts[key] = counts.get(key, 0) + event.count
    unsampled = sum(count * _distance(key[0]) ** 2 for key, count in counts.items() if _unsampled(key[1]))
    pieces = [
        _piece(multiplier, sampling, count, deviations)
        for (multiplier, sampling), count in counts.items()
        if not _unsampled(sampling)
    ]
    if unsampled:
        both = gaussian(math.sqrt(unsampled), deviations)
        pieces.append(_Piece(1, both, both, unsampled + unsampled**2 / 4))
    return pieces


def _piece(multiplier: float, sampling: object, count: int, deviations: float) -> _Piece:
    distance = _distance(multiplier)
    if isinstance(sampling, PoissonSampling):
        remove = poisson_remove(sampling.rate, distance, deviations)
        add = poisson_add(sampling.rate, distance, deviations)
        return _Piece(count, remove, add, mean_square_loss(sampling.rate, distance))
    if isinstance(sampling, RoutedSampling):
        rate = _rate(sampling.subsets)
        both = routed(rate, distance, deviations)
        return _Piece(count, both, both, mean_square_loss(rate, distance))
    if isinstance(sampling, RevealedRouting):
        draws, rate = count // sampling.rows, _rate(sampling.subsets)
        both, mean_square, components = revealed(
            draws, rate, sampling.rows * distance**2, float(stats.norm.sf(deviations))
        )
        return _Piece(1, both, both, mean_square, min(MOST_POINTS, MOST_EVALUATIONS // components))
    raise InputError(f"sampling: {sampling!r} is unknown to the pld accountant; an unknown event is never accounted")


def _distance(multiplier: float) -> float:
    """Deviations between neighbours, rounded up (and not beyond any use) where the multiplier is out of all range."""
    return min(max(1 / multiplier, 1e-9), 1e9)


def _rate(subsets: int) -> float:
    return max(1 / subsets, 1e-300)


def _out_of_range(pieces: Sequence[_Piece]) -> bool:
    """Whether a single or the typical composed loss is too large to be told from no protection at all."""
    largest = max(direction.highest for piece in pieces for direction in (piece.remove, piece.add))
    typical = math.sqrt(sum(piece.count * piece.mean_square for piece in pieces))
    return not max(largest, typical) <= LARGEST_LOSS


def _grid(pieces: Sequence[_Piece]) -> float:
    """Fine against the typical loss of one execution, coarse enough for the whole range of losses."""
    square = sum(piece.count * piece.mean_square for piece in pieces)
    typical = math.sqrt(square / sum(piece.count for piece in pieces))
    finest = max(FINEST_GRID, typical / POINTS_PER_DEVIATION)
    widest = max((d.highest - d.lowest) / piece.points for piece in pieces for d in (piece.remove, piece.add))
    affordable = max(min(USUAL_GRID, finest), widest)
    if affordable > finest:
        # Too coarse for what a typical execution loses: worth four times the points, and the wait.
        affordable = max(finest, widest / 4)
    return max(affordable, 20 * math.sqrt(square) / MOST_POINTS_COMPOSED)


def _directions(pieces: Sequence[_Piece]) -> list[list[tuple[_Piece, Direction]]]:
    """The pieces with the direction that each is composed in: all removed, and all added where that differs."""
    removed = [(piece, piece.remove) for piece in pieces]
    added = [(piece, piece.add) for piece in pieces]
    return [removed] if all(piece.add is piece.remove for piece in pieces) else [removed, added]


def _compose(parts: Sequence[tuple[_Piece, Direction]], grid: float, tail: float) -> Any:
    total = None
    for piece, direction in parts:
        part = _distribution(direction, grid, spread=math.sqrt(piece.count * piece.mean_square))
        if piece.count > 1:
            # The library tries powers that overflow, and passes over them.
            with np.errstate(all="ignore"):
                part = part.self_compose(piece.count, tail_mass_truncation=tail / len(parts))
        total = part if total is None else total.compose(part)
    return total


def _distribution(direction: Direction, grid: float, spread: float) -> Any:
    """The profile on a grid, made a dense distribution by connect-the-dots.

    The grid reaches up to the composed ``spread``, even where the profile is zero: the library's bound on the length
    of a composition tries powers relative to the length of this one, and a short one would make a far too long other.
    """
    first, deltas = _sampled(direction, grid, spread)
    last = first + deltas.size - 1
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, first, last, deltas).to_dense_pmf()


def _sampled(direction: Direction, grid: float, spread: float) -> tuple[int, Array]:
    """The index of the lowest grid point and the profile from there on."""
    first = math.floor(direction.lowest / grid) - 1
    last = max(math.ceil(direction.highest / grid), first + math.ceil(spread / grid)) + 1
    deltas = np.clip(direction.profile(grid * np.arange(first, last + 1, dtype=np.float64)), 0.0, 1.0)
    # A profile falls; where rounding makes it rise by a last digit, the larger value holds for both.
    return first, np.maximum.accumulate(deltas[::-1])[::-1]


def _read_epsilon(distribution: Any, allowed: float) -> float:
    if float(distribution.get_delta_for_epsilon(0.0)) <= allowed:
        return 0.0
    with np.errstate(over="ignore"):  # a quotient of masses that is infinite is compared, and nothing else
        return float(distribution.get_epsilon_for_delta(allowed))


def _chernoff(parts: Sequence[tuple[_Piece, Direction]], grid: float, delta: float) -> float:
    """Epsilon by Chernoff's bound on the connect-the-dots law, at the best of many powers t.

    (1 - exp(epsilon - l))_+ <= exp(t * (l - epsilon)) * t^t / (1+t)^(1+t) for every loss l, hence
    delta(epsilon) <= E[exp(t * L)] * exp(-t * epsilon) * t^t / (1+t)^(1+t).
    """
    spread = max(1e-9, math.sqrt(sum(piece.count * piece.mean_square for piece, _ in parts)))
    powers = np.geomspace(0.05 / spread, 100 / spread, 64)
    logs, left = np.zeros(powers.size), delta
    for piece, direction in parts:
        first, deltas = _sampled(direction, grid, 0.0)
        falls = -np.diff(deltas)
        masses = np.empty(deltas.size)
        masses[0] = 1 - deltas[0] - falls[0] / math.expm1(grid)
        masses[1:-1] = (falls[:-1] * math.exp(grid) - falls[1:]) / math.expm1(grid)
        masses[-1] = falls[-1] / -math.expm1(-grid)
        losses = grid * np.arange(first, first + deltas.size)
        with np.errstate(all="ignore"):
            moments = [special.logsumexp(power * losses, b=np.maximum(masses, 0.0)) for power in powers]
        logs += piece.count * np.array(moments)
        left -= piece.count * float(deltas[-1])
    if left <= 0:
        return math.inf
    found = (logs - np.log1p(powers) - powers * np.log1p(1 / powers) - math.log(left)) / powers
    return max(0.0, float(np.min(found[np.isfinite(found)], initial=math.inf)))


# Profiles of single executions


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
