"""A privacy budget: the epsilon and delta that a run may not exceed."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from understudy.errors import InputError

_LARGEST = sys.float_info.max


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
