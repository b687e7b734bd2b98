"""The generator of BDP-GAN: a linear layer, three transposed convolutions with SELU, max pooling, tanh.

For 28x28 images the linear layer gives 4,096 values (256 maps of 4x4) as in the paper; the maps grow fourfold, then
twice by two, to 64x64 in front of the pooling, and the middle 28x28 of what is left is the image. Other sizes start
from other maps.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from understudy.models.generator import Generator, GeneratorConfig, crop
from understudy.models.selu_critic import self_normalising

_GROWTH = 8  # of the maps, after pooling


class SeluGenerator(Generator):
    """G(z, y) in front of its output function, which ``pixels`` applies."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        channels, height, columns = config.shape
        width = config.width
        self._maps = (4 * width, math.ceil(height / _GROWTH), math.ceil(columns / _GROWTH))
        self.head = nn.Linear(config.input_size, math.prod(self._maps))
        self.layers = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=4),
                nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
                nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1),
            ]
        )
        self_normalising(self)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images (N, C, H, W)."""
        hidden = self.head(self.condition(latent, labels)).unflatten(1, self._maps)
        for layer in self.layers:
            hidden = layer(nn.functional.selu(hidden))
        return crop(nn.functional.max_pool2d(nn.functional.selu(hidden), 2), self.config.shape)
