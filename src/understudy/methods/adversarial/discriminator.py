"""The private side of a GAN: what a discriminator learns from, generated images beside Poisson-sampled real ones.

Privacy: real images reach the discriminator in private steps alone (``engines/dpsgd/step.py``). Generated ones go along
with them in a fixed number, and are clipped like them.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.engines.dpsgd.gradients import Loss
from understudy.engines.dpsgd.sharing import Sharing
from understudy.engines.dpsgd.step import Drawn, Inputs, PrivateStep, StepOptions, step_precision
from understudy.engines.records import Examples
from understudy.models.generator import Generator
from understudy.privacy.events import Event
from understudy.runs.run import Run

if TYPE_CHECKING:
    from understudy.methods.adversarial.dpgan import Adversary


def discriminator_step(
    run: Run, discriminator: nn.Module, generator: Generator, options: StepOptions, loss: Adversary, event: Event | None
) -> PrivateStep:
    """Steps of a discriminator on about B reals and exactly B fakes; the divisor is 2B.

    Privacy: those of ``PrivateStep``: fakes are public companions.
    """
    fakes = Fakes(run, generator, options.batch)
    sharing = Sharing({"generator": generator.config.model_dump(mode="json")}, _tensors(generator))
    return PrivateStep(run, discriminator, partial(telling_apart, loss), options, event, fakes, sharing=sharing)


def telling_apart(kind: Adversary, examples: Examples, random: torch.Generator) -> tuple[Inputs, Loss]:
    """The discriminator sees images and labels; it gains from calling reals real and fakes fake."""
    return (examples.images, examples.labels), partial(adversary_losses, kind, examples.signs)


def adversary_losses(kind: Adversary, signs: Tensor, logits: Tensor) -> Tensor:
    """The loss of each example: softplus(-logit) for a real and softplus(logit) for a fake, or -logit and logit."""
    signed = -signs * logits
    return functional.softplus(signed) if kind == "logistic" else signed


class Fakes:
    """Generated images as companions of a step; the copy that renders them follows the generator's weights."""

    def __init__(self, run: Run, generator: Generator, count: int) -> None:
        self.count, self._source, self._labelled = count, generator, run.data.labels is not None
        self._copy = copy.deepcopy(generator).requires_grad_(False)
        own_type = next(generator.parameters()).dtype
        self._type = torch.bfloat16 if step_precision(run) == "bf16" else own_type
        self._shares = self._type == own_type
        if self._shares:
            for own, source in zip(_tensors(self._copy), _tensors(generator), strict=True):
                own.data = source.data
        else:
            self._copy.to(self._type)
            for own in self._copy.parameters():
                own.data = own.data.contiguous(memory_format=torch.channels_last) if own.dim() == 4 else own.data

    def draw(self, count: int, random: torch.Generator) -> Drawn:
        """Latent values and labels from the generator's declared laws, never from a real batch."""
        return self._source.draw_latent(count, random), self._source.draw_labels(count, random)

    @torch.no_grad()
    def render(self, *drawn: Tensor) -> Examples:
        """Generated images; their number is public and all of them count."""
        if not self._shares:  # the copy holds the weights rounded
            torch._foreach_copy_(_tensors(self._copy), _tensors(self._source))
        latent, labels = drawn
        images = self._copy.pixels(self._copy(latent.to(self._type), labels)).contiguous()
        signs = torch.full((len(images),), -1.0, device=images.device)
        present = torch.ones(len(images), dtype=torch.bool, device=images.device)
        return Examples(images, labels if self._labelled else None, signs, present)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
