"""The moments of Bayesian differential privacy: what one step costs one unit, and a bound on the mean over units.

A. Triastcyn, B. Faltings, "Generating Higher-Fidelity Synthetic Datasets with Privacy Guarantees" (Algorithms 2022),
equations 5 to 8. Symbols: lambda the order, q the Poisson rate, T the number of steps, which is also the exponent of
Hoelder's inequality, m the pairs drawn in a step. A unit's *length* is the norm of its clipped gradient over the clip
bound, so it lies in 0..1, and ``noise_multiplier`` is the noise's deviation over the clip bound.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

Array = NDArray[np.float64]
Formulas = Literal["tight", "as printed"]

_NODES = 1024  # of the table over lengths; chords between nodes lie above the convex moment
_LARGEST = 1e300


def left_moment(order: int, rate: float, noise_multiplier: float, squared_lengths: Array) -> Array:
    """Equation 6 for one unit: ln E_{k ~ Binomial(order+1, q)} exp((k^2 - k) d^2 / (2 sigma^2)).

    This is exactly ``order`` times the Renyi divergence of order ``order + 1`` of a Poisson-sampled Gaussian from the
    Gaussian without the unit.
    """
    return _log_expectation(order + 1, rate, -1, noise_multiplier, squared_lengths)


def right_moment(order: int, rate: float, noise_multiplier: float, squared_lengths: Array) -> Array:
    """Equation 7 for one unit: ln E_{k ~ Binomial(order, q)} exp((k^2 + k) d^2 / (2 sigma^2)).

    An upper bound of the divergence in the other direction, by Jensen's inequality; it is of first order in the rate.
    """
    return _log_expectation(order, rate, +1, noise_multiplier, squared_lengths)


def _log_expectation(trials: int, rate: float, sign: int, noise_multiplier: float, squared_lengths: Array) -> Array:
    """ln E_k exp(a_k d^2) with a_k = (k^2 + sign k) / (2 sigma^2), as ln(1 + E_k[exp(a_k d^2) - 1]): exact at zero."""
    k = np.arange(trials + 1, dtype=np.float64)
    with np.errstate(divide="ignore", over="ignore"):
        exponents = np.minimum((k * k + sign * k) / 2 / noise_multiplier / noise_multiplier, _LARGEST)
        logs = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1) + k * np.log(rate)
        logs += (
            np.where(k < trials, (trials - k) * np.log1p(-rate), 0.0)
            if rate < 1
            else np.where(k < trials, -np.inf, 0.0)
        )
        powers = np.multiply.outer(np.asarray(squared_lengths, dtype=np.float64), exponents)
        grown = np.where(
            powers > 30, powers + np.log1p(-np.exp(-np.maximum(powers, 30))), np.log(np.expm1(np.minimum(powers, 30)))
        )
    return np.asarray(np.logaddexp(0.0, logsumexp(grown + logs, axis=-1)))


class MomentTable:
    """The moments of all orders over all lengths, as chords: an upper bound, since each is convex in the square.

    ``tight`` takes equation 6 for both directions: for Gaussians the divergence of the sampled law from the unsampled
    one is the larger of the two (Mironov, Talwar, Zhang 2019, Theorem 5). ``as printed`` takes the larger of equations
    6 and 7, and 7 is a coarse bound.
    """

    def __init__(
        self, orders: tuple[int, ...], rate: float, noise_multiplier: float, formulas: Formulas = "tight"
    ) -> None:
        self._squares = np.linspace(0.0, 1.0, _NODES) ** 2
        rows = [left_moment(order, rate, noise_multiplier, self._squares) for order in orders]
        if formulas == "as printed":
            others = [right_moment(order, rate, noise_multiplier, self._squares) for order in orders]
            rows = [np.maximum(left, right) for left, right in zip(rows, others, strict=True)]
        self._rows = rows

    @property
    def worst(self) -> Array:
        """The moments (orders,) of a unit as long as the clip bound."""
        return np.array([row[-1] for row in self._rows])

    def moments(self, lengths: Array) -> Array:
        """Upper bounds (orders, ...) for units of these lengths; beyond the clip bound, or no number, is the bound."""
        squares = np.where(np.isfinite(lengths), np.clip(lengths, 0.0, 1.0), 1.0) ** 2
        return np.stack([np.interp(squares, self._squares, row) for row in self._rows])


def price_of_delta(orders: Array, delta: float, formulas: Formulas = "tight") -> Array:
    """What a total cost c at an order adds up to: epsilon = (c + price) / order.

    ``as printed`` is equation 9: by Markov's inequality the loss exceeds epsilon with probability delta. ``tight`` asks
    for delta as definition 4 does, ``E[max(0, 1 - exp(epsilon - loss))] <= delta``. That is at most ``exp(c - order *
    epsilon)`` times the largest value of ``(1 - exp(-z)) exp(-order z)``, which is ``order^order / (order + 1)^(order +
    1)`` (Canonne, Kamath, Steinke 2020). Both are linear in the moment, so a mean over units passes through.
    """
    printed = np.full(len(orders), -math.log(delta))
    if formulas == "as printed":
        return printed
    return np.asarray(np.maximum(0.0, printed + orders * np.log(orders) - (orders + 1) * np.log(orders + 1)))


def mean_bounds(logs: Array, failure: float) -> Array:
    """Equation 8 over the last axis: ln of Student's upper bound of E[exp(logs)] from m samples.

    The bound is ``mean + F^{-1}(1 - failure, m - 1) S / sqrt(m - 1)``, with S the deviation that divides by m; all
    relative to the largest value, so nothing overflows. It takes the mean of m samples for normal.
    """
    from scipy.stats import t

    pairs = logs.shape[-1]
    largest = logs.max(axis=-1, keepdims=True)
    values = np.exp(logs - largest)
    quantile = float(t.isf(failure, pairs - 1))
    bounds = values.mean(axis=-1) + quantile * values.std(axis=-1) / np.sqrt(pairs - 1)
    return np.asarray(largest[..., 0] + np.log(bounds))
