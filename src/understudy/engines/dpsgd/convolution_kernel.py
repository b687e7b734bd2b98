"""The gradients of 3x3 kernels, one for each unit, as Triton kernels that copy no patches.

Images and the gradients at the outputs are laid out on one grid with a row and a column of zeros after every image. On
it each of the nine pixels under a window lies at a fixed distance from its middle, and what lies outside an image is a
zero. So the gradient of a unit is a plain product over the places of all its rows: of the output's gradient with nine
shifted views of the same memory. Importing this needs Triton, which torch's builds for CUDA bring along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from understudy.configs import Precision

_PLACES = 64  # that a program looks at together
_FILL = 1000  # fewer programs leave multiprocessors idle, so the rows of a unit are dealt out to several
_LAID, _LAYING = 2048, 4  # values of a grid that a program lays out together, and its warps
_COLUMNS, _DEEP = 256, 16  # of formed gradients, and how many gradients, that a program looks at together


@dataclass(frozen=True)
class UnitGradients:
    """Gradients in float32 of kernels (units, out, 3, 3, in), and sums that show what is broken."""

    weight: Tensor
    witness: Tensor  # (units,), not finite as soon as one value of the input is not


def unit_gradients(images: Tensor, slopes: Tensor, rows: int, stride: int, precision: Precision) -> UnitGradients:
    """The gradients of a layer with padding 1 on all sides, from its input and the gradients at its output.

    ``images`` (units * rows, in, H, W) and ``slopes`` (units * rows, out, H', W') lie channels last.

    Privacy: nothing of one unit reaches the gradient of another: between the images lie zeros, and what is not finite
    in an image is laid out as zero, so that a neighbour's zero times it stays zero.
    """
    units, (inputs, outputs) = len(images) // rows, (images.shape[1], slopes.shape[1])
    height, width = images.shape[2:]
    right, seen = _laid_out(images, 1, height, width, clean=True)
    left, _ = _laid_out(slopes, stride, height, width, clean=False)
    tile_out, tile_in = (
        max(16, min(most, triton.next_power_of_2(size))) for most, size in ((64, outputs), (128, 9 * inputs))
    )
    tiles, parts = triton.cdiv(outputs, tile_out) * triton.cdiv(9 * inputs, tile_in), 1
    while units * tiles * parts < _FILL and rows % (2 * parts) == 0:
        parts *= 2
    weights = images.new_empty((parts, units, outputs, 9, inputs), dtype=torch.float32)
    kernel: Any = _products
    kernel[(tiles, units, parts)](
        right, left, weights, units, length=rows // parts * (height + 1) * (width + 1), line=width + 1, inputs=inputs,
        outputs=outputs, places=_PLACES, tile_out=tile_out, tile_in=tile_in,
        numbers="tf32" if precision == "tf32" else "ieee", num_warps=4, num_stages=3,
    )  # fmt: skip
    weight = weights[0] if parts == 1 else weights.sum(dim=0)
    return UnitGradients(weight, seen.view(units, -1).sum(dim=1))


def add_weighted(target: Tensor, formed: Tensor, weights: Tensor) -> None:
    """Add ``sum_i weights_i formed_i`` to a flat target; weight zero takes a row out, whatever it holds."""
    count, columns = formed.shape
    tiles = triton.cdiv(columns, _COLUMNS)
    parts = max(1, min(count // _DEEP, triton.cdiv(_FILL, tiles)))
    partial = torch.empty((parts, columns), dtype=torch.float32, device=formed.device)
    kernel: Any = _add_weighted
    kernel[(tiles, parts)](
        partial, formed, weights.float(), count=count, columns=columns, share=triton.cdiv(count, parts), wide=_COLUMNS,
        deep=_DEEP, num_warps=4,
    )  # fmt: skip
    target += partial.sum(dim=0)


def squares(formed: Tensor) -> Tensor:
    """The squared norms (N,) of rows (N, values) of float32, in float64."""
    count, columns = formed.shape
    parts = max(1, min(triton.cdiv(columns, 4096), triton.cdiv(4 * _FILL, count)))
    partial = torch.empty((count, parts), dtype=torch.float64, device=formed.device)
    kernel: Any = _squares
    share = triton.cdiv(columns, parts)
    kernel[(count, parts)](formed, partial, columns=columns, share=share, wide=1024, num_warps=4)
    return partial.sum(dim=1)


def _laid_out(images: Tensor, stride: int, height: int, width: int, *, clean: bool) -> tuple[Tensor, Tensor]:
    """Images on the grid (N, height + 1, width + 1, C), ``stride`` places apart, and their sums (N,) in float32.

    Room for a line before the first and after the last image is left, and holds zeros.
    """
    count, channels, down, across = images.shape
    line = (width + 1) * channels
    room = torch.empty(count * (height + 1) * line + 2 * (line + channels), dtype=images.dtype, device=images.device)
    room[: line + channels].zero_()
    room[-(line + channels) :].zero_()
    sums = torch.empty(count, dtype=torch.float32, device=images.device)
    kernel: Any = _lay_out
    kernel[(count,)](
        images, room[line + channels :], sums, down=down, across=across, stride=stride, height=height, width=width,
        channels=channels, clean=clean, tile=_LAID, num_warps=_LAYING,
    )  # fmt: skip
    return room, sums


@triton.jit
def _lay_out(
    images, grid, sums,
    down: tl.constexpr, across: tl.constexpr, stride: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    channels: tl.constexpr, clean: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((tile,), tl.float32)
    values_in_grid: tl.constexpr = (height + 1) * (width + 1) * channels
    source, target = images + row * down * across * channels, grid + row * values_in_grid
    for start in range(0, values_in_grid, tile):
        number = start + tl.arange(0, tile)
        place, channel = number // channels, number % channels
        y, x = place // (width + 1), place % (width + 1)
        here = (y % stride == 0) & (x % stride == 0) & (y < height) & (x < width) & (number < values_in_grid)
        at = ((y // stride) * across + x // stride) * channels + channel
        values = tl.load(source + at, mask=here, other=0.0)
        total += values.to(tl.float32)
        if clean:
            values = tl.where(tl.abs(values.to(tl.float32)) < float("inf"), values, 0.0)
        tl.store(target + number, values, mask=number < values_in_grid)
    tl.store(sums + row, tl.sum(total, axis=0))


@triton.jit
def _products(
    right, left, weights, units,
    length: tl.constexpr, line: tl.constexpr, inputs: tl.constexpr, outputs: tl.constexpr,
    places: tl.constexpr, tile_out: tl.constexpr, tile_in: tl.constexpr, numbers: tl.constexpr,
):  # fmt: skip
    tile, unit, part = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    tiles_in: tl.constexpr = (9 * inputs + tile_in - 1) // tile_in
    o = (tile // tiles_in) * tile_out + tl.arange(0, tile_out)
    n = (tile % tiles_in) * tile_in + tl.arange(0, tile_in)
    tap, place = n // inputs, tl.arange(0, places)
    shift = ((tap // 3 - 1) * line + tap % 3 - 1) * inputs + n % inputs
    first = (unit * tl.num_programs(2) + part) * length
    sources = right + (line + 1) * inputs + first * inputs + place[:, None] * inputs + shift[None, :]
    slopes = left + (line + 1) * outputs + first * outputs + place[:, None] * outputs + o[None, :]
    known_in, known_out = (n < 9 * inputs)[None, :], (o < outputs)[None, :]
    total = tl.zeros((tile_in, tile_out), tl.float32)
    for start in range(0, length, places):
        inside = (start + place < length)[:, None]
        slope = tl.load(slopes, mask=inside & known_out, other=0.0)
        seen = tl.load(sources, mask=inside & known_in, other=0.0)
        total = tl.dot(tl.trans(seen), slope, total, input_precision=numbers)
        slopes += places * outputs
        sources += places * inputs
    target = weights + ((part * units + unit) * outputs + o[None, :]) * 9 * inputs + n[:, None]
    tl.store(target, total, mask=(o < outputs)[None, :] & (n < 9 * inputs)[:, None])


@triton.jit
def _add_weighted(
    parts, formed, weights,
    count: tl.constexpr, columns: tl.constexpr, share: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * wide + tl.arange(0, wide)
    number, inside = tl.arange(0, deep), column < columns
    total = tl.zeros((wide,), tl.float32)
    for start in range(0, share, deep):
        row = part * share + start + number
        weight = tl.load(weights + row, mask=(row < count) & (start + number < share), other=0.0)
        seen = (weight > 0)[:, None] & inside[None, :]
        values = tl.load(formed + row[:, None] * columns + column[None, :], mask=seen, other=0.0)
        total += tl.sum(weight[:, None] * values, axis=0)
    tl.store(parts + part * columns + column, total, mask=inside)


@triton.jit
def _squares(formed, parts, columns: tl.constexpr, share: tl.constexpr, wide: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.zeros((wide,), tl.float64)
    for start in range(0, share, wide):
        number = start + tl.arange(0, wide)
        column = part * share + number
        values = tl.load(formed + row * columns + column, mask=(number < share) & (column < columns), other=0.0)
        values = values.to(tl.float64)
        total += values * values
    tl.store(parts + row * tl.num_programs(1) + part, tl.sum(total, axis=0))
