"""From noise to images: the sampler of a diffusion model and its settings. Importing it imports no torch.

T. Karras, M. Aittala, T. Aila, S. Laine, "Elucidating the Design Space of Diffusion-Based Generative Models" (EDM),
NeurIPS 2022, algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from understudy.configs import Config, NonNegative, Positive, without_defaults

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Steps = Annotated[int, Field(ge=2, le=4096)]
UNetWidths = Annotated[
    tuple[Annotated[int, Field(ge=8, le=1024, multiple_of=8)], ...], Field(min_length=1, max_length=4)
]
UNetBlocks = Annotated[int, Field(ge=1, le=8)]
_Lead = Annotated[float, Field(ge=0, le=100)]  # how many times further than the network says


class SamplerConfig(Config):
    """How images are drawn: post-processing, which costs nothing. That of a release is as its config plans it."""

    steps: Steps = 18
    sigma_min: Positive = 0.002  # the least and the most noise
    sigma_max: Positive = 80.0
    rho: Annotated[float, Field(ge=1, le=100)] = 7.0  # more steps at low noise levels
    churn: NonNegative = 0.0  # fresh noise on the way: 0 draws the same image from the same first noise
    churn_from: NonNegative = 0.05  # noise levels at which it is added
    churn_to: NonNegative = 50.0
    churn_noise: Positive = 1.0
    guidance: _Lead = 0.0  # away from what the network says without knowing the class
    autoguidance: _Lead = 0.0  # away from what the network said earlier in its training
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.0  # pixels below this part of white become black at the end

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without autoguidance a sampler looks as it always did, so that older versions can read it."""
        return without_defaults(self, write(self), ("autoguidance",))

    @model_validator(mode="after")
    def _falls(self) -> SamplerConfig:
        if self.sigma_min >= self.sigma_max:
            raise ValueError(f"sigma_min {self.sigma_min:g} is not below sigma_max {self.sigma_max:g}")
        return self

    @property
    def evaluations(self) -> int:
        """How often the network looks at each image."""
        return (2 * self.steps - 1) * (1 + bool(self.guidance) + bool(self.autoguidance))


def noise_levels(sampler: SamplerConfig) -> list[float]:
    """The levels that the sampler walks down, ending at zero (eq. 5)."""
    high, low = sampler.sigma_max ** (1 / sampler.rho), sampler.sigma_min ** (1 / sampler.rho)
    shares = (number / (sampler.steps - 1) for number in range(sampler.steps))
    return [(high + share * (low - high)) ** sampler.rho for share in shares] + [0.0]


def walk(
    images: Tensor, denoise: Callable[[Tensor, float], Tensor], sampler: SamplerConfig, random: torch.Generator | None
) -> Tensor:
    """From noise of level ``sigma_max`` to images by Heun's method; with ``random`` also fresh noise on the way."""
    for level, following in pairwise(noise_levels(sampler)):
        churned = level
        if sampler.churn and random is not None and sampler.churn_from <= level <= sampler.churn_to:
            churned = level * (1 + min(sampler.churn / sampler.steps, math.sqrt(2) - 1))
            fresh = images.new_empty(images.shape).normal_(generator=random)
            images = images + sampler.churn_noise * math.sqrt(churned**2 - level**2) * fresh
        slope = (images - denoise(images, churned)) / churned
        moved = images + (following - churned) * slope
        if following:
            slope = (slope + (moved - denoise(moved, following)) / following) / 2
            moved = images + (following - churned) * slope
        images = moved
    return images
