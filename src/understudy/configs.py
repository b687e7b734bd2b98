"""What all configs share: frozen, typed, without unknown keys; numbers with bounds; the three groups of a method."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
SMALL_IMAGE = 16 * 16
Positive = Annotated[float, Field(gt=0, le=1e9)]  # far beyond any use, far within float32
Count = Annotated[int, Field(ge=1)]
Precision = Literal["fp32", "tf32", "bf16"]


class PrivacyConfig(BaseModel):
    """What changes epsilon. ``noise_multiplier`` is calibrated to the budget unless it is given."""

    model_config = _FROZEN
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None


class RuntimeConfig(BaseModel):
    """What cannot change epsilon: where and how the same computation runs."""

    model_config = _FROZEN
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    precision: Precision = "tf32"
    micro_batch: Annotated[int, Field(ge=1)] = 2000
    checkpoint_seconds: Annotated[float, Field(gt=0)] = 30.0


class MethodConfig(BaseModel):
    """Base of every method's config; a method narrows the three groups."""

    model_config = _FROZEN
    privacy: PrivacyConfig = PrivacyConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def with_noise(self, noise_multiplier: float) -> MethodConfig:
        """The same config with its noise multiplier decided."""
        privacy = self.privacy.model_copy(update={"noise_multiplier": noise_multiplier})
        return self.model_copy(update={"privacy": privacy})
