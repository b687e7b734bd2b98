"""The GS-WGAN critic: three 5x5 stride-2 convolutions, a linear head and a label projection, all spectrally normalised.

This is the readable form, one critic as one module: the student of ``pate-gan``. The critic bank
(``engines/critics/bank.py``) trains many side by side with the same numbers; the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from understudy.configs import Config, Count, NonNegative

KERNEL = 5
STRIDE = 2
PADDING = 2
CONVOLUTIONS = 3
NORMALISE_EPS = 1e-12


class CriticConfig(Config):
    """What fixes a critic's shape: the image, the number of classes (None: unlabelled) and the first layer's width."""

    shape: tuple[int, int, int]  # channels, height, width
    classes: Count | None = None
    width: Annotated[int, Field(ge=8, multiple_of=8)] = 64

    @model_validator(mode="after")
    def _sensible(self) -> CriticConfig:
        channels, height, width = self.shape
        if channels < 1 or not (8 <= height <= 64 and 8 <= width <= 64):
            raise ValueError(f"shape: {self.shape}; critics take images from 8x8 to 64x64")
        return self

    @property
    def channels(self) -> tuple[int, ...]:
        """Channels of the image and of each layer's output."""
        return (self.shape[0], *(self.width * 2**layer for layer in range(CONVOLUTIONS)))

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Height and width of the image and of each layer's output."""
        sizes = [self.shape[1:]]
        for _ in range(CONVOLUTIONS):
            height, width = sizes[-1]
            sizes.append((-(-height // STRIDE), -(-width // STRIDE)))
        return tuple(sizes)

    @property
    def features(self) -> int:
        """Length of the flattened last layer."""
        height, width = self.sizes[-1]
        return self.channels[-1] * height * width


class CriticLossConfig(Config):
    """WGAN-GP: the weight of the gradient penalty and of the drift term on real scores."""

    penalty: NonNegative = 10.0
    drift: NonNegative = 0.001


@dataclass(frozen=True)
class CriticBatch:
    """Images and labels of one training step; a bank puts a leading critic axis in front of every shape.

    ``real_images`` is (batch, channels, height, width) in 0..1. ``mix`` (batch,) in 0..1 places each interpolate
    between its real (0) and its fake image (1); interpolates carry the real labels. Labels are None for unlabelled
    critics.
    """

    real_images: Tensor
    fake_images: Tensor
    real_labels: Tensor | None = None
    fake_labels: Tensor | None = None
    mix: Tensor | None = None


def power_iteration(matrix: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """One step towards the leading singular vectors of ``matrix`` from the estimate ``left``: new left, and right."""
    right = F.normalize(matrix.mT @ left, dim=0, eps=NORMALISE_EPS)
    return F.normalize(matrix @ right, dim=0, eps=NORMALISE_EPS), right


class SpectralNorm(nn.Module):
    """Divides a weight by its leading singular value, estimated by one power iteration per training pass.

    In evaluation mode the stored vector stays as it is, so that a pass changes no state.
    """

    left: Tensor

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("left", F.normalize(torch.randn(rows), dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight over its spectral norm; gradients flow through the norm."""
        matrix = weight.flatten(1)
        with torch.no_grad():
            left, right = power_iteration(matrix, self.left)
            if self.training:
                self.left = left
            else:
                left = self.left
        return weight / (left @ (matrix @ right))


class Critic(nn.Module):
    """D(x, y) = features(x) . (w + E[y]) + b, without any mixing across examples."""

    def __init__(self, config: CriticConfig) -> None:
        super().__init__()
        self.config = config
        pairs = zip(config.channels, config.channels[1:], strict=False)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, KERNEL, STRIDE, PADDING) for a, b in pairs)
        self.head = nn.Linear(config.features, 1)
        self.projection = nn.Embedding(config.classes, config.features) if config.classes else None
        self.norms = nn.ModuleList(SpectralNorm(weight.shape[0]) for weight in self._weights())
        if self.projection is not None:  # the head's scale, so that one learning rate suits both
            nn.init.uniform_(self.projection.weight, -(config.features**-0.5), config.features**-0.5)

    def _weights(self) -> Iterator[Tensor]:
        layers = [*self.convolutions, self.head, *([self.projection] if self.projection is not None else [])]
        for layer in layers:
            yield layer.weight

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Scores (batch,) of images (batch, channels, height, width)."""
        weights = [norm(weight) for norm, weight in zip(self.norms, self._weights(), strict=True)]
        hidden = images
        for convolution, weight in zip(self.convolutions, weights, strict=False):
            hidden = F.relu(F.conv2d(hidden, weight, convolution.bias, STRIDE, PADDING))  # type: ignore[arg-type]
        features = hidden.flatten(1)
        scores: Tensor = features @ weights[CONVOLUTIONS][0] + self.head.bias
        if self.projection is not None:
            assert labels is not None, "labels: this critic was built with classes"
            scores = scores + (features * weights[-1][labels]).sum(1)
        return scores
