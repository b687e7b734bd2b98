"""Patches of images as strided views: what turns a convolution and its weight gradient into matrix products.

Images lie as (examples, rows, columns, channels), so a patch is a few contiguous runs and copying it is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

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
