"""The learner: a generator in training, and the average of its weights, which is what is released.

What all families share is ``Learner``. ``SlopeLearner`` learns from sanitized image gradients (critics, transport,
teachers, federations). From random weights, raw values are cut to [0, 1] for the critics, and the answers are passed
straight through the cut with a pull on what lies outside: a sigmoid would saturate under the noise and the images would
go black for good. A generator that starts from a released embedding keeps being pulled towards it, which holds a
sigmoid alive; and a sigmoid lets the noise of the answers change hardly anything where a pixel is surely black or
white.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from understudy.devices import low_precision
from understudy.engines.config import LearnerConfig
from understudy.engines.critics.panel import FakePool
from understudy.engines.embedding.means import FitConfig
from understudy.engines.embedding.start import EmbeddingStart, informed
from understudy.errors import CheckError
from understudy.files import make_private_folder, write_bytes
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.runs.loop import Stateful
from understudy.runs.run import Run

_BLANK_CONTRAST = 0.03  # mean deviation of the pixels of one image, and of one pixel over images
_BLANK_CHECKS = 5
_CRITICS_ADVICE = "raise method.critics.warm_iterations or use fewer privacy.subsets"


@dataclass(frozen=True)
class Inputs:
    """What images are made from: latent values and labels."""

    latent: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Drawn:
    """Generated images that remember how they were made: pixel values, or raw ones where the output is cut."""

    values: Tensor
    labels: Tensor | None
    inputs: Inputs

    @cached_property
    def pool(self) -> FakePool:
        """The images as the critics see them."""
        return FakePool(self.values.detach().clamp(0, 1), self.labels)


@dataclass(frozen=True)
class LearnerOptions:
    """Adam's settings; whether an average is released, or the last weights; and what bounds those that learn."""

    learning_rate: float
    betas: tuple[float, float]
    averaged: bool = True
    spectral_norm: bool = False


class Learner:
    """A generator that learns; ``released`` is the average of its weights, or the last ones without averaging.

    Privacy: it sees sanitized values, released embeddings and its own images only, so all it does is post-processing.
    """

    def __init__(
        self, run: Run, network: GeneratorConfig, options: LearnerOptions, start: EmbeddingStart | None = None
    ) -> None:
        self.start, self._random = start, run.randomness.generator(run.device)
        self._precision = run.plan.config.runtime.precision
        self.live = build_generator(network.model_copy(update={"spectral_norm": options.spectral_norm})).to(run.device)
        self.released = build_generator(network).to(run.device) if options.averaged else self.live
        self.average(0.0)
        self._optimizer = torch.optim.Adam(self.live.parameters(), options.learning_rate, options.betas)

    def fit_start(self, run: Run, config: FitConfig) -> None:
        """Fit the generator to the released embedding before the first step."""
        assert self.start is not None, "only where an embedding was released"
        self.start.fit(run, self.live, config, self._random)
        self.average(0.0)

    def imagine(self, count: int, labels: Tensor | None = None) -> Drawn:
        """Images with labels and latent values from the declared laws, unless labels are given."""
        labels = self.live.draw_labels(count, self._random) if labels is None else labels
        return self.render(Inputs(self.live.draw_latent(count, self._random), labels))

    def render(self, inputs: Inputs) -> Drawn:
        """The images of some inputs by the generator as it is now."""
        with low_precision(self._precision, self._random.device):
            values = self.values(self.live(inputs.latent, inputs.labels))
        return Drawn(values, inputs.labels if self.live.config.classes is not None else None, inputs)

    def values(self, raw: Tensor) -> Tensor:
        """What is learnt through: the pixels."""
        return self.live.pixels(raw)

    @torch.no_grad()
    def average(self, decay: float) -> None:
        """Move the average towards the weights in effect (after spectral norm, so that it needs none)."""
        if self.released is self.live:
            return
        means, weights = [], []
        self.live.eval()
        for name, module in self.released.named_modules():
            for key, mean in module.named_parameters(recurse=False):
                means.append(mean)
                weights.append(getattr(self.live.get_submodule(name), key))
        torch._foreach_lerp_(means, weights, 1 - decay)
        self.live.train()


class SlopeLearner(Learner):
    """Draws images for queries and learns from their answers.

    Privacy: answers are sanitized before it sees them, so any number of steps on them is free.
    """

    def __init__(self, run: Run, config: LearnerConfig, start: EmbeddingStart | None = None) -> None:
        options = LearnerOptions(
            config.learning_rate,
            (config.first_decay, config.second_decay),
            spectral_norm=config.spectral_norm and config.kind == "resnet",
        )
        super().__init__(run, informed(config.network(run.plan.domain), start), options, start)
        self.config = config
        for weight in self.live.parameters():  # the fast layout for convolutions
            weight.data = weight.data.to(memory_format=torch.channels_last) if weight.dim() == 4 else weight.data
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, _Decay(run.plan.steps))
        self._blank_checks = 0

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside the average."""
        return {"live": self.live, "optimizer": self._optimizer, "schedule": self._schedule}

    def values(self, raw: Tensor) -> Tensor:
        """Pixels, or raw values where the output is cut: what lies outside is pulled back by ``learn``."""
        return self.live.pixels(raw.float()) if self.live.config.output == "sigmoid" else raw.float()

    def draw_inputs(self, count: int) -> Inputs:
        """What the images of a round are made from, by the declared law."""
        return Inputs(self.live.draw_latent(count, self._random), self.live.draw_labels(count, self._random))

    def show(self, inputs: Inputs) -> FakePool:
        """The images of some inputs as others see them."""
        with torch.no_grad():
            return self.render(inputs).pool

    def pool(self, count: int) -> FakePool:
        """Generated images for the critics to train on."""
        with torch.no_grad():
            return self.imagine(count).pool

    def learn(self, drawn: Drawn, slopes_dp: Tensor) -> None:
        """One step along sanitized slopes (in units of the clip bound), the start's, and the pull back into [0, 1]."""
        values, pool = drawn.values.detach(), drawn.pool
        slopes = slopes_dp.view_as(values) + 2 * self.config.outside_penalty * (values - pool.images)
        if self.start is not None and self.config.embedding_pull:
            slopes += self.config.embedding_pull * self.start.slopes(pool.images, pool.labels)
        self._optimizer.zero_grad(set_to_none=True)
        drawn.values.backward(slopes / len(values))
        self._optimizer.step()
        self._schedule.step()
        self.average(self.config.average_decay)

    def learn_from(self, inputs: Inputs, slopes_dp: Tensor, steps: int) -> None:
        """``steps`` steps over the answers of a round, each on its own part of them."""
        parts = zip(inputs.latent.chunk(steps), inputs.labels.chunk(steps), slopes_dp.chunk(steps), strict=True)
        for latent, labels, slopes in parts:
            self.learn(self.render(Inputs(latent, labels)), slopes)

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


class _Decay:
    """Learning rate over time: constant for half of the steps, then falling to a twentieth."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: int) -> float:
        left = 1 - step / max(1, self.steps)
        return max(0.05, min(1.0, 2 * left))


def save_picture(images: Tensor, columns: int, path: Path) -> None:
    """Write 8-bit images (N, C, H, W) as one PNG with ``columns`` of them in a row, for the owner of the run."""
    from io import BytesIO

    from PIL import Image

    count, channels, height, width = images.shape
    rows = count // columns
    tiled = images.view(rows, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    pixels = tiled.reshape(rows * height, columns * width, channels).cpu().numpy()
    content = BytesIO()
    Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(content, format="PNG")
    make_private_folder(path.parent, "run")
    write_bytes(path, content.getvalue(), private=True)
