"""The main accountant: privacy-loss distributions, on ``dp_accounting``.

Each kind of event gives its privacy profile (``profiles``), sampled on a uniform grid; ``dp_accounting`` turns the
samples into a privacy-loss distribution by the pessimistic connect-the-dots rule, composes it, and reads the result.
Every figure is an upper bound.

Its limits. The composition works in double precision, which leaves an error of some ``1e-16 * count`` in delta;
``rounding`` is an allowance for it, taken off the allowed delta. Where that would be more than a tenth of delta (at a
million executions: below 3e-9) the distribution cannot be read any more and Renyi's larger figure is returned. An
event with losses above ``LARGEST_LOSS`` has no epsilon worth the name: inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import stats

from understudy.errors import InputError
from understudy.privacy.accounting import profiles, renyi
from understudy.privacy.accounting.profiles import Direction
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

USUAL_GRID, FINEST_GRID = 1e-4, 1e-10
POINTS_PER_DEVIATION = 4
MOST_POINTS, MOST_POINTS_COMPOSED, MOST_EVALUATIONS = 2**18, 2**20, 2**22
LARGEST_LOSS = 1e6


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
    allowed = delta - rounding(events)
    pieces = _pieces(events, tail=delta * 1e-7)
    if not pieces:
        return 0.0
    if _out_of_range(pieces):
        return math.inf
    if allowed < 0.9 * delta:
        return renyi.epsilon(events, delta)
    composed = _composed(pieces, _grid(pieces) if grid is None else grid, tail=delta * 1e-7)
    return max(_read_epsilon(distribution, allowed) for distribution in composed)


def delta(events: Sequence[Event], epsilon: float, grid: float | None = None) -> float:
    """The smallest delta that holds at ``epsilon``, rounded up; never below the allowance for rounding."""
    pieces = _pieces(events, tail=1e-16)
    if not pieces:
        return 0.0
    if _out_of_range(pieces):
        return 1.0
    composed = _composed(pieces, _grid(pieces) if grid is None else grid, tail=1e-16)
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
        gaussian = profiles.gaussian(math.sqrt(unsampled), deviations)
        pieces.append(_Piece(1, gaussian, gaussian, unsampled + unsampled**2 / 4))
    return pieces


def _piece(multiplier: float, sampling: object, count: int, deviations: float) -> _Piece:
    distance = _distance(multiplier)
    if isinstance(sampling, PoissonSampling):
        remove = profiles.poisson_remove(sampling.rate, distance, deviations)
        add = profiles.poisson_add(sampling.rate, distance, deviations)
        return _Piece(count, remove, add, profiles.mean_square_loss(sampling.rate, distance))
    if isinstance(sampling, RoutedSampling):
        rate = _rate(sampling.subsets)
        both = profiles.routed(rate, distance, deviations)
        return _Piece(count, both, both, profiles.mean_square_loss(rate, distance))
    if isinstance(sampling, RevealedRouting):
        draws, rate = count // sampling.rows, _rate(sampling.subsets)
        both, mean_square, components = profiles.revealed(
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
    widest = max((d.highest - d.lowest) / piece.points for piece in pieces for d in (piece.remove, piece.add))
    fine = max(FINEST_GRID, min(USUAL_GRID, typical / POINTS_PER_DEVIATION))
    return max(fine, widest, 20 * math.sqrt(square) / MOST_POINTS_COMPOSED)


def _composed(pieces: Sequence[_Piece], grid: float, tail: float) -> list[Any]:
    """The composed distributions, one for each direction."""
    composed = [_compose([(piece, piece.remove) for piece in pieces], grid, tail)]
    if any(piece.add is not piece.remove for piece in pieces):
        composed.append(_compose([(piece, piece.add) for piece in pieces], grid, tail))
    return composed


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
    first = math.floor(direction.lowest / grid) - 1
    last = max(math.ceil(direction.highest / grid), first + math.ceil(spread / grid)) + 1
    deltas = np.clip(direction.profile(grid * np.arange(first, last + 1, dtype=np.float64)), 0.0, 1.0)
    # A profile falls; where rounding makes it rise by a last digit, the larger value holds for both.
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, first, last, deltas).to_dense_pmf()


def _read_epsilon(distribution: Any, allowed: float) -> float:
    if float(distribution.get_delta_for_epsilon(0.0)) <= allowed:
        return 0.0
    return float(distribution.get_epsilon_for_delta(allowed))
