"""A diffusion model as a generator: a U-Net that takes noise away, and the sampler that draws images with it.

T. Karras, M. Aittala, T. Aila, S. Laine, "Elucidating the Design Space of Diffusion-Based Generative Models" (EDM),
NeurIPS 2022. Images x lie in [-1, 1]; x + sigma * noise is shown at the noise level sigma. The network F sees it scaled
to unit variance, and what it says is mixed with what it saw (their eq. 7):

    D(x; sigma) = c_skip x + c_out F(c_in x; ln sigma),        s = sigma_data, a public constant,
    c_skip = s^2 / (sigma^2 + s^2),  c_out = sigma s / sqrt(sigma^2 + s^2),  c_in = 1 / sqrt(sigma^2 + s^2).

Images may be led away from what the network said earlier in its training, its *guide*: T. Karras, M. Aittala, T.
Kynkaanniemi, J. Lehtinen, T. Aila, S. Laine, "Guiding a Diffusion Model with a Bad Version of Itself" (autoguidance),
NeurIPS 2024.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from understudy.configs import validated
from understudy.errors import InputError
from understudy.models.generator import DiffusionGeneratorConfig, Generator, GeneratorConfig, Watch
from understudy.models.sampler import SamplerConfig, walk
from understudy.models.unet import UNet

SIGMA_DATA = 0.5
_TIME_SCALE = 25.0  # of ln sigma, so that the network's waves turn some dozen times over all noise levels
_ROWS_ON_CARD, _ROWS = 4000, 250


class DiffusionGenerator(Generator):
    """Draws images by taking noise away step by step; its latent values are the first noise."""

    stepwise = True

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        assert isinstance(config, DiffusionGeneratorConfig)
        self.sampler = config.sampler
        self.nothing = config.classes or 0  # the class of an image whose class is not told
        self.network = self._unet(config)
        self.guide = self._unet(config) if config.sampler.autoguidance else None

    def _unet(self, config: DiffusionGeneratorConfig) -> UNet:
        return UNet(config.shape[0], self.nothing + 1, config.widths, config.blocks)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Images from the first noise (N, values) and labels."""
        return self.draw(latent, labels, None)

    def draw_latent(self, count: int, generator: torch.Generator) -> Tensor:
        """Noise of unit variance (N, values)."""
        shape = (count, math.prod(self.config.shape))
        return torch.randn(shape, generator=generator, device=generator.device)

    def pixels(self, raw: Tensor) -> Tensor:
        """Images in [-1, 1] as pixel values in [0, 1]; what is nearly black is black, where the sampler says so."""
        values = ((raw + 1) / 2).clamp(0, 1)
        return values.where(values >= self.sampler.floor, 0.0)

    def with_steps(self, steps: int) -> DiffusionGenerator:
        """The same generator, drawing images in so many steps."""
        twin = copy.copy(self)  # shares the weights
        twin.sampler = validated(
            SamplerConfig, {**self.sampler.model_dump(), "steps": steps}, "sample steps", "pass 2 to 4096"
        )
        return twin

    @torch.no_grad()
    def sample(
        self, labels: Tensor, generator: torch.Generator, temperature: float = 1.0, watch: Watch | None = None
    ) -> Tensor:
        """One 8-bit image (N, C, H, W) for each label; ``temperature`` scales the first noise."""
        pieces = []
        for chunk in labels.split(_ROWS_ON_CARD if labels.is_cuda else _ROWS):
            images = self.draw(self.draw_latent(len(chunk), generator) * temperature, chunk, generator)
            pieces.append((self.pixels(images) * 255).round().to(torch.uint8))
            if watch is not None:
                watch(sum(len(piece) for piece in pieces))
        return torch.cat(pieces) if pieces else torch.empty((0, *self.config.shape), dtype=torch.uint8)

    @torch.no_grad()
    def draw(self, latent: Tensor, labels: Tensor, random: torch.Generator | None) -> Tensor:
        """Images (N, C, H, W) about in [-1, 1]; without ``random`` no noise is added on the way."""
        labels = labels if self.config.classes else torch.zeros_like(labels)
        denoise = self._denoiser(latent.is_cuda)
        images = latent.view(len(latent), *self.config.shape) * self.sampler.sigma_max
        return walk(images, lambda noisy, sigma: denoise(noisy, sigma, labels), self.sampler, random)

    def _denoiser(self, on_card: bool) -> Callable[[Tensor, float, Tensor], Tensor]:
        """What takes noise away, with guidance if asked for; on a graphics card networks compute in bfloat16."""
        network, guide, settings = self.network, self.guide, self.sampler
        if settings.autoguidance and guide is None:
            raise InputError(
                f"sampler.autoguidance: {settings.autoguidance:g}, but this generator kept no guide when it was "
                "trained; pass 0, or train with method.sampler.autoguidance"
            )
        if on_card:
            network, guide = _in_short(network), None if guide is None else _in_short(guide)
        number_type = next(network.parameters()).dtype

        def denoised(noisy: Tensor, sigma: float, labels: Tensor) -> Tensor:
            levels = torch.full((len(noisy),), sigma, device=noisy.device)
            seen, times = network_inputs(noisy, levels)
            seen = seen.to(number_type)
            told = network(seen, times, labels).to(noisy.dtype)
            led = told
            if settings.guidance and self.config.classes:
                untold = network(seen, times, torch.full_like(labels, self.nothing)).to(noisy.dtype)
                led = led + settings.guidance * (told - untold)
            if settings.autoguidance and guide is not None:
                led = led + settings.autoguidance * (told - guide(seen, times, labels).to(noisy.dtype))
            skip, out = mixing(levels)
            return skip * noisy + out * led

        return denoised


def _in_short(network: UNet) -> UNet:
    """A copy that computes in bfloat16, laid out as a graphics card likes it."""
    twin = copy.deepcopy(network).bfloat16()
    twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return twin


def network_inputs(noisy: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """What the network is shown of images at noise levels (N,): c_in times them, and the time."""
    scale = (sigma.square() + SIGMA_DATA**2).rsqrt()
    return noisy * scale[:, None, None, None], _TIME_SCALE * sigma.log()


def mixing(sigma: Tensor) -> tuple[Tensor, Tensor]:
    """c_skip and c_out of noise levels (N,), as (N, 1, 1, 1)."""
    squared = sigma.square() + SIGMA_DATA**2
    skip, out = SIGMA_DATA**2 / squared, SIGMA_DATA * sigma * squared.rsqrt()
    return skip[:, None, None, None], out[:, None, None, None]
