"""The Triton kernels of ``normalisation``: one program for each example, whose channels lie beside each other.

Importing this needs Triton, which torch's builds for CUDA bring along.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE, _PER_THREAD = 2048, 16  # values that a program looks at together, and of these each of its threads


def normalise(
    features: Tensor, film: Tensor | None, groups: int, epsilon: float, activate: bool
) -> tuple[Tensor, Tensor]:
    """The normalised features, and mean and inverse deviation (N, 2, groups) of each group."""
    statistics = torch.empty((len(features), 2, groups), dtype=torch.float32, device=features.device)
    values = torch.empty_like(features)
    kernel: Any = _normalise
    pointers = (features, features if film is None else film, values, statistics)
    kernel[(len(features),)](*pointers, epsilon, **_options(features, film, groups, activate))
    return values, statistics


def slopes_back(
    slopes: Tensor, features: Tensor, film: Tensor | None, statistics: Tensor, groups: int, activate: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients at the features and at ``film``, from those at the result."""
    back, film_back = torch.empty_like(features), None if film is None else torch.empty_like(film)
    kernel: Any = _slopes_back
    pointers = (slopes, features, features if film is None else film, statistics, back)
    kernel[(len(features),)](
        *pointers, back if film_back is None else film_back, **_options(features, film, groups, activate)
    )
    return back, film_back


