"""The public side of GS-WGAN: a generator that learns from sanitized image gradients, and the average that is released.

Raw values are cut to [0, 1] for the critics, and the answers are passed straight through the cut with a pull on what
lies outside. A sigmoid saturates under noise and the images go black for good; this output cannot saturate.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from understudy.data.domain import Domain
from understudy.errors import CheckError
from understudy.models.generator import Generator, GeneratorConfig, build_generator
from understudy.training.critic_panel import FakePool
from understudy.training.mean_embedding import Embedding, Fit, NoisyMeans
from understudy.training.run import Run
from understudy.training.settings import EmbeddingSettings, GeneratorSettings
from understudy.training.states import Stateful

_BLANK_CONTRAST = 0.03  # mean deviation of the pixels of one image, and of one pixel over images
_BLANK_CHECKS = 5


class GeneratorPlayer:
    """Draws images for queries and learns from their answers.

    Privacy: it sees sanitized answers only, so all it does is post-processing.
    """

    def __init__(self, run: Run, settings: GeneratorSettings) -> None:
        self.settings, self._random = settings, run.randomness.generator(run.device)
        config = _network(settings, run.plan.domain)
        self.live = build_generator(config).to(run.device)
        for weight in self.live.parameters():  # the fast layout for convolutions
            weight.data = weight.data.to(memory_format=torch.channels_last) if weight.dim() == 4 else weight.data
        self.average = build_generator(config.model_copy(update={"spectral_norm": False})).to(run.device)
        self._copy_weights(self.average, 0.0)
        self._optimizer = torch.optim.Adam(self.live.parameters(), settings.learning_rate, betas=(0.5, 0.9))
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, _Decay(run.plan.steps))
        self._low_precision = run.plan.config.runtime.precision == "bf16" and run.device.type == "cuda"
        self._blank_checks = 0

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside the average."""
        return {"live": self.live, "optimizer": self._optimizer, "schedule": self._schedule}

    def start_from(self, means: NoisyMeans, embedding: Embedding, settings: EmbeddingSettings) -> None:
        """Fit the generator to a released embedding before the first query."""
        fit = Fit(self.live, embedding, means, settings)
        for _ in range(settings.steps):
            fit.step(self._random)
        self._copy_weights(self.average, 0.0)

    def pool(self, count: int) -> FakePool:
        """Generated images for the critics to train on."""
        with torch.no_grad():
            raw, labels = self.imagine(count)
        return FakePool(raw.clamp(0, 1), labels)

    def imagine(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Raw images that remember how they were made, and their labels from the declared law."""
        labels = self.live.draw_labels(count, self._random)
        latent = self.live.draw_latent(count, self._random)
        with self._precision():
            raw = self.live(latent, labels).float()
        return raw, labels if self.live.config.classes is not None else None

    def learn(self, raw: Tensor, answers_dp: Tensor) -> None:
        """One step along the sanitized gradients of the critics' loss and the pull back into [0, 1]."""
        values = raw.detach()
        outside = values - values.clamp(0, 1)
        slopes = answers_dp.view_as(values) + 2 * self.settings.outside_penalty * outside
        self._optimizer.zero_grad(set_to_none=True)
        raw.backward(slopes / len(values))
        self._optimizer.step()
        self._schedule.step()
        self._copy_weights(self.average, self.settings.average_decay)

    def check_alive(self, images: Tensor) -> float:
        """Contrast of generated images; a generator that stays blank or always draws one image stops the run.

        Privacy: decided from generated images alone, so stopping reveals nothing more.
        """
        contrast = min(float(images.flatten(1).std(dim=1).mean()), float(images.std(dim=0).mean()))
        self._blank_checks = self._blank_checks + 1 if contrast < _BLANK_CONTRAST else 0
        if self._blank_checks >= _BLANK_CHECKS:
            raise CheckError(
                f"generator: its images are blank or all alike (contrast {contrast:.3f}) at {_BLANK_CHECKS} checks in "
                "a row, so the run stops before it spends more; lower method.generator.learning_rate, raise "
                "method.critics.warm_iterations or use fewer privacy.subsets"
            )
        return contrast

    @torch.no_grad()
    def _copy_weights(self, average: Generator, decay: float) -> None:
        """Move the average towards the weights in effect (after spectral norm, so that it needs none)."""
        self.live.eval()
        for name, module in average.named_modules():
            own = dict(module.named_parameters(recurse=False))
            current = self.live.get_submodule(name) if own else nn.Identity()
            for key, mean in own.items():
                mean.lerp_(getattr(current, key), 1 - decay)
        self.live.train()

    def _precision(self) -> AbstractContextManager[None]:
        return torch.autocast("cuda", torch.bfloat16, enabled=self._low_precision)


def _network(settings: GeneratorSettings, domain: Domain) -> GeneratorConfig:
    assert settings.width is not None, "decided by the plan"
    return GeneratorConfig(
        kind=settings.kind,
        shape=domain.shape,
        classes=domain.classes,
        latent=settings.latent,
        latent_law=settings.latent_law,
        width=settings.width,
        output="clamp",
        spectral_norm=settings.spectral_norm and settings.kind == "resnet",
    )


class _Decay:
    """Learning rate over time: constant for half of the steps, then falling to a twentieth."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: int) -> float:
        left = 1 - step / max(1, self.steps)
        return max(0.05, min(1.0, 2 * left))
