"""The public side of DPGAN: a generator that learns from the discriminator, and the average of its weights.

Privacy: it reads generated images and a discriminator that is differentially private already, so all of it is
post-processing. For the method ``gan`` the discriminator is not private, and neither is anything here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.devices import low_precision
from understudy.engines.config import AdversaryConfig, EmbeddingConfig
from understudy.engines.embedding.start import Anchor
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.runs.loop import Stateful
from understudy.runs.run import Run

_AVERAGE_FROM = 10  # generator steps after which the average begins to reach back further than a few steps


class GeneratorSteps:
    """Takes generator steps; ``released`` is the average of the weights, or the last ones without averaging."""

    def __init__(
        self,
        run: Run,
        network: GeneratorConfig,
        settings: AdversaryConfig,
        batch: int,
        anchor: Anchor | None = None,
    ) -> None:
        self._settings, self._batch, self._anchor = settings, batch, anchor
        self._random = run.randomness.generator(run.device)
        self.live = build_generator(network).to(run.device)
        self.released = build_generator(network).to(run.device) if settings.average_decay else self.live
        self.released.load_state_dict(self.live.state_dict())
        assert settings.generator_learning_rate is not None, "decided by the plan"
        self._optimizer = torch.optim.Adam(self.live.parameters(), settings.generator_learning_rate, settings.betas)
        self._precision = run.plan.config.runtime.precision

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside what is released."""
        kept: dict[str, Stateful] = {"generator_optimizer": self._optimizer}
        return kept if self.released is self.live else {**kept, "live": self.live}

    def fit_anchor(self, run: Run, settings: EmbeddingConfig) -> None:
        """Fit the generator to the released embedding before the first step."""
        assert self._anchor is not None, "only where an embedding was released"
        self._anchor.fit(run, self.live, settings, self._random)
        self.released.load_state_dict(self.live.state_dict())

    def step(self, discriminator: nn.Module, number: int) -> tuple[Tensor, Tensor]:
        """One step along -log D(G(z, y)), or -C(G(z, y)); returns the loss and the accuracy on these fakes before it.

        A released embedding keeps pulling. Both values stay on the device: whoever reads them waits for it.
        """
        images, labels = self._imagine()
        with low_precision(self._precision, self._random.device):
            logits = discriminator(images, labels if self.live.config.classes is not None else None).float()
        loss = (functional.softplus(-logits) if self._settings.loss == "logistic" else -logits).mean()
        total = loss
        if self._anchor is not None and self._settings.embedding_pull:
            total = loss + self._settings.embedding_pull * self._anchor.distance(images.float(), labels)
        weights = list(self.live.parameters())
        for weight, slope in zip(weights, torch.autograd.grad(total, weights), strict=True):
            weight.grad = slope
        self._optimizer.step()
        self._average(min(self._settings.average_decay, number / (number + _AVERAGE_FROM)))
        return loss.detach(), (logits.detach() < 0).float().mean()

    def pictures(self, rows: int, columns: int) -> Tensor:
        """Generated 8-bit images (rows * columns, C, H, W), one class after the other."""
        classes = self.released.config.classes or 1
        labels = torch.arange(rows, device=self._random.device).repeat_interleave(columns) % classes
        return self.released.sample(labels, self._random)

    def _imagine(self) -> tuple[Tensor, Tensor]:
        """Fakes that remember how they were made, with labels from the declared law."""
        labels = self.live.draw_labels(self._batch, self._random)
        latent = self.live.draw_latent(self._batch, self._random)
        with low_precision(self._precision, self._random.device):
            return self.live.pixels(self.live(latent, labels)), labels

    @torch.no_grad()
    def _average(self, decay: float) -> None:
        if self.released is not self.live:
            torch._foreach_lerp_(list(self.released.parameters()), list(self.live.parameters()), 1 - decay)
