"""A class-conditional U-Net without batch statistics, after J. Ho, A. Jain, P. Abbeel, "Denoising Diffusion
Probabilistic Models" (NeurIPS 2020), in the form of Y. Song et al. (ICLR 2021) that private diffusion models use.

Its blocks are those of ``UNet2DModel`` in the library diffusers (``DownBlock2D``, ``UNetMidBlock2D`` with attention,
``UpBlock2D``; time and class as scale and shift of the second norm), so its weights can be written for it. Parameters
that a private sum would hardly do more for than add noise are left out, the scales and shifts of norms and the biases
of convolutions inside the blocks; there they stand as ones and zeros.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.models.normalisation import normalised

GROUPS = 8  # of channels in a norm; every width is a multiple of it
_SMALL_START = 0.1  # of what a branch adds, and of the output


class ResnetBlock(nn.Module):
    """Norm, SiLU, convolution, twice; the embedding of time and class scales and shifts the second norm."""

    def __init__(self, inputs: int, outputs: int, embedded: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.time_emb_proj = nn.Linear(embedded, 2 * outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1, bias=False) if inputs != outputs else None
        with torch.no_grad():
            self.conv2.weight.mul_(_SMALL_START)

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        """Features of ``outputs`` channels; ``embedding`` has gone through SiLU."""
        inner = self.conv1(normalised(features, GROUPS))
        inner = self.conv2(normalised(inner, GROUPS, self.time_emb_proj(embedding)))
        outer: Tensor = features if self.conv_shortcut is None else self.conv_shortcut(features)
        return outer + inner


class Attention(nn.Module):
    """Every place looks at every other one; one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(channels, channels) for _ in range(4))
        with torch.no_grad():
            self.to_out.weight.mul_(_SMALL_START)

    def forward(self, features: Tensor) -> Tensor:
        """Features of the same shape."""
        count, channels, height, width = features.shape
        places = normalised(features, GROUPS, activate=False).permute(0, 2, 3, 1)
        places = places.reshape(count, height * width, channels)
        query, key, value = (layer(places)[:, None] for layer in (self.to_q, self.to_k, self.to_v))
        seen = functional.scaled_dot_product_attention(query, key, value)[:, 0]
        return features + self.to_out(seen).view(count, height, width, channels).permute(0, 3, 1, 2)


class Level(nn.Module):
    """The blocks of one resolution; ``sampler`` is the convolution that leads to the next one, if there is one."""

    def __init__(self, sizes: list[tuple[int, int]], embedded: int, stride: int | None) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(ResnetBlock(inputs, outputs, embedded) for inputs, outputs in sizes)
        width = sizes[-1][1]
        self.sampler = None if stride is None else nn.Conv2d(width, width, 3, stride=stride, padding=1)


class UNet(nn.Module):
    """Images (N, C, H, W), the logarithm of their noise level and classes in; an image of the same shape out.

    Sides that cannot be halved often enough are filled up with zeros and cut again.
    """

    def __init__(self, channels: int, classes: int, widths: tuple[int, ...], blocks: int) -> None:
        super().__init__()
        base, embedded = widths[0], 4 * widths[0]
        self.channels, self._base, self._factor = channels, base, 2 ** (len(widths) - 1)
        self.conv_in = nn.Conv2d(channels, base, 3, padding=1)
        self.linear_1, self.linear_2 = nn.Linear(base, embedded), nn.Linear(embedded, embedded)
        self.class_embedding = nn.Embedding(classes, embedded)
        skips, width = [base], base
        down, up = [], []
        for number, wide in enumerate(widths):
            last = number == len(widths) - 1
            down.append(
                Level([(width if block == 0 else wide, wide) for block in range(blocks)], embedded, None if last else 2)
            )
            skips += [wide] * (blocks + (not last))
            width = wide
        self.middle = nn.ModuleList(
            [ResnetBlock(width, width, embedded), Attention(width), ResnetBlock(width, width, embedded)]
        )
        for number, wide in reversed(list(enumerate(widths))):
            sizes = []
            for _ in range(blocks + 1):
                sizes.append((width + skips.pop(), wide))
                width = wide
            up.append(Level(sizes, embedded, 1 if number else None))
        self.down, self.up = nn.ModuleList(down), nn.ModuleList(up)
        self.conv_out = nn.Conv2d(base, channels, 3, padding=1)
        with torch.no_grad():
            self.conv_out.weight.mul_(_SMALL_START)

    def forward(self, images: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        """What is seen in noisy images; ``times`` (N,) may be any numbers of about -100 to 100."""
        embedding = functional.silu(self._embed(times, labels))
        height, width = images.shape[2:]
        features = self.conv_in(functional.pad(images, (0, -width % self._factor, 0, -height % self._factor)))
        skips = [features]
        for level in self.down:
            assert isinstance(level, Level)
            for block in level.resnets:
                features = block(features, embedding)
                skips.append(features)
            if level.sampler is not None:
                features = level.sampler(features)
                skips.append(features)
        first, attention, second = self.middle
        features = second(attention(first(features, embedding)), embedding)
        for level in self.up:
            assert isinstance(level, Level)
            for block in level.resnets:
                features = block(torch.cat([features, skips.pop()], dim=1), embedding)
            if level.sampler is not None:
                features = level.sampler(functional.interpolate(features, scale_factor=2.0, mode="nearest"))
        result: Tensor = self.conv_out(normalised(features, GROUPS))
        return result[:, :, :height, :width]

    def _embed(self, times: Tensor, labels: Tensor) -> Tensor:
        """Sines and cosines of the time through two layers, and the class beside it."""
        half = self._base // 2
        places = torch.arange(half, dtype=torch.float32, device=times.device)
        phases = times.float()[:, None] * torch.exp(places * (-math.log(10_000) / half))
        waves = torch.cat([phases.cos(), phases.sin()], dim=1).to(self.linear_1.weight.dtype)
        embedded: Tensor = self.linear_2(functional.silu(self.linear_1(waves))) + self.class_embedding(labels)
        return embedded
