"""All samples of a run together: what a mean over steps and units can be, with and without a law for its tails.

Hoelder's inequality leaves the sum over steps of ``ln E[exp(T c)] / T``, where c is what a step costs a unit drawn from
the data. The logarithm is concave, so that sum is at most ``ln`` of the mean of ``exp(T c)`` over all steps and units:
one mean, with as many samples as there were pairs in the whole run. An outlier that shows up in one step of a hundred
is missed by most steps and seen by the pool.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from understudy.privacy.accounting.bayesian_moments import Array

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
