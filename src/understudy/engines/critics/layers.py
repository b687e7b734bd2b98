"""Layers of stacked critics: convolutions as products over patches, and spectral normalisation.

Patches are strided copies of stacked images: they turn a convolution, either way, into batched matrix products. Images
lie as (critics, images, rows, columns, channels). A window's column-and-channel part is then one contiguous run, and it
is copied in units of 16 bytes (bit patterns read as ``complex128``), which is what makes the copy fast. Spectral
normalisation is power iteration, normalised weights, and the way back for gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.engines.critics.layout import TAPS, Convolution, CriticLayout
from understudy.models.critic import CONVOLUTIONS, KERNEL, NORMALISE_EPS, PADDING, STRIDE

WIDE_BYTES = 16
PARITIES = ((0, 0), (0, 1), (1, 0), (1, 1))


def interior(padded: Tensor, border: int, size: tuple[int, int]) -> Tensor:
    """The part of padded images (critics, images, rows, columns, channels) inside the border."""
    return padded[:, :, border : border + size[0], border : border + size[1]]


def _wide(tensor: Tensor, channels: int) -> Tensor:
    """The same bytes in units of 16, where whole channels allow it."""
    return tensor.view(torch.complex128) if channels * tensor.element_size() % WIDE_BYTES == 0 else tensor


def copy_images(source: Tensor, destination: Tensor) -> None:
    """Copies (critics, images, rows, columns, channels) between differently padded buffers of one type."""
    channels = source.shape[-1]
    _wide(destination, channels).copy_(_wide(source, channels))


def write_patches(padded: Tensor, columns: Tensor, convolution: Convolution) -> None:
    """Writes the 5x5 stride-2 patches of padded images into ``columns`` (critics, images, rows, columns, row)."""
    height, width = convolution.out_size
    source, target = _wide(padded, convolution.in_channels), _wide(columns, convolution.in_channels)
    channels = source.shape[-1]
    outer, line = source.stride()[:2], source.stride(2)
    windows = source.as_strided(
        (*source.shape[:2], height, width, KERNEL, KERNEL * channels),
        (*outer, STRIDE * line, STRIDE * channels, line, 1),
        source.storage_offset(),
    )
    torch.unflatten(target[..., : TAPS * channels], -1, (KERNEL, KERNEL * channels)).copy_(windows)


def parity_shape(convolution: Convolution, parity: tuple[int, int]) -> tuple[int, int, int]:
    """Rows and columns of input pixels of one parity, and the number of kernel taps that reach them."""
    (height, width), (down, across) = convolution.in_size, parity
    taps = (3 - down) * (3 - across)
    return (height + 1 - down) // STRIDE, (width + 1 - across) // STRIDE, taps


def parity_patches(padded: Tensor, scratch: Tensor, convolution: Convolution, parity: tuple[int, int]) -> Tensor:
    """Patches (critics, pixels, taps * out) of output slopes that reach the input pixels of one parity.

    Input row ``2i + p`` is reached from output rows ``i + 1 - a`` through kernel rows ``p + 2a``; with a one-pixel
    border these are consecutive rows, so a transposed convolution is four ordinary gathers, one per parity of row and
    column.
    """
    down, across = parity
    height, width, taps = parity_shape(convolution, parity)
    critics, images = padded.shape[:2]
    columns = scratch[: critics * images * height * width * taps * convolution.out_channels]
    source, target = _wide(padded, convolution.out_channels), _wide(columns, convolution.out_channels)
    channels, line = source.shape[-1], source.stride(2)
    shape = (critics, images, height, width, 3 - down, (3 - across) * channels)
    offset = source.storage_offset() + down * line + across * channels
    target.view(shape).copy_(source.as_strided(shape, (*source.stride()[:2], line, channels, line, 1), offset))
    return columns.view(critics, images * height * width, taps * convolution.out_channels)


def parity_taps(device: torch.device) -> tuple[Tensor, ...]:
    """For each parity, the kernel taps (of 25) in the order in which ``parity_patches`` meets them."""
    grid = torch.arange(TAPS, device=device).view(KERNEL, KERNEL).flip(0, 1)
    return tuple(grid[down::2, across::2].flatten() for down, across in PARITIES)


def parity_kernel(kernels: Tensor, convolution: Convolution, taps: Tensor) -> Tensor:
    """The matrices (critics, taps * out, in) that go with ``parity_patches``, from stored ones (critics, out, row)."""
    weights = torch.unflatten(kernels[:, :, : convolution.patch], 2, (TAPS, convolution.in_channels)).transpose(1, 2)
    return weights.index_select(1, taps).flatten(1, 2)


def fold_table(convolution: Convolution, device: torch.device) -> Tensor:
    """Which patch elements add up to each input element: (9, rows * columns * channels) places in (pixels, row).

    Nine is the most taps that reach one pixel; unused places point at a column that the stored kernels keep at zero.
    """
    (height, width), (out_height, out_width) = convolution.in_size, convolution.out_size
    rows, columns = torch.arange(height).view(1, 1, -1, 1), torch.arange(width).view(1, 1, 1, -1)
    down, across = torch.arange(3).view(3, 1, 1, 1), torch.arange(3).view(1, 3, 1, 1)
    kernel_row, kernel_column = rows % STRIDE + STRIDE * down, columns % STRIDE + STRIDE * across
    out_row, out_column = (rows + PADDING - kernel_row) // STRIDE, (columns + PADDING - kernel_column) // STRIDE
    valid = (kernel_row < KERNEL) & (out_row >= 0) & (out_row < out_height)
    valid = valid & (kernel_column < KERNEL) & (out_column >= 0) & (out_column < out_width)
    tap = (kernel_row * KERNEL + kernel_column) * convolution.in_channels
    place = (out_row * out_width + out_column) * convolution.row + tap
    place = place.unsqueeze(-1) + torch.arange(convolution.in_channels)
    always_zero = convolution.row - 1
    return torch.where(valid.unsqueeze(-1), place, always_zero).flatten(2).flatten(0, 1).to(device)


@dataclass(frozen=True)
class SpectralState:
    """Singular vectors and inverse singular values of every normalised matrix of k critics, for one pass."""

    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]
    inverse: tuple[Tensor, ...]


def estimate(layout: CriticLayout, flat: Tensor, vectors: Tensor, *, training: bool) -> SpectralState:
    """Spectral norms of stacked parameters; in training after one power iteration, else with the vectors as they are.

    Returns the new vectors and leaves ``vectors`` alone: who owns them decides whether they are kept.
    """
    lefts, rights, inverses = [], [], []
    for block in layout.blocks:
        matrix, left = block.of(flat), block.left(vectors)
        image = torch.bmm(left.unsqueeze(1), matrix).squeeze(1)
        right = F.normalize(image, dim=1, eps=NORMALISE_EPS)
        norm = image.norm(dim=1)
        if training:
            image = torch.bmm(matrix, right.unsqueeze(2)).squeeze(2)
            left, norm = F.normalize(image, dim=1, eps=NORMALISE_EPS), image.norm(dim=1)
        lefts.append(left)
        rights.append(right)
        inverses.append(norm.clamp_min(NORMALISE_EPS).reciprocal())
    return SpectralState(tuple(lefts), tuple(rights), tuple(inverses))


def write_normalised(layout: CriticLayout, flat: Tensor, spectral: SpectralState, weights: Tensor) -> None:
    """Writes parameters over their spectral norms, and biases as they are, in the type of ``weights``."""
    for block, inverse in zip(layout.blocks, spectral.inverse, strict=True):
        torch.mul(block.of(flat), inverse.view(-1, 1, 1), out=block.of(weights))
    for layer in range(CONVOLUTIONS):
        layout.convolution_bias(weights, layer).copy_(layout.convolution_bias(flat, layer))
    layout.head_bias(weights).copy_(layout.head_bias(flat))


def write_parameter_gradients(
    layout: CriticLayout, spectral: SpectralState, inner: tuple[Tensor, ...], gradients: Tensor, out: Tensor
) -> None:
    """Turns gradients of normalised weights into gradients of parameters, in fp32.

    With W^ = W / s and s = u'Wv, the gradient of W is (G - <G, W^> u v') / s; ``inner`` holds <G, W^> of every block.
    """
    for position, block in enumerate(layout.blocks):
        inverse = spectral.inverse[position]
        target = block.of(out)
        torch.mul(block.of(gradients), inverse.view(-1, 1, 1), out=target)
        scaled = spectral.left[position] * (-inner[position] * inverse).unsqueeze(1)
        target.baddbmm_(scaled.unsqueeze(2), spectral.right[position].unsqueeze(1))
    for layer in range(CONVOLUTIONS):
        layout.convolution_bias(out, layer).copy_(layout.convolution_bias(gradients, layer))


def inner_products(layout: CriticLayout, weights: Tensor, gradients: Tensor, total: Tensor) -> tuple[Tensor, ...]:
    """<G, W^> of every block, from the last to the first, without reading the large matrices.

    A masked layer is linear, so slopes times activations after a layer (``total`` (k,) after the last one) equal slopes
    times activations before it, which is <G, W^> of that layer, plus bias times bias gradient. Only the head and the
    projection, which share their features, are multiplied out.
    """
    inner = []
    for block in layout.blocks[CONVOLUTIONS:]:
        inner.append((block.of(weights).float() * block.of(gradients)).sum((1, 2)))
    convolutions = []
    for layer in reversed(range(CONVOLUTIONS)):
        bias, slope = layout.convolution_bias(weights, layer), layout.convolution_bias(gradients, layer)
        total = total - (bias.float() * slope).sum(1)
        convolutions.append(total)
    return (*reversed(convolutions), *inner)