def _options(features: Tensor, film: Tensor | None, groups: int, activate: bool) -> dict[str, Any]:
    channels = features.shape[1]
    wide, places = triton.next_power_of_2(channels), features.shape[2] * features.shape[3]
    tile = max(16, min(_TILE // wide, triton.next_power_of_2(places)))
    return {
        "places": places,
        "channels": channels,
        "groups": groups,
        "room": triton.next_power_of_2(groups),
        "scaled": film is not None,
        "activate": activate,
        "wide": wide,
        "tile": tile,
        "num_warps": max(1, min(32, tile * wide // (32 * _PER_THREAD))),
    }


@triton.jit
def _members(channels: tl.constexpr, groups: tl.constexpr, room: tl.constexpr, wide: tl.constexpr):
    """Which channel (rows) belongs to which group (columns), as ones and zeros."""
    channel, group = tl.arange(0, wide), tl.arange(0, room)
    return ((channel[:, None] // (channels // groups) == group[None, :]) & (channel[:, None] < channels)).to(tl.float32)


@triton.jit
def _scale_and_shift(film, row, channel, channels: tl.constexpr, scaled: tl.constexpr, wide: tl.constexpr):
    if scaled:
        start = film + row * 2 * channels + channel
        scale = 1.0 + tl.load(start, mask=channel < channels, other=0.0).to(tl.float32)
        return scale, tl.load(start + channels, mask=channel < channels, other=0.0).to(tl.float32)
    else:
        return tl.full((wide,), 1.0, tl.float32), tl.zeros((wide,), tl.float32)


@triton.jit
def _normalise(
    features, film, out, statistics, epsilon,
    places: tl.constexpr, channels: tl.constexpr, groups: tl.constexpr, room: tl.constexpr,
    scaled: tl.constexpr, activate: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel, place = tl.arange(0, wide), tl.arange(0, tile)
    member = _members(channels, groups, room, wide)
    total, square = tl.zeros((tile, wide), tl.float32), tl.zeros((tile, wide), tl.float32)
    features, out = features + row * places * channels, out + row * places * channels
    at = place[:, None] * channels + channel[None, :]
    inside = channel[None, :] < channels
    for start in range(0, places, tile):
        seen = ((start + place) < places)[:, None] & inside
        values = tl.load(features + at + start * channels, mask=seen, other=0.0).to(tl.float32)
        total += values
        square += values * values
    size: tl.constexpr = places * (channels // groups)
    mean = tl.sum(tl.sum(total, axis=0)[:, None] * member, axis=0) / size
    variance = tl.maximum(tl.sum(tl.sum(square, axis=0)[:, None] * member, axis=0) / size - mean * mean, 0.0)
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    group = tl.arange(0, room)
    tl.store(statistics + row * 2 * groups + group, mean, mask=group < groups)
    tl.store(statistics + row * 2 * groups + groups + group, inverse, mask=group < groups)
    scale, shift = _scale_and_shift(film, row, channel, channels, scaled, wide)
    inverse_of = tl.sum(inverse[None, :] * member, axis=1) * scale
    shift_of = shift - tl.sum(mean[None, :] * member, axis=1) * inverse_of
    for start in range(0, places, tile):
        seen = ((start + place) < places)[:, None] & inside
        values = tl.load(features + at + start * channels, mask=seen, other=0.0).to(tl.float32)
        values = values * inverse_of[None, :] + shift_of[None, :]
        if activate:
            values = values / (1.0 + tl.exp(-values))
        tl.store(out + at + start * channels, values.to(out.dtype.element_ty), mask=seen)


@triton.jit
def _before_activation(slopes, normal, scale, shift, activate: tl.constexpr):
    if activate:
        values = normal * scale[None, :] + shift[None, :]
        gate = 1.0 / (1.0 + tl.exp(-values))
        return slopes * gate * (1.0 + values * (1.0 - gate))
    else:
        return slopes


@triton.jit
def _slopes_back(
    slopes, features, film, statistics, back, film_back,
    places: tl.constexpr, channels: tl.constexpr, groups: tl.constexpr, room: tl.constexpr,
    scaled: tl.constexpr, activate: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel, place, group = tl.arange(0, wide), tl.arange(0, tile), tl.arange(0, room)
    member = _members(channels, groups, room, wide)
    mean = tl.load(statistics + row * 2 * groups + group, mask=group < groups, other=0.0)
    inverse = tl.load(statistics + row * 2 * groups + groups + group, mask=group < groups, other=0.0)
    mean_of, inverse_of = tl.sum(mean[None, :] * member, axis=1), tl.sum(inverse[None, :] * member, axis=1)
    scale, shift = _scale_and_shift(film, row, channel, channels, scaled, wide)
    start_of_row = row * places * channels
    slopes, features, back = slopes + start_of_row, features + start_of_row, back + start_of_row
    at = place[:, None] * channels + channel[None, :]
    inside = channel[None, :] < channels
    totals, products = tl.zeros((tile, wide), tl.float32), tl.zeros((tile, wide), tl.float32)
    for start in range(0, places, tile):
        seen = ((start + place) < places)[:, None] & inside
        normal = tl.load(features + at + start * channels, mask=seen, other=0.0).to(tl.float32)
        normal = (normal - mean_of[None, :]) * inverse_of[None, :]
        slope = tl.load(slopes + at + start * channels, mask=seen, other=0.0).to(tl.float32)
        slope = _before_activation(slope, normal, scale, shift, activate)
        totals += slope
        products += slope * normal
    total, product = tl.sum(totals, axis=0), tl.sum(products, axis=0)
    if scaled:
        target = film_back + row * 2 * channels + channel
        tl.store(target, product.to(film_back.dtype.element_ty), mask=channel < channels)
        tl.store(target + channels, total.to(film_back.dtype.element_ty), mask=channel < channels)
    size: tl.constexpr = places * (channels // groups)
    total_of = tl.sum((tl.sum((total * scale)[:, None] * member, axis=0) / size)[None, :] * member, axis=1)
    product_of = tl.sum((tl.sum((product * scale)[:, None] * member, axis=0) / size)[None, :] * member, axis=1)
    for start in range(0, places, tile):
        seen = ((start + place) < places)[:, None] & inside
        normal = tl.load(features + at + start * channels, mask=seen, other=0.0).to(tl.float32)
        normal = (normal - mean_of[None, :]) * inverse_of[None, :]
        slope = tl.load(slopes + at + start * channels, mask=seen, other=0.0).to(tl.float32)
        slope = _before_activation(slope, normal, scale, shift, activate) * scale[None, :]
        slope = (slope - total_of[None, :] - normal * product_of[None, :]) * inverse_of[None, :]
        tl.store(back + at + start * channels, slope.to(back.dtype.element_ty), mask=seen)
