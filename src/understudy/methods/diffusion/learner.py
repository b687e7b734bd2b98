"""The denoiser in training: its warm-up on public images, and the average of its weights, which is released.

Privacy: it sees released values, its own images and sanitized weights, so all it does is post-processing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from understudy.devices import low_precision
from understudy.engines.dead_leaves import dead_leaves
from understudy.engines.dpsgd.products import arithmetic
from understudy.engines.dpsgd.step import step_precision
from understudy.engines.embedding.config import EmbeddingConfig
from understudy.engines.embedding.start import EmbeddingStart, informed
from understudy.engines.learner import save_picture
from understudy.errors import CheckError
from understudy.methods.diffusion.denoising import Denoising
from understudy.models.diffusion import DiffusionGenerator
from understudy.models.generator import DiffusionGeneratorConfig, GeneratorConfig, build_generator
from understudy.runs.run import Run

if TYPE_CHECKING:
    from understudy.methods.diffusion.dp_diffusion import DpDiffusionMethodConfig

Imagined = tuple[Tensor, Tensor | None]  # 8-bit images, and their labels where there are classes

_REPORTS = 50
_PICTURES, _COLUMNS, _PICTURE_STEPS = 10, 10, 10  # so often in a run; images of a class; steps of the sampler for them
_AVERAGE_FROM = 10  # steps after which the average begins to reach back further than a few steps


class Denoiser:
    """The network that learns (``live``), and the average of its weights, which is released."""

    def __init__(self, run: Run, network: DiffusionGeneratorConfig, config: DpDiffusionMethodConfig) -> None:
        self._run, self._config = run, config
        self._random = run.randomness.generator(run.device)
        alone = network.sampler.model_copy(update={"autoguidance": 0.0})  # what learns has no guide
        self.live = DiffusionGenerator(network.model_copy(update={"sampler": alone})).to(run.device)
        self.released = DiffusionGenerator(network).to(run.device).requires_grad_(False)
        number_type = torch.bfloat16 if step_precision(run) == "bf16" else torch.float32
        self.denoising = Denoising(config, self.live.nothing, number_type)
        self.average(0)

    # --- the start

    def imagined(self, start: EmbeddingStart, config: EmbeddingConfig) -> Imagined:
        """8-bit images and labels of a generator that is fitted to a released embedding.

        Privacy: post-processing of the embedding.
        """
        domain = self._run.plan.domain
        small = GeneratorConfig(kind="dcgan", shape=domain.shape, classes=domain.classes, latent=16, width=32)
        generator = build_generator(informed(small, start)).to(self._run.device)
        start.fit(self._run, generator, config, self._random)
        labels = generator.draw_labels(self._config.warm_up.images, self._random)
        images = generator.eval().sample(labels, self._random)
        return images, labels if domain.labelled else None

    def warm_up(self, released: Imagined | None, moved: bool = False) -> None:
        """Ordinary training on 8-bit images that are released already, if there are any, and on leaves.

        With ``moved`` images are shifted and turned.

        Privacy: post-processing; no record is looked at.
        """
        pools = self._pools(released)
        config, device = self._config.warm_up, self._run.device
        steps, precision = config.steps or 0, self._run.plan.config.runtime.precision
        weights = [weight.requires_grad_() for weight in self.live.network.parameters()]
        optimizer = torch.optim.Adam(weights, config.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps), config.learning_rate / 10)
        for step in range(steps):
            pixels, labels = self._pick(pools)
            pixels = _moved(pixels, self._random) if moved else pixels
            inputs, loss = self.denoising.rows(pixels, labels, 1, self._random)
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

    def _pools(self, released: Imagined | None) -> list[tuple[Imagined, int]]:
        """What batches are drawn from, and how many images of each there are in one.

        Leaves have no class: what they teach is for all classes, but no class is drawn as leaves for it.
        """
        config, drawn = self._config.warm_up, self.live.config
        batch = config.batch or 1
        among = batch if released is None else round(config.leaves * batch)
        pools = [] if released is None else [(released, batch - among)]
        if among:
            leaves = dead_leaves(config.images, drawn.shape, self._random)
            nothing = torch.full((len(leaves),), self.live.nothing, device=leaves.device)
            pools.append(((leaves, nothing if drawn.classes else None), among))
        return pools

    def _pick(self, pools: list[tuple[Imagined, int]]) -> tuple[Tensor, Tensor | None]:
        """A batch: pixels in [0, 1] and classes."""
        picked: list[Tensor] = []
        told: list[Tensor] = []
        for (images, labels), count in pools:
            places = torch.randint(len(images), (count,), generator=self._random, device=images.device)
            picked.append(images[places].float() / 255)
            if labels is not None:
                told.append(labels[places])
        return torch.cat(picked), torch.cat(told) if told else None

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
        """Move the average towards the weights after a step; at step 0 it becomes them.

        The guide is the average until it is left behind, so that an earlier release is not led anywhere.
        """
        decay = min(self._config.average_decay, step / (step + _AVERAGE_FROM))
        means, weights = ([*each.network.parameters()] for each in (self.released, self.live))
        torch._foreach_lerp_([*means], [*weights], 1 - decay)
        if self.released.guide is not None and step <= self._config.guide_after * self._run.plan.steps:
            torch._foreach_copy_([*self.released.guide.parameters()], [*means])

    def show(self, step: int) -> None:
        """Keep a picture of what the average draws every tenth of a run, with few steps of the sampler."""
        total = self._run.plan.steps
        if step % max(1, total // _PICTURES) and step != total:
            return
        rows = min(10, self.released.config.classes or 10)
        labels = torch.arange(rows, device=self._run.device).repeat_interleave(_COLUMNS) % (self.live.nothing or 1)
        images = self.released.with_steps(_PICTURE_STEPS).sample(labels, self._random)
        save_picture(images, _COLUMNS, self._run.files.pictures / f"{step:010d}.png")


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
