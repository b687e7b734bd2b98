"""The networks of DP-CGAN: one hidden layer in the discriminator and one in the generator, on all pixels at once.

R. Torkzadehmahani, P. Kairouz, B. Paten, "DP-CGAN: Differentially Private Synthetic Data and Label Generation" (CVPR
workshops 2019). The class stands beside the pixels, and beside the latent values, as one number for each class.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from understudy.models.dpgan import DpganDiscriminatorConfig, one_hot
from understudy.models.generator import Generator, GeneratorConfig


class PerceptronDiscriminator(nn.Module):
    """D(x, y): one logit for each image, above zero where it takes the image for real."""

    def __init__(self, config: DpganDiscriminatorConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden = nn.Linear(math.prod(config.shape) + (config.classes or 0), config.width)
        self.head = nn.Linear(config.width, 1)
        _start(self)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (N,) of images (N, C, H, W) in [0, 1] and their labels."""
        inputs = images.flatten(1)
        if self.config.classes is not None:
            assert labels is not None, "labels: this discriminator was built with classes"
            inputs = torch.cat([inputs, one_hot(labels, self.config.classes).to(inputs.dtype)], dim=1)
        logits: Tensor = self.head(nn.functional.relu(self.hidden(inputs))).flatten()
        return logits


class PerceptronGenerator(Generator):
    """G(z, y)."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        self.hidden = nn.Linear(config.input_size, config.width)
        self.last = nn.Linear(config.width, math.prod(config.shape))
        _start(self)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images (N, C, H, W)."""
        hidden = nn.functional.relu(self.hidden(self.condition(latent, labels)))
        images: Tensor = self.last(hidden).unflatten(1, self.config.shape)
        return images


def _start(network: nn.Module) -> None:
    """Random weights of variance two over the number of inputs, as the paper's code has them."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features))
            nn.init.zeros_(layer.bias)
