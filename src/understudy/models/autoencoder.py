"""A small convolutional auto-encoder without batch statistics, and the generator that draws codes for its decoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from understudy.models.dcgan_generator import DcganGenerator
from understudy.models.generator import Generator, GeneratorConfig

_HIDDEN = 128  # of the network that draws codes


def into_unit_ball(values: Tensor) -> Tensor:
    """Rows shortened smoothly to a norm below one: v / sqrt(1 + |v|^2)."""
    return values / (1 + values.square().sum(dim=1, keepdim=True)).sqrt()


class Encoder(nn.Module):
    """[4x4 stride-2 convolution, ReLU] twice, then a linear layer -> codes (N, code) of norm below one."""

    def __init__(self, shape: tuple[int, int, int], code: int, width: int) -> None:
        super().__init__()
        channels, height, columns = shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.ReLU(),
        )
        self.end = nn.Linear(2 * width * math.floor(height / 4) * math.floor(columns / 4), code)

    def forward(self, images: Tensor) -> Tensor:
        """Codes of images (N, C, H, W) in [0, 1]."""
        return into_unit_ball(self.end(self.body(images).flatten(1)))


class Autoencoder(nn.Module):
    """Images -> codes -> raw images; the decoder is a generator without labels whose latent values are codes."""

    def __init__(self, encoder: Encoder, decoder: Generator) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, images: Tensor) -> Tensor:
        """Raw images of the shape of ``images``."""
        labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
        raw: Tensor = self.decoder(self.encoder(images), labels)
        return raw


def reconstruction_losses(raw: Tensor, images: Tensor) -> Tensor:
    """The binary cross-entropy (N,) of each reconstruction, averaged over its pixels."""
    return binary_cross_entropy_with_logits(raw, images.float(), reduction="none").flatten(1).mean(dim=1)


class DecoderGenerator(Generator):
    """Latent values and label -> three linear layers -> a code of norm below one -> the DCGAN network.

    A code has as many numbers as there are latent values.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        self.mapper = nn.Sequential(
            nn.Linear(config.input_size, _HIDDEN),
            nn.LeakyReLU(0.2),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.LeakyReLU(0.2),
            nn.Linear(_HIDDEN, config.latent),
        )
        self.decoder = DcganGenerator(config.model_copy(update={"classes": None, "label_weights": None}))

    def code(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Codes (N, latent) of norm below one."""
        return into_unit_ball(self.mapper(self.condition(latent, labels)))

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images (N, C, H, W)."""
        raw: Tensor = self.decoder(self.code(latent, labels), labels)
        return raw
