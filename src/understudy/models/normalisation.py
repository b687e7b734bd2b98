"""Group normalisation, a scale and a shift for each example, and SiLU: one operation, on a graphics card one kernel.

Every example is normalised by its own values alone, so per-example gradients stay what they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5


def normalised(features: Tensor, groups: int, film: Tensor | None = None, *, activate: bool = True) -> Tensor:
    """Features (N, C, H, W) with the groups of channels of each example at mean 0 and variance 1.

    ``film`` (N, 2 C) holds what comes next, a scale (beside one) and a shift for each channel; SiLU is last.
    """
    if features.is_cuda:
        result: Tensor = _Normalised.apply(features, film, groups, activate)
        return result
    values = functional.group_norm(features, groups, eps=EPSILON)
    if film is not None:
        scale, shift = film[:, :, None, None].chunk(2, dim=1)
        values = values * (1 + scale) + shift
    return functional.silu(values) if activate else values


class _Normalised(torch.autograd.Function):
    """The kernels, for features that lie channels last; statistics and sums are in float32."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, film: Tensor | None, groups: int, activate: bool) -> Tensor:
        from understudy.models.normalisation_kernel import normalise

        features = features.contiguous(memory_format=torch.channels_last)
        film = None if film is None else film.contiguous()
        values, statistics = normalise(features, film, groups, EPSILON, activate)
        ctx.save_for_backward(features, film, statistics)
        ctx.options = (groups, activate)
        return values

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        from understudy.models.normalisation_kernel import slopes_back

        features, film, statistics = ctx.saved_tensors
        below = slopes[0].contiguous(memory_format=torch.channels_last)
        back, film_back = slopes_back(below, features, film, statistics, *ctx.options)
        return back, film_back, None, None
