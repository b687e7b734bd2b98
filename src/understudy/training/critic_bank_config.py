"""What a critic bank is made of, how it runs, and what a training step reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from understudy.models.critic import CriticConfig, CriticLossConfig

_FROZEN = ConfigDict(frozen=True, extra="forbid")
_CPU_WORKSPACE = 2**28  # small enough to stay near the caches
_CUDA_WORKSPACE = 2**34


class AdamConfig(BaseModel):
    """Adam, as the GS-WGAN paper sets it."""

    model_config = _FROZEN
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    first_decay: Annotated[float, Field(ge=0, lt=1)] = 0.5
    second_decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    eps: Annotated[float, Field(gt=0)] = 1e-8


class CriticBankConfig(BaseModel):
    """Method settings of a bank: the critic, how many of them, their loss and their optimiser."""

    model_config = _FROZEN
    critic: CriticConfig
    critics: Annotated[int, Field(ge=1)]
    loss: CriticLossConfig = CriticLossConfig()
    adam: AdamConfig = AdamConfig()


class CriticBankRuntime(BaseModel):
    """Runtime settings: they change speed, memory and rounding, never the privacy.

    ``precision`` is that of the matrix products; parameters, moments, spectral norms and penalties stay in fp32.
    ``chunk`` is the most critics handled at once (None: as many as a share of the free memory holds).
    """

    model_config = _FROZEN
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    chunk: Annotated[int, Field(ge=1)] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of activations and of the weights that multiply them."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def capacity(self, bytes_each: int, device: torch.device) -> int:
        """How many critics to handle at once when each needs ``bytes_each`` of working memory.

        Privacy: decided from the machine and public shapes, never from what is free: one record more must not change
        how the other critics are computed.
        """
        if self.chunk is not None:
            return self.chunk
        if device.type != "cuda":
            return max(1, _CPU_WORKSPACE // bytes_each)
        total = torch.cuda.get_device_properties(device).total_memory
        return max(1, min(total // 4, _CUDA_WORKSPACE) // bytes_each)

    @contextmanager
    def products(self) -> Iterator[None]:
        """Large matrix products inside run at this precision; the setting before is put back afterwards."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class CriticReport:
    """Per-critic figures (k,) of one step, on the device.

    Privacy: read from private data and not sanitized; for the private run folder only.
    """

    loss: Tensor
    gap: Tensor  # mean score of real images minus mean score of fake ones
    penalty: Tensor
