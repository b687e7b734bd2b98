"""The denoiser in training: its loss, its warm-up on public images, and the average of its weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from understudy.devices import low_precision
from understudy.engines.dpsgd.gradients import Loss
from understudy.engines.dpsgd.products import arithmetic
from understudy.engines.dpsgd.step import Inputs, step_precision
from understudy.engines.embedding.config import EmbeddingConfig
from understudy.engines.embedding.start import EmbeddingStart
from understudy.engines.records import Examples
from understudy.errors import CheckError
from understudy.models.diffusion import DiffusionGenerator, mixing, network_inputs
from understudy.models.generator import DiffusionGeneratorConfig, GeneratorConfig, build_generator
from understudy.runs.run import Run

if TYPE_CHECKING:
    from understudy.methods.diffusion.dp_diffusion import DpDiffusionMethodConfig

_REPORTS = 50
_SHOWN = 10  # pictures of a run
_EDGE = 1e-6  # of the unit interval, which noise levels are not drawn from
_AVERAGE_FROM = 10  # steps after which the average begins to reach back further than a few steps


class Denoiser:
    """The network that learns (``live``), and the average of its weights, which is released."""

    def __init__(self, run: Run, network: DiffusionGeneratorConfig, config: DpDiffusionMethodConfig) -> None:
        self._run, self._config = run, config
        self._random = run.randomness.generator(run.device)
        self.live = DiffusionGenerator(network).to(run.device)
        self.released = DiffusionGenerator(network).to(run.device).requires_grad_(False)
        self._number_type = torch.bfloat16 if step_precision(run) == "bf16" else torch.float32
        self.average(0)

    # --- the loss

    def objective(self, examples: Examples, random: torch.Generator) -> tuple[Inputs, Loss]:
        """K rows of each example, and the loss of what the network says of them: its mean over the K.

        Privacy: a row is a function of its own example and of noise that is drawn for it alone.
        """
        return self.rows(examples.images, examples.labels, self._config.draws, random)

    def rows(
        self, pixels: Tensor, labels: Tensor | None, draws: int, random: torch.Generator
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Loss]:
        """EDM's eq. 8, in which every noise level counts the same: |F - (x - c_skip (x + n)) / c_out|^2."""
        images = (2 * pixels.float() - 1).repeat_interleave(draws, dim=0)
        sigma = self.noise_levels(len(pixels), draws, random)
        noisy = images + sigma[:, None, None, None] * self._noise(images, draws, random)
        seen, times = network_inputs(noisy, sigma)
        skip, out = mixing(sigma)
        target = (images - skip * noisy) / out
        inputs = (seen.to(self._number_type), times, self._told(labels, len(pixels), draws, random))
        return inputs, lambda answers: (answers.float() - target).square().mean(dim=(1, 2, 3)) / draws

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
        return torch.where(kept, labels.repeat_interleave(draws), self.live.nothing)

    # --- the start

    def imagined(self, start: EmbeddingStart, config: EmbeddingConfig) -> tuple[Tensor, Tensor | None]:
        """8-bit images and labels of a generator that is fitted to a released embedding.

        Privacy: post-processing of the embedding.
        """
        domain = self._run.plan.domain
        small = GeneratorConfig(
            kind="dcgan", shape=domain.shape, classes=domain.classes, latent=16, width=32,
            label_weights=start.label_weights(domain),
        )  # fmt: skip
        generator = build_generator(small).to(self._run.device)
        start.fit(self._run, generator, config, self._random)
        labels = generator.draw_labels(self._config.warm_up.images, self._random)
        images = generator.eval().sample(labels, self._random)
        return images, labels if domain.labelled else None

    def warm_up(self, images: Tensor, labels: Tensor | None, moved: bool = False) -> None:
        """Ordinary training on 8-bit images that are released already; with ``moved`` they are shifted and turned.

        Privacy: post-processing; no record is looked at.
        """
        config, device = self._config.warm_up, self._run.device
        steps, precision = config.steps or 0, self._run.plan.config.runtime.precision
        weights = [weight.requires_grad_() for weight in self.live.network.parameters()]
        optimizer = torch.optim.Adam(weights, config.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps), config.learning_rate / 10)
        for step in range(steps):
            picks = torch.randint(len(images), (config.batch or 1,), generator=self._random, device=device)
            pixels = images[picks].float() / 255
            pixels = _moved(pixels, self._random) if moved else pixels
            inputs, loss = self.rows(pixels, None if labels is None else labels[picks], 1, self._random)
            with low_precision(precision, device), arithmetic("tf32" if device.type == "cuda" else "fp32"):
                seen, times, told = inputs
                mean = loss(self.live.network(seen.float(), times, told)).mean()
                optimizer.zero_grad(set_to_none=True)
                mean.backward()
            optimizer.step()
            schedule.step()
            if step % max(1, steps // _REPORTS) == 0:
                self._report_warm_up(step, steps, float(mean.detach()))
        self.live.requires_grad_(False)
        self.average(0)

    def _report_warm_up(self, step: int, steps: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise CheckError(
                f"warm-up: the loss on public images is not finite at step {step}; nothing more was spent. Train again "
                "with a lower method.warm_up.learning_rate"
            )
        self._run.prepare(warmed_up=step / steps, warm_up_loss=loss)

    # --- what is released

    @torch.no_grad()
    def average(self, step: int) -> None:
        """Move the average towards the weights after a step; at step 0 it becomes them."""
        decay = min(self._config.average_decay, step / (step + _AVERAGE_FROM))
        means, weights = ([*each.parameters()] for each in (self.released, self.live))
        torch._foreach_lerp_([*means], [*weights], 1 - decay)

    def show(self, step: int) -> None:
        """Keep a picture of what the average draws, now and then, with few steps of the sampler."""


def _moved(pixels: Tensor, random: torch.Generator) -> Tensor:
    """Images turned, scaled and shifted a little, each by its own draw."""
    count, device = len(pixels), pixels.device
    turn, grow, across, down = (
        spread * (2 * torch.rand(count, generator=random, device=device) - 1) for spread in (0.2, 0.1, 0.15, 0.15)
    )
    cosine, sine = turn.cos() * (1 + grow), turn.sin() * (1 + grow)
    rows = (torch.stack([cosine, -sine, across], dim=1), torch.stack([sine, cosine, down], dim=1))
    grid = functional.affine_grid(torch.stack(rows, dim=1), list(pixels.shape), align_corners=False)
    return functional.grid_sample(pixels, grid, align_corners=False)
