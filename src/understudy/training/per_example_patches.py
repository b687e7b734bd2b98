"""Patches of images as strided views: what turns the weight gradient of a convolution into matrix products.

Images lie as (examples, rows, columns, channels), so a patch is a few contiguous runs and copying it is fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

_WIDE_BYTES = 16
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


def _pair(value: tuple[int, ...]) -> Pair:
    return value[0], value[1]


def patches(images: Tensor, window: Window, places: Pair) -> Tensor:
    """Patches (N, groups, places, taps * channels / groups) of images (N, C, H, W), at the first ``places`` places."""
    padded = nn.functional.pad(images.permute(0, 2, 3, 1), (0, 0, *window.padding)).contiguous()
    count, channels = len(padded), padded.shape[3]
    grouped = window.groups > 1
    source = padded if grouped else _wide(padded)
    line, pixel = source.stride(1), source.stride(2)
    (down, across), (height, width) = window.stride, window.kernel
    views = source.as_strided(
        (count, *places, height, width, source.shape[3]),
        (source.stride(0), down * line, across * pixel, window.dilation[0] * line, window.dilation[1] * pixel, 1),
    )
    if grouped:
        views = torch.unflatten(views, -1, (window.groups, channels // window.groups)).permute(0, 5, 1, 2, 3, 4, 6)
    copied = views.reshape(count, window.groups, math.prod(places), -1)
    return copied.view(padded.dtype) if copied.dtype != padded.dtype else copied


def coverage(window: Window, places: Pair, images: Tensor) -> Tensor:
    """What the window sees of an image of ones: (places, taps), one inside the image and zero in its padding."""
    ones = images.new_ones((1, 1, *images.shape[2:]))
    return patches(ones, replace(window, groups=1), places)[0, 0]


def _wide(images: Tensor) -> Tensor:
    """The same bytes in units of 16 where whole pixels allow it; on a graphics card that makes the copy fast."""
    fits = images.shape[3] * images.element_size() % _WIDE_BYTES == 0
    return images.view(torch.complex128) if fits and images.is_cuda else images
