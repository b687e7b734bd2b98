"""Convolutions as matrix products over patches, which the weight gradient needs anyway: they are copied only once.

Patches are strided views of images that lie as (examples, rows, columns, channels), so a patch is a few contiguous runs
and copying it is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.configs import Precision
from understudy.engines.dpsgd.products import product, representable

_WIDE_BYTES = 16
_SPARE_ROWS = 8  # behind the last patch, so that Gram matrices can be computed in whole tiles (see ``gram``)
Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """How a two-dimensional convolution walks over an image; ``padding`` is (left, right, top, bottom)."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    padding: tuple[int, int, int, int]
    groups: int

    @classmethod
    def of(cls, layer: nn.Conv2d | nn.ConvTranspose2d) -> Window:
        """The window of a layer; a transposed convolution walks over its output."""
        kernel, stride, dilation = _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.dilation)
        if layer.padding == "same":
            spare = [step * (side - 1) for step, side in zip(dilation, kernel, strict=True)]
            padding = (spare[1] // 2, spare[1] - spare[1] // 2, spare[0] // 2, spare[0] - spare[0] // 2)
        elif layer.padding == "valid":
            padding = (0, 0, 0, 0)
        else:
            assert not isinstance(layer.padding, str)
            down, across = _pair(layer.padding)
            padding = (across, across, down, down)
        return cls(kernel, stride, dilation, padding, layer.groups)

    @property
    def taps(self) -> int:
        """Pixels under the window."""
        return math.prod(self.kernel)

    def places(self, images: Tensor) -> Pair:
        """How often the window fits, down and across."""
        left, right, top, bottom = self.padding
        room = (images.shape[2] + top + bottom, images.shape[3] + left + right)
        sizes = zip(room, self.dilation, self.kernel, self.stride, strict=True)
        down, across = ((side - dilation * (kernel - 1) - 1) // stride + 1 for side, dilation, kernel, stride in sizes)
        return down, across


def _pair(value: tuple[int, ...]) -> Pair:
    return value[0], value[1]


def patches(images: Tensor, window: Window, places: Pair) -> Tensor:
    """Patches (N, groups, places, taps * channels / groups) of images (N, C, H, W), at the first ``places`` places."""
    padded = _padded(images, window.padding)
    count, channels = len(padded), padded.shape[3]
    source = _wide(padded) if window.groups == 1 else padded
    line, pixel = source.stride(1), source.stride(2)
    (down, across), (height, width) = window.stride, window.kernel
    views = source.as_strided(
        (count, *places, height, width, source.shape[3]),
        (source.stride(0), down * line, across * pixel, window.dilation[0] * line, window.dilation[1] * pixel, 1),
    )
    if window.groups > 1:
        views = torch.unflatten(views, -1, (window.groups, channels // window.groups)).permute(0, 5, 1, 2, 3, 4, 6)
    return _copied(views, padded).view(count, window.groups, math.prod(places), -1)


def _copied(views: Tensor, padded: Tensor) -> Tensor:
    """The patches one after the other, with spare rows behind them; as they are where they already lie so."""
    if views.is_contiguous():
        return views.view(padded.dtype)
    row = views.shape[3:].numel() * views.element_size() // padded.element_size()
    rows = views.numel() * views.element_size() // padded.element_size() // row
    room = padded.new_empty((rows + _SPARE_ROWS, row))
    room[:rows].view(views.dtype).view(views.shape).copy_(views)
    return room[:rows]


def coverage(window: Window, places: Pair, images: Tensor) -> Tensor:
    """What the window sees of an image of ones: (places, taps), one inside the image and zero in its padding."""
    ones = images.new_ones((1, 1, *images.shape[2:]))
    return patches(ones, replace(window, groups=1), places)[0, 0]


def _padded(images: Tensor, padding: tuple[int, int, int, int]) -> Tensor:
    """Images as (N, rows, columns, channels) with a border of zeros."""
    source = images.permute(0, 2, 3, 1).contiguous()
    if not any(padding):
        return source
    left, right, top, bottom = padding
    count, rows, columns, channels = source.shape
    padded = source.new_zeros((count, rows + top + bottom, columns + left + right, channels))
    _wide(padded)[:, top : top + rows, left : left + columns].copy_(_wide(source))
    return padded


def _wide(images: Tensor) -> Tensor:
    """The same bytes in units of 16 where whole pixels allow it; on a graphics card that makes the copy fast."""
    fits = images.shape[3] * images.element_size() % _WIDE_BYTES == 0
    return images.view(torch.complex128) if fits and images.is_cuda else images


def is_constant(images: Tensor, window: Window) -> bool:
    """Whether every plane of the images holds one value (an expanded view, as label planes are)."""
    return window.groups == 1 and images.stride()[2:] == (0, 0)


def by_patches(layer: nn.Conv2d) -> bool:
    """Whether ``convolve`` can stand in for the layer: one group, and padding that is the same on both sides."""
    left, right, top, bottom = Window.of(layer).padding
    return layer.groups == 1 and left == right and top == bottom and layer.padding_mode == "zeros"


def on_card(layer: nn.Conv2d) -> bool:
    """Whether a kernel of a graphics card forms the layer's gradients (``convolution_kernel``): then patches are not
    copied, and the layer computes as it is.
    """
    window = Window.of(layer)
    walked = (window.kernel, window.dilation, window.padding) == ((3, 3), (1, 1), (1, 1, 1, 1))
    return walked and layer.groups == 1 and window.stride in ((1, 1), (2, 2)) and layer.weight.is_cuda


def convolve(layer: nn.Conv2d, images: Tensor, precision: Precision) -> tuple[Tensor, Tensor | None]:
    """The layer's output, and the patches that it was computed from (None for constant planes).

    Values that are not finite count as zero; whoever sums gradients must leave such examples out.
    """
    window = Window.of(layer)
    places = window.places(images)
    if is_constant(images, window) and not images.requires_grad:
        return _constant_planes(layer, images), None
    with torch.no_grad():
        right = patches(representable(tame(images), precision), window, places)
    output: Tensor = _Convolution.apply(images, right, layer)
    return output, right


def tame(values: Tensor) -> Tensor:
    """The values with zeros for what is not finite: an example of weight zero must not bring a NaN into a product."""
    return torch.nan_to_num(values, 0.0, 0.0, 0.0)


class _Convolution(torch.autograd.Function):
    """Patches times kernels; backwards to the images only, since weight gradients are taken elsewhere."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, right: Tensor, layer: nn.Conv2d) -> Tensor:
        """(N, out, rows, columns), channels last."""
        ctx.layer, ctx.images = layer, images
        rows = right.flatten(0, 2)
        kernels = _kernels(layer).mT
        output = rows @ kernels if layer.bias is None else torch.addmm(layer.bias, rows, kernels)
        places = Window.of(layer).places(images)
        return output.view(len(images), *places, layer.out_channels).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, None, None]:
        """The gradient at the images."""
        if not ctx.needs_input_grad[0]:
            return None, None, None
        layer, images = ctx.layer, ctx.images
        if (
            slopes[0].shape[2:] == (1, 1)
            and layer.kernel_size == images.shape[2:]
            and not any(Window.of(layer).padding)
        ):
            rows = slopes[0].flatten(1) @ _kernels(layer)
            return rows.view(len(images), *images.shape[2:], -1).permute(0, 3, 1, 2), None, None
        _, right, _, bottom = Window.of(layer).padding
        gradient = torch.ops.aten.convolution_backward(
            slopes[0], images, layer.weight, None, layer.stride, (bottom, right), layer.dilation,
            False, (0, 0), layer.groups, (True, False, False),
        )  # fmt: skip
        return gradient[0], None, None


def _kernels(layer: nn.Conv2d) -> Tensor:
    """(out, taps * in); a view, as kernels lie channels last."""
    return layer.weight.permute(0, 2, 3, 1).reshape(layer.out_channels, -1)


def _constant_planes(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """What a window sees of constant planes depends on the place only through the border: one small table for all."""
    window, (count, planes) = Window.of(layer), images.shape[:2]
    places = window.places(images)
    seen = coverage(window, places, images)
    kernels = layer.weight.permute(2, 3, 1, 0).reshape(1, window.taps, -1)  # (taps, in * out)
    table = (
        product(seen[None], kernels).view(seen.shape[0], planes, -1).transpose(0, 1).flatten(1)
    )  # (in, places * out)
    bias = table.new_zeros(layer.out_channels) if layer.bias is None else layer.bias
    padding = -planes % 8  # matrix products on a graphics card are fast for whole tiles only
    values, table = functional.pad(images[:, :, 0, 0], (0, padding)), functional.pad(table, (0, 0, 0, padding))
    output = torch.addmm(bias.repeat(seen.shape[0]).to(values.dtype), tame(values), table.to(values.dtype))
    return output.view(count, *places, layer.out_channels).permute(0, 3, 1, 2)
