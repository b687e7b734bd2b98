"""What a denoiser is shown of images, and its loss: the code of a diffusion model that sees private rows.

Privacy: it is called in private steps (``engines/dpsgd/step.py``), which clip what every unit gives to the gradient,
and on public images before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from understudy.engines.dpsgd.gradients import Loss
from understudy.engines.dpsgd.step import Inputs
from understudy.engines.records import Examples
from understudy.models.diffusion import mixing, network_inputs

if TYPE_CHECKING:
    from understudy.methods.diffusion.dp_diffusion import DpDiffusionMethodConfig

_EDGE = 1e-6  # of the unit interval, which noise levels are not drawn from


class Denoising:
    """EDM's loss on K noise draws of each image; ``nothing`` is the class of an image whose class is not told."""

    def __init__(self, config: DpDiffusionMethodConfig, nothing: int, number_type: torch.dtype) -> None:
        self._config, self._nothing, self._number_type = config, nothing, number_type

    def objective(self, examples: Examples, random: torch.Generator) -> tuple[Inputs, Loss]:
        """K rows of each example, and the loss of what the network says of them: its mean over the K.

        Privacy: a row is a function of its own example and of noise that is drawn for it alone.
        """
        return self.rows(examples.images, examples.labels, self._config.draws, random)

    def rows(
        self, pixels: Tensor, labels: Tensor | None, draws: int, random: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Loss]:
        """EDM's eq. 8, in which every noise level counts the same: |F - (x - c_skip (x + n)) / c_out|^2."""
        images = self._turned((2 * pixels.float() - 1).repeat_interleave(draws, dim=0), random)
        sigma = self.noise_levels(len(pixels), draws, random)
        noisy = images + sigma[:, None, None, None] * self._noise(images, draws, random)
        seen, times = network_inputs(noisy, sigma)
        skip, out = mixing(sigma)
        target = (images - skip * noisy) / out
        inputs = (seen.to(self._number_type), times, self._told(labels, len(pixels), draws, random))
        return inputs, lambda answers: (answers.float() - target).square().mean(dim=(1, 2, 3)) / draws

    def _turned(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Each row as it is or, where images may be mirrored, its mirror image: by a coin of its own.

        Privacy: a row follows its own image and its own coin; nothing is counted or shared between units.
        """
        if not self._config.mirrored:
            return images
        coins = torch.rand(len(images), generator=random, device=random.device) < 0.5
        return torch.where(coins[:, None, None, None], images.flip(-1), images)

    def noise_levels(self, units: int, draws: int, random: torch.Generator) -> Tensor:
        """Levels (units * draws,) with ln sigma ~ Normal: one from each of K equally likely parts, for every unit.

        Draws in pairs share a level, so there are half as many parts.

        Privacy: stratified over the draws of one unit. Over a batch it would tie the units of the batch together.
        """
        twice = 2 if self._paired(draws) else 1
        shares = torch.rand((units, draws // twice), generator=random, device=random.device)
        parts = (torch.arange(draws // twice, device=random.device) + shares) / (draws // twice)
        normal = torch.special.ndtri(parts.clamp(_EDGE, 1 - _EDGE)).repeat_interleave(twice, dim=1).flatten()
        return (self._config.noise_mean + self._config.noise_deviation * normal).exp()

    def _noise(self, images: Tensor, draws: int, random: torch.Generator) -> Tensor:
        """Noise for every row; in pairs n and -n, whose errors cancel where the network is nearly linear in the noise.

        Privacy: drawn for the rows of one unit, independent of those of all others.
        """
        if not self._paired(draws):
            return torch.randn(images.shape, generator=random, device=images.device)
        half = torch.randn((len(images) // 2, *images.shape[1:]), generator=random, device=images.device)
        return torch.stack([half, -half], dim=1).flatten(0, 1)

    def _paired(self, draws: int) -> bool:
        return self._config.paired and draws % 2 == 0

    def _told(self, labels: Tensor | None, units: int, draws: int, random: torch.Generator) -> Tensor:
        """The class of each row, or now and then that it is not told."""
        if labels is None:
            return torch.zeros(units * draws, dtype=torch.long, device=random.device)
        kept = torch.rand(units * draws, generator=random, device=random.device) >= self._config.label_dropout
        return torch.where(kept, labels.repeat_interleave(draws), self._nothing)
