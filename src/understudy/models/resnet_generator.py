"""The ResNet generator of GS-WGAN: residual blocks that double the size, spectral norm, pixel norm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from understudy.models.generator import Generator, GeneratorConfig, PixelNorm, crop, upsampling_plan


class ResnetGenerator(Generator):
    """Linear -> (4 width, s, s) -> residual up-blocks -> 3x3 convolution; 3.83M parameters at 28x28 and width 64."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        doublings, self.start_size = upsampling_plan(config.shape, smallest=4)
        self.channels = 4 * config.width
        wrap = spectral_norm if config.spectral_norm else _unchanged
        self.start = wrap(nn.Linear(config.input_size, self.channels * self.start_size[0] * self.start_size[1]))
        blocks = [_UpBlock(self.channels, config.spectral_norm) for _ in range(doublings)]
        final = wrap(nn.Conv2d(self.channels, config.shape[0], 3, padding=1))
        self.body = nn.Sequential(nn.ReLU(), PixelNorm(), *blocks, nn.ReLU(), final)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images (N, C, H, W)."""
        start = self.start(self.condition(latent, labels))
        features = start.view(-1, self.channels, *self.start_size)
        return crop(self.body(features), self.config.shape)


class _UpBlock(nn.Module):
    """Nearest-neighbour doubling with two 3x3 convolutions and a plain shortcut."""

    def __init__(self, channels: int, normalise: bool) -> None:
        super().__init__()
        wrap = spectral_norm if normalise else _unchanged
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.first = wrap(nn.Conv2d(channels, channels, 3, padding=1))
        self.second = wrap(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm, self.activation = PixelNorm(), nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        """Features of twice the size."""
        doubled = self.upsample(features)
        hidden = self.norm(self.activation(self.first(doubled)))
        return doubled + self.norm(self.activation(self.second(hidden)))


def _unchanged(module: nn.Module) -> nn.Module:
    return module
