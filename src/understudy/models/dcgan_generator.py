"""The DCGAN generator: a linear layer and transposed convolutions that double the size, without batch statistics."""

from __future__ import annotations

from torch import Tensor, nn

from understudy.models.generator import Generator, GeneratorConfig, PixelNorm, crop, upsampling_plan


class DcganGenerator(Generator):
    """Linear -> (4 width, s, s) -> [4x4 stride-2 transposed convolution, pixel norm, ReLU] ... -> 3x3 convolution."""

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        doublings, self.start_size = upsampling_plan(config.shape, smallest=7)
        self.start_channels = config.width * 2**doublings
        self.start = nn.Linear(config.input_size, self.start_channels * self.start_size[0] * self.start_size[1])
        layers: list[nn.Module] = [PixelNorm(), nn.ReLU()]
        channels = self.start_channels
        for _ in range(doublings):
            layers += [nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1), PixelNorm(), nn.ReLU()]
            channels //= 2
        layers.append(nn.Conv2d(channels, config.shape[0], 3, padding=1))
        self.body = nn.Sequential(*layers)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images (N, C, H, W)."""
        start = self.start(self.condition(latent, labels))
        features = start.view(-1, self.start_channels, *self.start_size)
        return crop(self.body(features), self.config.shape)
