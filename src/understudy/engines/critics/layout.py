"""How the parameters of one critic lie in one flat row, so that K critics are one (K, size) tensor.

A convolution is a matrix (out, 5*5*in + 1 + padding): a row holds the kernel in (row, column, channel) order, then the
bias, then zeros up to a multiple of eight. Patches carry a 1 in the bias column, so one matrix product applies weight
and bias, and one gives both gradients. The head is a matrix (1 + classes, features) with features in (row, column,
channel) order, followed by the head's bias.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from understudy.models.critic import CONVOLUTIONS, KERNEL, STRIDE, CriticConfig

ALIGNMENT = 8  # elements: 16 bytes in bf16, what tensor cores and wide copies ask for
TAPS = KERNEL * KERNEL


@dataclass(frozen=True)
class Convolution:
    """One 5x5 stride-2 convolution: its shapes and its place in the flat row."""

    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    offset: int

    @property
    def patch(self) -> int:
        """Elements of one input patch, which is also the index of the bias column."""
        return TAPS * self.in_channels

    @property
    def row(self) -> int:
        """Stored length of a row: patch, bias and at least one zero."""
        return -(-(self.patch + 2) // ALIGNMENT) * ALIGNMENT

    @property
    def stored(self) -> int:
        """Elements in the flat row."""
        return self.out_channels * self.row

    @property
    def pixels(self) -> int:
        """Output pixels."""
        return self.out_size[0] * self.out_size[1]

    @property
    def padded_in(self) -> tuple[int, int]:
        """Input size with the zero border that the windows reach."""
        height, width = self.out_size
        return STRIDE * (height - 1) + KERNEL, STRIDE * (width - 1) + KERNEL

    @property
    def padded_out(self) -> tuple[int, int]:
        """Output size with the one-pixel border that the transposed convolution reaches."""
        return self.out_size[0] + 2, self.out_size[1] + 2


@dataclass(frozen=True)
class SpectralBlock:
    """A weight matrix inside the flat row that is divided by its spectral norm, and its left vector's place."""

    rows: int
    columns: int
    row: int
    offset: int
    vector: int

    def of(self, flat: Tensor) -> Tensor:
        """This block of stacked flat rows (k, size), as a (k, rows, columns) view."""
        strides = (flat.stride(0), self.row, 1)
        return flat.as_strided((flat.shape[0], self.rows, self.columns), strides, flat.storage_offset() + self.offset)

    def left(self, vectors: Tensor) -> Tensor:
        """This block's left singular vectors (k, rows)."""
        return vectors[:, self.vector : self.vector + self.rows]


class CriticLayout:
    """The places of all parameters of a critic in its flat row."""

    def __init__(self, config: CriticConfig) -> None:
        self.config = config
        convolutions, offset = [], 0
        for layer in range(CONVOLUTIONS):
            in_channels, out_channels = config.channels[layer : layer + 2]
            in_size, out_size = config.sizes[layer : layer + 2]
            convolutions.append(Convolution(in_channels, out_channels, in_size, out_size, offset))
            offset += convolutions[-1].stored
        self.convolutions = tuple(convolutions)
        self.features = config.features
        self.head_offset = offset
        self.head_rows = 1 + (config.classes or 0)
        self.bias_offset = offset + self.head_rows * self.features
        self.size = self.bias_offset + ALIGNMENT

    @cached_property
    def blocks(self) -> tuple[SpectralBlock, ...]:
        """The spectrally normalised matrices: convolutions, head, projection."""
        blocks, vector = [], 0
        for convolution in self.convolutions:
            shape = (convolution.out_channels, convolution.patch, convolution.row)
            blocks.append(SpectralBlock(*shape, convolution.offset, vector))
            vector += convolution.out_channels
        blocks.append(SpectralBlock(1, self.features, self.features, self.head_offset, vector))
        if self.head_rows > 1:
            offset = self.head_offset + self.features
            blocks.append(SpectralBlock(self.head_rows - 1, self.features, self.features, offset, vector + 1))
        return tuple(blocks)

    @property
    def vectors(self) -> int:
        """Length of all left singular vectors of one critic."""
        return self.blocks[-1].vector + self.blocks[-1].rows

    def kernel(self, flat: Tensor, layer: int) -> Tensor:
        """The stored matrices (k, out, row) of a convolution, bias and padding included, as a view."""
        convolution = self.convolutions[layer]
        end = convolution.offset + convolution.stored
        return torch.unflatten(flat[:, convolution.offset : end], 1, (convolution.out_channels, convolution.row))

    def convolution_bias(self, flat: Tensor, layer: int) -> Tensor:
        """The biases (k, out) of a convolution, as a view."""
        return self.kernel(flat, layer)[:, :, self.convolutions[layer].patch]

    def head(self, flat: Tensor) -> Tensor:
        """The head's matrix (k, 1 + classes, features), as a view."""
        return torch.unflatten(flat[:, self.head_offset : self.bias_offset], 1, (self.head_rows, self.features))

    def head_bias(self, flat: Tensor) -> Tensor:
        """The head's bias (k,), as a view."""
        return flat[:, self.bias_offset]

    def initial(self, critics: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Fresh parameters (critics, size): uniform within 1/sqrt(fan in), zero in the padding."""
        flat = torch.zeros(critics, self.size, device=device)
        for block in self.blocks:
            bound = block.columns**-0.5
            columns = block.columns + (1 if block.row > block.columns else 0)  # a convolution's bias comes along
            replace(block, columns=columns).of(flat).uniform_(-bound, bound, generator=generator)
        bound = self.features**-0.5
        self.head_bias(flat).uniform_(-bound, bound, generator=generator)
        return flat
