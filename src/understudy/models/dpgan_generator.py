"""The generator of DPGAN: transposed convolutions, the mirror image of its discriminator, without normalisation.

For 28x28 grey images of ten classes and 128 latent values this is the published network of 2.27M parameters: latent
values and label each become a 4x4 map of 256 channels, then 512 -> 256 (3x3), 256 -> 128 (4x4), 128 -> 1 (4x4).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from understudy.models.dpgan_discriminator import SLOPE, kernel_and_stride, layer_channels, map_sizes, one_hot
from understudy.models.generator import Generator, GeneratorConfig


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
