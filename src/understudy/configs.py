"""What all configs share: frozen, typed, without unknown keys; numbers with bounds; the three groups of a method."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from understudy.errors import InputError

SMALL_IMAGE = 16 * 16  # pixels; up to here smaller networks and fewer steps are decided
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=1, le=4096)]  # latent values or channels of a network
Classes = Annotated[int, Field(ge=1, le=10_000)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, le=1e9)]  # far beyond any use, far within float32
NonNegative = Annotated[float, Field(ge=0)]
Lengths = Annotated[tuple[Positive, ...], Field(max_length=100)]  # of a kernel; a few, so that nothing hides in them
Share = Annotated[float, Field(ge=0, lt=1)]  # 0: none
Fraction = Annotated[float, Field(gt=0, lt=1)]  # some, but not all
Precision = Literal["fp32", "tf32", "bf16"]
Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """Plain data that users or files bring: frozen, without unknown keys, infinities or NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Config(Strict):
    """What a user sets."""


def validated(kind: type[Model], raw: object, what: str, way_out: str, *, exact: bool = False) -> Model:
    """Plain data as a model; the first mistake is one sentence.

    ``exact``: every value must have its type in JSON already, so that "0.5" is no number and true is not 1.
    """
    try:
        return exactly(kind, raw) if exact else kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise InputError(f"{what}: {where}: {first['msg']}; {way_out}") from None


def exactly(kind: type[Model], raw: object) -> Model:
    """Decoded JSON as a model without any conversion of types; a whole number for a real one is none."""
    return kind.model_validate_json(json.dumps(raw), strict=True)


def without_defaults(model: BaseModel, written: dict[str, Any], young: Sequence[str]) -> dict[str, Any]:
    """What a model writes, without those of its ``young`` fields that have their default.

    For fields that came later: whoever does not use them writes what earlier versions wrote, and can read.
    """
    fields = type(model).model_fields
    left_out = {name for name in young if getattr(model, name) == fields[name].default}
    return {name: value for name, value in written.items() if name not in left_out}


class PrivacyConfig(Config):
    """What changes epsilon. ``noise_multiplier`` is calibrated to the budget unless it is given."""

    noise_multiplier: Annotated[float, Field(gt=0)] | None = None


class RuntimeConfig(Config):
    """What cannot change epsilon: where and how the same computation runs."""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")] = "auto"
    precision: Precision = "tf32"
    micro_batch: Count = 2000
    checkpoint_seconds: Annotated[float, Field(gt=0)] = 30.0


class MethodConfig(Config):
    """Base of every method's config; a method narrows the three groups."""

    privacy: PrivacyConfig = PrivacyConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def with_noise(self, noise_multiplier: float) -> Self:
        """The same config with its noise multiplier decided."""
        privacy = self.privacy.model_copy(update={"noise_multiplier": noise_multiplier})
        return self.model_copy(update={"privacy": privacy})
