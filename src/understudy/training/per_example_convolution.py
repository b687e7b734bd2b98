"""Convolutions as matrix products over patches, which the weight gradient needs anyway: they are copied only once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.training.per_example_patches import Window, coverage, patches
from understudy.training.per_example_products import Precision, product, representable


def is_constant(images: Tensor, window: Window) -> bool:
    """Whether every plane of the images holds one value (an expanded view, as label planes are)."""
    return window.groups == 1 and images.stride()[2:] == (0, 0)


def by_patches(layer: nn.Conv2d) -> bool:
    """Whether ``convolve`` can stand in for the layer: one group, and padding that is the same on both sides."""
    left, right, top, bottom = Window.of(layer).padding
    return layer.groups == 1 and left == right and top == bottom and layer.padding_mode == "zeros"


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
