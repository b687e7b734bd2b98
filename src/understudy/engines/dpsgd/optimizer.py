"""Adam on one flat tensor: a few whole-tensor operations, whatever the network."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_TINY = 1e-8


class FlatAdam:
    """Adam (Kingma, Ba 2015) with bias correction, updating ``values`` in place.

    Privacy: it sees sanitized updates only, so its moments may be kept.
    """

    def __init__(self, values: Tensor, learning_rate: float, betas: tuple[float, float]) -> None:
        self._values, self._rate, self._betas = values, learning_rate, betas
        self._first, self._second = torch.zeros_like(values), torch.zeros_like(values)
        self.steps = 0

    def step(self, update_dp: Tensor) -> None:
        """One step against the (averaged, noisy) gradient."""
        self.steps += 1
        first, second = self._betas
        update_dp = update_dp.to(self._values.dtype)
        self._first.lerp_(update_dp, 1 - first)
        self._second.mul_(second).addcmul_(update_dp, update_dp, value=1 - second)
        correction = math.sqrt(1 - second**self.steps)
        scale = self._second.sqrt().add_(_TINY * correction)
        self._values.addcdiv_(self._first, scale, value=-self._rate * correction / (1 - first**self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Moments and the number of steps."""
        return {"first": self._first, "second": self._second, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue where a checkpoint stood."""
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        self.steps = int(state["steps"])
