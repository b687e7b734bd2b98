"""The fit of a generator to a released mean embedding: post-processing, step by step."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from understudy.configs import Precision
from understudy.devices import low_precision
from understudy.engines.dpsgd.products import arithmetic
from understudy.engines.embedding.means import Features, NoisyMeans, distance
from understudy.errors import CheckError
from understudy.models.generator import Generator
from understudy.runs.loop import Stateful
from understudy.runs.run import Run

_REPORTS = 100


class FitConfig(Protocol):
    """How a generator is fitted to a released embedding."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        ...

    @property
    def batch(self) -> int:
        """Generated images in a step."""
        ...

    @property
    def learning_rate(self) -> float:
        """Of Adam, at the start."""
        ...


class Fit:
    """Fits a generator to noisy means, step by step: Adam with a falling learning rate.

    Privacy: post-processing of the released means; no private value is read.
    """

    def __init__(
        self,
        generator: Generator,
        embedding: Features,
        target: NoisyMeans,
        settings: FitConfig,
        precision: Precision = "fp32",
    ) -> None:
        self.generator, self.embedding, self.target, self.settings = generator, embedding, target, settings
        self.precision = precision
        self.optimizer = torch.optim.Adam(generator.parameters(), settings.learning_rate, betas=(0.5, 0.999))
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, settings.steps)

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside the generator."""
        return {"optimizer": self.optimizer, "schedule": self.schedule}

    def labels(self, random: torch.Generator) -> Tensor:
        """Equally many of each class, and at least two, on the device of ``random``."""
        classes = len(self.target.means_dp)
        return torch.arange(classes, device=random.device).repeat_interleave(max(2, self.settings.batch // classes))

    def loss(self, random: torch.Generator) -> Tensor:
        """Squared distance of a fresh batch from the target, and the pull back into [0, 1] where the output is cut."""
        labels = self.labels(random)
        with low_precision(self.precision, random.device):
            raw = self.generator(self.generator.draw_latent(len(labels), random), labels).float()
        if self.generator.config.output == "sigmoid":
            return distance(self.generator.pixels(raw), labels, self.embedding, self.target)
        images = _cut(raw)
        return distance(images, labels, self.embedding, self.target) + (raw - images.detach()).square().mean()

    def step(self, random: torch.Generator) -> Tensor:
        """One step; returns the loss."""
        with arithmetic("tf32" if self.precision != "fp32" and random.device.type == "cuda" else "fp32"):
            loss = self.loss(random)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


def report_fit(run: Run, step: int, steps: int, loss: Tensor) -> None:
    """Report the loss of a fit about a hundred times in ``steps`` steps; one that is not finite stops the run.

    Privacy: the loss is computed from generated images and the released means, so showing it reveals nothing more.
    """
    if step % max(1, steps // _REPORTS):
        return
    if not math.isfinite(float(loss)):
        raise CheckError(
            f"fit: the distance to the released embedding is not finite at step {step}, so the generator is broken; "
            "nothing more was spent. Train again with a lower method.learning_rate"
        )
    run.report(step, loss=float(loss))


def _cut(raw: Tensor) -> Tensor:
    """Raw values cut to [0, 1], with the gradient passed straight through."""
    return raw + (raw.clamp(0, 1) - raw).detach()
