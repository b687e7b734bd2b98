"""The networks of BDP-GAN: a critic and a generator with SELU.

The critic is three convolutions with SELU, a linear layer with SELU, and a linear score. Nothing in it mixes examples
(no BatchNorm): every example's gradient is its own, as clipping needs it. Labels are planes beside the image, with a
convolution of their own, and choose among scores, one for each class: a critic whose weights are kept small is nearly
linear, and planes alone would tell it little about how image and label go together.

The generator is a linear layer, three transposed convolutions with SELU, max pooling, tanh. For 28x28 images the linear
layer gives 4,096 values (256 maps of 4x4) as in the paper; the maps grow fourfold, then twice by two, to 64x64 in front
of the pooling, and the middle 28x28 of what is left is the image. Other sizes start from other maps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from understudy.models.dpgan import DpganDiscriminatorConfig, one_hot
from understudy.models.generator import Generator, GeneratorConfig, crop

_HIDDEN = 4  # times the width: the linear layer of the critic
_GROWTH = 8  # of the maps of the generator, after pooling


class SeluCritic(nn.Module):
    """C(x, y): one score for each image, larger where it takes the image for real."""

    def __init__(self, config: DpganDiscriminatorConfig) -> None:
        super().__init__()
        self.config = config
        channels, height, columns = config.shape
        width, classes = config.width, config.classes
        own = width // 2 if classes else width
        self.image_layer = nn.Conv2d(channels, own, 4, stride=2, padding=1)
        self.label_layer = nn.Conv2d(classes, width - own, 4, stride=2, padding=1) if classes else None
        self.second = nn.Conv2d(width, 2 * width, 4, stride=2, padding=1)
        self.third = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1)
        places = math.prod(-(-(side // 4) // 2) for side in (height, columns))
        self.linear = nn.Linear(4 * width * places, _HIDDEN * width)
        self.score = nn.Linear(_HIDDEN * width, classes or 1)
        self_normalising(self)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores (N,) of images (N, C, H, W) in [0, 1] and their labels."""
        hidden, own = self.image_layer(2 * images - 1), None
        if self.label_layer is not None:
            assert labels is not None, "labels: this critic was built with classes"
            own = one_hot(labels, self.config.classes or 1).to(images.dtype)
            planes = own[:, :, None, None].expand(-1, -1, *images.shape[2:])
            hidden = torch.cat([hidden, self.label_layer(planes)], dim=1)
        hidden = self.second(nn.functional.selu(hidden))
        hidden = nn.functional.selu(self.third(nn.functional.selu(hidden)))
        hidden = nn.functional.selu(self.linear(hidden.flatten(1)))
        scores: Tensor = self.score(hidden)
        return scores.flatten() if own is None else (scores * own).sum(dim=1)


def self_normalising(network: nn.Module) -> None:
    """Weights as self-normalising networks want them: mean zero, variance one over the number of inputs."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


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
