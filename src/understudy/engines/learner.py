"""A generator that learns from sanitized image gradients (gs-wgan, dp-sinkhorn), and the average that is released.

From random weights, raw values are cut to [0, 1] for the critics, and the answers are passed straight through the cut
with a pull on what lies outside: a sigmoid would saturate under the noise and the images would go black for good. A
generator that starts from a released embedding keeps being pulled towards it, which holds a sigmoid alive; and a
sigmoid lets the noise of the answers change hardly anything where a pixel is surely black or white.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from understudy.data.domain import Domain
from understudy.devices import low_precision
from understudy.engines.config import LearnerConfig
from understudy.engines.critics.panel import FakePool
from understudy.engines.embedding.fit import FitConfig
from understudy.engines.embedding.start import Anchor
from understudy.errors import CheckError
from understudy.models.generator import Generator, GeneratorConfig, build_generator
from understudy.runs.loop import Stateful
from understudy.runs.run import Run

_BLANK_CONTRAST = 0.03  # mean deviation of the pixels of one image, and of one pixel over images
_BLANK_CHECKS = 5
_CRITICS_ADVICE = "raise method.critics.warm_iterations or use fewer privacy.subsets"


@dataclass(frozen=True)
class Drawn:
    """Generated images that remember how they were made: pixel values, or raw ones where the output is cut."""

    values: Tensor
    labels: Tensor | None
    latent: Tensor | None = None

    @property
    def pool(self) -> FakePool:
        """The images as the critics see them."""
        return FakePool(self.values.detach().clamp(0, 1), self.labels)


class GeneratorPlayer:
    """Draws images for queries and learns from their answers.

    Privacy: it sees sanitized answers and released embeddings only, so all it does is post-processing.
    """

    def __init__(self, run: Run, settings: LearnerConfig, anchor: Anchor | None = None) -> None:
        self.settings, self.anchor, self._random = settings, anchor, run.randomness.generator(run.device)
        config = _network(settings, run.plan.domain, anchor)
        self.live = build_generator(config).to(run.device)
        for weight in self.live.parameters():  # the fast layout for convolutions
            weight.data = weight.data.to(memory_format=torch.channels_last) if weight.dim() == 4 else weight.data
        self.average = build_generator(config.model_copy(update={"spectral_norm": False})).to(run.device)
        self._copy_weights(self.average, 0.0)
        self._optimizer = torch.optim.Adam(self.live.parameters(), settings.learning_rate, betas=(0.5, 0.9))
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, _Decay(run.plan.steps))
        self._precision = run.plan.config.runtime.precision
        self._blank_checks = 0

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside the average."""
        return {"live": self.live, "optimizer": self._optimizer, "schedule": self._schedule}

    def fit_anchor(self, run: Run, settings: FitConfig) -> None:
        """Fit the generator to the released embedding before the first query."""
        assert self.anchor is not None, "only where an embedding was released"
        self.anchor.fit(run, self.live, settings, self._random)
        self._copy_weights(self.average, 0.0)

    def pool(self, count: int) -> FakePool:
        """Generated images for the critics to train on."""
        with torch.no_grad():
            return self.imagine(count).pool

    def imagine(self, count: int, labels: Tensor | None = None, latent: Tensor | None = None) -> Drawn:
        """Images to ask about, with labels and latent values from the declared laws unless they are given."""
        labels = self.live.draw_labels(count, self._random) if labels is None else labels
        latent = self.live.draw_latent(count, self._random) if latent is None else latent
        with low_precision(self._precision, self._random.device):
            raw = self.live(latent, labels).float()
        values = raw.sigmoid() if self.live.config.output == "sigmoid" else raw
        return Drawn(values, labels if self.live.config.classes is not None else None, latent)

    def learn(self, drawn: Drawn, slopes_dp: Tensor) -> None:
        """One step along sanitized slopes (in units of the clip bound), the anchor's, and the pull back into [0, 1]."""
        values, pool = drawn.values.detach(), drawn.pool
        slopes = slopes_dp.view_as(values) + 2 * self.settings.outside_penalty * (values - pool.images)
        if self.anchor is not None and self.settings.embedding_pull:
            slopes += self.settings.embedding_pull * self.anchor.slopes(pool.images, pool.labels)
        self._optimizer.zero_grad(set_to_none=True)
        drawn.values.backward(slopes / len(values))
        self._optimizer.step()
        self._schedule.step()
        self._copy_weights(self.average, self.settings.average_decay)

    def check_alive(self, images: Tensor, advice: str = _CRITICS_ADVICE) -> float:
        """Contrast of generated images; a generator that stays blank or always draws one image stops the run.

        Privacy: decided from generated images alone, so stopping reveals nothing more.
        """
        contrast = min(float(images.flatten(1).std(dim=1).mean()), float(images.std(dim=0).mean()))
        self._blank_checks = self._blank_checks + 1 if contrast < _BLANK_CONTRAST else 0
        if self._blank_checks >= _BLANK_CHECKS:
            raise CheckError(
                f"generator: its images are blank or all alike (contrast {contrast:.3f}) at {_BLANK_CHECKS} checks in "
                f"a row, so the run stops before it spends more; lower method.generator.learning_rate, {advice}"
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


def _network(settings: LearnerConfig, domain: Domain, anchor: Anchor | None) -> GeneratorConfig:
    assert settings.width is not None, "decided by the plan"
    assert settings.output is not None, "decided by the plan"
    return GeneratorConfig(
        kind=settings.kind,
        shape=domain.shape,
        classes=domain.classes,
        latent=settings.latent,
        latent_law=settings.latent_law,
        width=settings.width,
        output=settings.output,
        spectral_norm=settings.spectral_norm and settings.kind == "resnet",
        label_weights=anchor.label_weights(domain) if anchor else None,
    )


class _Decay:
    """Learning rate over time: constant for half of the steps, then falling to a twentieth."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: int) -> float:
        left = 1 - step / max(1, self.steps)
        return max(0.05, min(1.0, 2 * left))
