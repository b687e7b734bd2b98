"""Poisson sampling: each unit takes part independently with the same public rate."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from understudy.data.dataset import ImageDataset, Unit
from understudy.data.draws import Bits, coin_flips
from understudy.errors import InputError


@dataclass(frozen=True, eq=False)
class PoissonSampler:
    """Draws batches in which each unit occurs independently with probability exactly ``rate``.

    Privacy: amplification by Poisson sampling (adjacency add-remove) holds for this law only, not for shuffled epochs
    or batches of fixed size. ``rate`` comes from declared numbers. A batch, its size and its being empty are private:
    divide by the expected size, never by the drawn one. An empty batch is a valid batch.
    """

    unit_of_record: NDArray[np.int64] = field(repr=False)
    rate: float
    bits: Bits = field(default=os.urandom, repr=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and 0 < self.rate <= 1):
            raise InputError(f"rate: {self.rate} does not lie in 0..1; pass a sampling rate such as 0.01")

    @classmethod
    def of(
        cls, data: ImageDataset, expected_batch: float, *, unit: Unit = "record", bits: Bits = os.urandom
    ) -> PoissonSampler:
        """A sampler with rate ``expected_batch`` over the declared number of units."""
        return cls(data.unit_of_record(unit), sampling_rate(expected_batch, data.nominal_units(unit)), bits)

    def draw(self) -> NDArray[np.int64]:
        """The records of one batch, in order; all records of a unit or none. Privacy: private."""
        units = int(self.unit_of_record.max()) + 1 if self.unit_of_record.size else 0
        taken = coin_flips(units, self.rate, self.bits)
        return np.flatnonzero(taken[self.unit_of_record]).astype(np.int64)


def sampling_rate(expected_batch: float, nominal_units: int) -> float:
    """The public rate of a batch of that expected size; what the event of the mechanism must carry."""
    if not (math.isfinite(expected_batch) and 0 < expected_batch <= nominal_units):
        raise InputError(
            f"batch: an expected size of {expected_batch} out of {nominal_units} nominal units;"
            f" pass a positive size of at most {nominal_units}"
        )
    return expected_batch / nominal_units
