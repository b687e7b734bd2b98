"""The moments of Bayesian differential privacy: what one step costs one unit, and a bound on the mean over units.

A. Triastcyn, B. Faltings, "Generating Higher-Fidelity Synthetic Datasets with Privacy Guarantees" (Algorithms 2022),
equations 5 to 8. Symbols: lambda the order, q the Poisson rate, T the number of steps, which is also the exponent of
Hoelder's inequality, m the pairs drawn in a step. A unit's *length* is the norm of its clipped gradient over the clip
bound, so it lies in 0..1, and ``noise_multiplier`` is the noise's deviation over the clip bound.

The pool bounds a mean over all steps and units, with and without a law for its tails. Hoelder's inequality leaves the
sum over steps of ``ln E[exp(T c)] / T``, where c is what a step costs a unit drawn from the data. The logarithm is
concave, so that sum is at most ``ln`` of the mean of ``exp(T c)`` over all steps and units: one mean, with as many
samples as there were pairs in the whole run. An outlier that shows up in one step of a hundred is missed by most steps
and seen by the pool.
"""

from __future__ import annotations

import math
from typing import Any, Literal

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


_TILTS = (0.9, *(0.5**power for power in range(1, 14)))  # of the distribution-free bound, fixed in advance


class Pool:
    """Running sums over all samples ``exp(log)`` at each order; samples are at most ``exp(worst)``."""

    def __init__(self, worst: Array) -> None:
        self._worst = worst
        self.samples = 0
        self._first, self._second = np.full(len(worst), -np.inf), np.full(len(worst), -np.inf)
        self._mean, self._variation = np.zeros(len(worst)), np.zeros(len(worst))  # in units of exp(worst)

    def add(self, logs: Array) -> None:
        """Add samples (orders, ...); none may be above ``worst``."""
        logs = np.minimum(logs.reshape(len(logs), -1), self._worst[:, None])
        largest = logs.max(axis=1)
        values = np.exp(logs - largest[:, None])
        self._first = np.logaddexp(self._first, largest + np.log(values.sum(axis=1)))
        self._second = np.logaddexp(self._second, 2 * largest + np.log(np.einsum("os,os->o", values, values)))
        values *= np.exp(largest - self._worst)[:, None]
        apart = values - self._mean[:, None]  # from what was known before
        self._variation += np.einsum("os,os->o", apart, apart)
        count = self.samples + values.shape[1]
        self._mean += apart.sum(axis=1) / count
        self.samples = count

    @property
    def effective(self) -> Array:
        """How many samples carry the mean at each order: (sum)^2 over the sum of squares."""
        return np.exp(2 * self._first - self._second) if self.samples else np.zeros(len(self._worst))

    def student(self, failure: float) -> Array:
        """ln of Student's upper bound of the mean; trusted where many samples carry it."""
        from scipy.stats import t

        mean = self._first - math.log(self.samples)
        spread = np.maximum(0.0, np.exp(self._second - math.log(self.samples) - 2 * mean) - 1)  # (S / mean)^2
        quantile = float(t.isf(failure, self.samples - 1))
        return np.asarray(mean + np.log1p(quantile * np.sqrt(spread / (self.samples - 1))))

    def bounded(self, failure: float) -> Array:
        """ln of an upper bound of the mean that holds for any law of samples between 0 and ``exp(worst)``.

        With y a sample over exp(worst), u its mean given the past, v any guess from the past, and 0 < l < 1:
        ``E exp(l (u - y) - (-ln(1-l) - l) (y - v)^2) <= 1`` (Fan, Grama, Liu 2015; Howard, Ramdas, McAuliffe, Sekhon
        2021). So ``sum u <= sum y + (ln(1/failure) + (-ln(1-l) - l) sum (y - v)^2) / l`` except with that probability;
        the best of a few l is taken, and paid for. Samples may depend on the past, as those of a training run do.
        """
        needed = math.log(len(_TILTS) / failure)
        margins = [(needed + (-math.log1p(-tilt) - tilt) * self._variation) / tilt for tilt in _TILTS]
        upper = self._mean + np.min(margins, axis=0) / self.samples
        return np.asarray(self._worst + np.log(np.minimum(1.0, upper * (1 + 1e-9))))

    def state(self) -> dict[str, Any]:
        """Plain data."""
        names = ("_first", "_second", "_mean", "_variation")
        return {"samples": self.samples, **{name[1:]: getattr(self, name).tolist() for name in names}}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from plain data; ValueError where they do not fit."""
        for name in ("first", "second", "mean", "variation"):
            values = np.array(state[name], dtype=np.float64)
            if values.shape != self._worst.shape or np.isnan(values).any():
                raise ValueError(name)
            setattr(self, f"_{name}", values)
        self.samples = int(state["samples"])
