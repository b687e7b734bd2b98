"""The networks of DPGAN, without normalisation: a discriminator of stride-2 convolutions, and its mirror image.

For 28x28 grey images of ten classes the discriminator is the published network of 1.72M parameters: 4x4 convolutions of
the image and of the label planes side by side (64 channels each), 128 -> 256 (4x4), 256 -> 512 (3x3), 512 -> 1 (4x4).
Other sizes halve as often as it takes to come down to a 4x4 map. Every example is treated for itself, for clipping. The
generator takes transposed convolutions the other way. With 128 latent values it is the published network of 2.27M
parameters: latent values and label each become a 4x4 map of 256 channels, then 512 -> 256 (3x3), 256 -> 128 (4x4),
128 -> 1 (4x4).
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from understudy.configs import Config, Count
from understudy.models.generator import Generator, GeneratorConfig, ImageShape

SLOPE = 0.2  # of the leaky rectifier
_SMALLEST = 4  # height and width below which a map is not halved any more
_FEWEST_LAYERS = 2
_MOST_DOUBLINGS = 3  # of the width, from the first half layer on

Size = tuple[int, int]


class DpganDiscriminatorConfig(Config):
    """What fixes the network: the image, the number of classes (None: unlabelled) and the width of its first layer."""

    shape: ImageShape
    classes: Count | None = None
    width: Annotated[int, Field(ge=2, multiple_of=2)] = 64


class DpganDiscriminator(nn.Module):
    """D(x, y): one logit for each image, above zero where it takes the image for real."""

    def __init__(self, config: DpganDiscriminatorConfig) -> None:
        super().__init__()
        self.config = config
        sizes = map_sizes(config.shape)
        channels = layer_channels(config.width, len(sizes) - 1)
        kernel, stride = kernel_and_stride(sizes[0], sizes[1])
        halves = (config.width, config.width) if config.classes else (channels[0], 0)
        self.image_layer = nn.Conv2d(config.shape[0], halves[0], kernel, stride, padding=1)
        self.label_layer = nn.Conv2d(config.classes, halves[1], kernel, stride, padding=1) if config.classes else None
        self.layers = nn.ModuleList()
        for layer in range(1, len(channels)):
            kernel, stride = kernel_and_stride(sizes[layer], sizes[layer + 1])
            self.layers.append(nn.Conv2d(channels[layer - 1], channels[layer], kernel, stride, padding=1))
        self.head = nn.Conv2d(channels[-1], 1, sizes[-1])

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (N,) of images (N, C, H, W) in [0, 1] and their labels."""
        hidden = self.image_layer(2 * images - 1)
        if self.label_layer is not None:
            assert labels is not None, "labels: this discriminator was built with classes"
            hidden = torch.cat([hidden, self.label_layer(self._planes(labels, images))], dim=1)
        for layer in self.layers:
            hidden = layer(nn.functional.leaky_relu(hidden, SLOPE))
        logits: Tensor = self.head(nn.functional.leaky_relu(hidden, SLOPE)).flatten()
        return logits

    def _planes(self, labels: Tensor, images: Tensor) -> Tensor:
        """One plane for each class, all ones for the image's own class and zeros for the others."""
        planes = one_hot(labels, self.config.classes or 1).to(images.dtype)
        return planes[:, :, None, None].expand(-1, -1, *images.shape[2:])


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Labels as rows of truth values; unlike torch's own it never reads a value back from the device."""
    return labels[:, None] == torch.arange(classes, device=labels.device)


def map_sizes(shape: tuple[int, int, int]) -> tuple[Size, ...]:
    """Heights and widths of the maps from the image down to at most 4x4: 28 -> 14 -> 7 -> 4."""
    sizes = [(shape[1], shape[2])]
    while max(sizes[-1]) > _SMALLEST or len(sizes) <= _FEWEST_LAYERS:
        height, width = sizes[-1]
        sizes.append((_halved(height), _halved(width)))
    return tuple(sizes)


def layer_channels(width: int, layers: int) -> tuple[int, ...]:
    """Output channels of each layer: twice the width in the first (image and labels), doubling, up to eight widths."""
    return tuple(width * 2 ** min(layer + 1, _MOST_DOUBLINGS) for layer in range(layers))


def kernel_and_stride(larger: Size, smaller: Size) -> tuple[Size, Size]:
    """The convolution (padding 1) that leads from one map size to the next: 4x4 from an even side, 3x3 from an odd."""
    kernel, stride = [], []
    for side, next_side in zip(larger, smaller, strict=True):
        stride.append(1 if side == next_side else 2)
        kernel.append(4 if stride[-1] == 2 and side % 2 == 0 else 3)
    return (kernel[0], kernel[1]), (stride[0], stride[1])


def _halved(side: int) -> int:
    return side if side <= _SMALLEST else -(-side // 2)


class DpganGenerator(Generator):
    """G(z, y): maps of the sizes of the discriminator, in the other direction."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        sizes = map_sizes(config.shape)[::-1]
        channels = (*layer_channels(config.width, len(sizes) - 1)[::-1], config.shape[0])
        own = channels[0] // 2 if config.classes else channels[0]
        self.latent_layer = nn.ConvTranspose2d(config.latent, own, sizes[0])
        self.label_layer = nn.ConvTranspose2d(config.classes, own, sizes[0]) if config.classes else None
        self.layers = nn.ModuleList()
        for layer in range(len(sizes) - 1):
            kernel, stride = kernel_and_stride(sizes[layer + 1], sizes[layer])
            self.layers.append(nn.ConvTranspose2d(channels[layer], channels[layer + 1], kernel, stride, padding=1))

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images (N, C, H, W)."""
        hidden = self.latent_layer(latent[:, :, None, None])
        if self.label_layer is not None:
            label = one_hot(labels, self.config.classes or 1).to(latent.dtype)
            hidden = torch.cat([hidden, self.label_layer(label[:, :, None, None])], dim=1)
        for layer in self.layers:
            hidden = layer(nn.functional.leaky_relu(hidden, SLOPE))
        return hidden
