"""The public side of a GAN: a generator that learns from the discriminator, and what is shown and kept of the game.

Privacy: it reads generated images and a discriminator that is differentially private already, so all of it is
post-processing. For the method ``gan`` the discriminator is not private, and neither is anything here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.devices import low_precision
from understudy.engines.dpsgd.step import PrivateStep
from understudy.engines.embedding.start import EmbeddingStart
from understudy.engines.learner import Learner, LearnerOptions, save_picture
from understudy.methods.adversarial.schedule import StepSchedule
from understudy.models.generator import GeneratorConfig
from understudy.runs.loop import Stateful
from understudy.runs.run import Run

if TYPE_CHECKING:
    from understudy.methods.adversarial.dpgan import DpGanMethodConfig

_AVERAGE_FROM = 10  # generator steps after which the average begins to reach back further than a few steps
_PICTURES = 10  # so often in a run


class AdversarialLearner(Learner):
    """Takes generator steps against a discriminator."""

    def __init__(
        self,
        run: Run,
        network: GeneratorConfig,
        config: DpGanMethodConfig,
        batch: int,
        start: EmbeddingStart | None = None,
    ) -> None:
        assert config.generator_learning_rate is not None, "decided by the plan"
        options = LearnerOptions(config.generator_learning_rate, config.betas, averaged=bool(config.average_decay))
        super().__init__(run, network, options, start)
        self._config, self._batch = config, batch

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside what is released."""
        kept: dict[str, Stateful] = {"generator_optimizer": self._optimizer}
        return kept if self.released is self.live else {**kept, "live": self.live}

    def step(self, discriminator: nn.Module, number: int) -> tuple[Tensor, Tensor]:
        """One step along -log D(G(z, y)), or -C(G(z, y)); returns the loss and the accuracy on these fakes before it.

        A released embedding keeps pulling. Both values stay on the device: whoever reads them waits for it.
        """
        drawn = self.imagine(self._batch)
        with low_precision(self._precision, self._random.device):
            logits = discriminator(drawn.values, drawn.labels).float()
        loss = (functional.softplus(-logits) if self._config.loss == "logistic" else -logits).mean()
        total = loss
        if self.start is not None and self._config.embedding_pull:
            total = loss + self._config.embedding_pull * self.start.distance(drawn.values.float(), drawn.labels)
        weights = list(self.live.parameters())
        for weight, slope in zip(weights, torch.autograd.grad(total, weights), strict=True):
            weight.grad = slope
        self._optimizer.step()
        self.average(min(self._config.average_decay, number / (number + _AVERAGE_FROM)))
        return loss.detach(), (logits.detach() < 0).float().mean()

    def pictures(self, rows: int, columns: int) -> Tensor:
        """Generated 8-bit images (rows * columns, C, H, W), one class after the other."""
        classes = self.released.config.classes or 1
        labels = torch.arange(rows, device=self._random.device).repeat_interleave(columns) % classes
        return self.released.sample(labels, self._random)


class GanWatch:
    """What is shown and kept of a run: the paper's diagnostics. It waits for the device only when it reports."""

    def __init__(self, run: Run, learner: AdversarialLearner, step_of: PrivateStep, schedule: StepSchedule) -> None:
        self._run, self._learner, self._step_of, self._schedule = run, learner, step_of, schedule
        self._seen: list[tuple[int, Tensor, Tensor]] = []
        self._latest: dict[str, float] = {}  # shown again where no generator step fell between two reports

    def generator_step(self, step: int, loss: Tensor, accuracy: Tensor, climbed: bool) -> None:
        """Remember the discriminator's accuracy on fakes from just before the step; note a move of the schedule."""
        self._seen.append((step, loss, accuracy))
        if climbed:
            self._run.diagnose(step, discriminator_steps=self._schedule.steps, average=self._schedule.average)

    def discriminator_step(self, step: int) -> None:
        """Report every hundredth of the run; keep a picture every tenth."""
        total = self._run.plan.steps
        if self._run.report_due(step):
            self._report(step)
        if step % max(1, total // _PICTURES) == 0 or step == total:
            rows = min(10, self._learner.released.config.classes or 10)
            path = self._run.files.pictures / f"{step:010d}.png"
            save_picture(self._learner.pictures(rows, 10), 10, path)

    def _report(self, step: int) -> None:
        """Public values from generated images; norms and the clipped share, which saw real ones, stay private."""
        public: dict[str, float] = {"discriminator_steps": self._schedule.steps}
        public["generator_steps"] = self._schedule.generator_steps
        accuracies: list[float] = []
        if self._seen:
            accuracies = torch.stack([accuracy for _, _, accuracy in self._seen]).tolist()  # waits for the device once
            self._latest["generator_loss"] = float(self._seen[-1][1])
            self._latest["accuracy_on_fakes"] = sum(accuracies) / len(accuracies)
        values_private: dict[str, Any] = dict(self._step_of.diagnostics())
        steps = [at for at, _, _ in self._seen]
        values_private["accuracy_on_fakes"] = [[at, round(each, 4)] for at, each in zip(steps, accuracies, strict=True)]
        self._seen.clear()
        self._run.report(step, **public, **self._latest)
        self._run.diagnose(step, **values_private)
