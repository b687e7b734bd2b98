"""A privacy budget: the epsilon and delta that a run may not exceed."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from understudy.errors import InputError

_LARGEST = sys.float_info.max
_LARGEST_USUAL_DELTA = 1e-5


@dataclass(frozen=True)
class Budget:
    """What a run may spend: (epsilon, delta)-differential privacy."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, (int, float)) and 0 < self.epsilon <= _LARGEST):
            raise InputError(f"epsilon: {self.epsilon} is not a positive finite number; pass for example epsilon=10")
        if not (isinstance(self.delta, (int, float)) and 0 < self.delta < 1):
            raise InputError(f"delta: {self.delta} does not lie strictly between 0 and 1; pass for example delta=1e-5")

    def settled(self, units: int) -> Budget:
        """The budget for so many declared units: this one."""
        return self


def usual_delta(units: int) -> float:
    """A tenth of one over the declared units, at most 1e-5; of two digits, rounded down.

    Delta may mean that one unit is exposed outright, so it must stay well below one over their number. It follows from
    a declared figure, so it is public.
    """
    digits = 10.0 ** (math.floor(math.log10(0.1 / units)) - 1)
    return min(_LARGEST_USUAL_DELTA, float(f"{math.floor(0.1 / units / digits + 1e-9) * digits:.1e}"))


@dataclass(frozen=True)
class OpenBudget(Budget):
    """Epsilon alone: delta follows from the declared units, once they are known."""

    delta: float = _LARGEST_USUAL_DELTA  # the most it can be

    def settled(self, units: int) -> Budget:
        """With the usual delta."""
        return Budget(self.epsilon, usual_delta(units))


@dataclass(frozen=True)
class NoBudget(Budget):
    """What a method without any privacy is planned with: (inf, 1) holds for everything and promises nothing."""

    epsilon: float = math.inf
    delta: float = 1.0

    def __post_init__(self) -> None:
        """Nothing to check: it is no budget."""


def stated_budget(epsilon: float | None, delta: float | None) -> Budget | None:
    """The budget that was stated, if any; half of one is refused."""
    if (epsilon is None) != (delta is None):
        missing = "--delta" if delta is None else "--epsilon"
        raise InputError(f"budget: {missing} is missing; pass for example --epsilon 10 --delta 1e-5")
    return None if epsilon is None or delta is None else Budget(epsilon, delta)
