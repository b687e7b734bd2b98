"""DP-MERF: one noisy mean embedding of the data, and a generator that is fitted to it.

F. Harder, K. Adamczewski, M. Park, "DP-MERF: Differentially Private Mean Embeddings with Random Features for Practical
Privacy-preserving Data Generation", AISTATS 2021.

With random frequencies w_1..w_F, drawn without looking at the data, an image x has the random Fourier features

    phi(x) = [cos(w_1 x), ..., cos(w_F x), sin(w_1 x), ..., sin(w_F x)] / sqrt(F),        |phi(x)| = 1.

The private data are read once, for the class-wise sum  S = sum_i e(y_i) (x) [sqrt(1-a) phi(x_i), sqrt(a)], to which
Gaussian noise is added. The constant last feature makes the noisy class sizes a part of the same release. Everything
after it is post-processing: the generator minimises the distance between the noisy embedding and that of its images.

Departures from the paper: the length scale is a public constant times the square root of the number of pixels (the
median heuristic would read private data), several length scales are mixed, and class sizes cost no budget of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from understudy._lazy import LazyModule
from understudy.data.domain import Domain
from understudy.methods.base import Method, Plan
from understudy.methods.configuration import MethodConfig
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from understudy.models import generator as generators
    from understudy.privacy import mechanisms
    from understudy.training import batches, states
    from understudy.training.run import Run
else:
    torch = LazyModule("torch")
    generators = LazyModule("understudy.models.generator")
    mechanisms = LazyModule("understudy.privacy.mechanisms")
    batches = LazyModule("understudy.training.batches")
    states = LazyModule("understudy.training.states")

_PURPOSE = "class-wise mean embedding"


class DpMerfSettings(BaseModel):
    """The embedding and the fit; none of it changes epsilon."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    frequencies: Annotated[int, Field(ge=1)] = 4000
    length_scales: tuple[Annotated[float, Field(gt=0)], ...] = (0.36,)  # in units of the square root of the pixel count
    size_share: Annotated[float, Field(gt=0, lt=1)] = 0.02  # a: the part of a unit's squared norm that counts its class
    steps: Annotated[int, Field(ge=1)] = 3000
    batch: Annotated[int, Field(ge=1)] = 500
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    latent: Annotated[int, Field(ge=1)] = 16
    width: Annotated[int, Field(ge=1)] = 32


class DpMerfConfig(MethodConfig):
    """The config of ``dp-merf``."""

    method: DpMerfSettings = DpMerfSettings()


class DpMerf(Method):
    """One Gaussian release of the class-wise mean embedding; the generator is fitted to it by MMD."""

    name: ClassVar[str] = "dp-merf"
    summary: ClassVar[str] = "one noisy release of the mean embedding; a generator is fitted to it. Seconds to minutes"
    paper: ClassVar[str] = "Harder, Adamczewski, Park: DP-MERF (AISTATS 2021)"
    config_type: ClassVar[type[MethodConfig]] = DpMerfConfig

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """One execution of an unsampled Gaussian, with the least noise that the budget allows."""
        assert isinstance(config, DpMerfConfig)
        multiplier = config.privacy.noise_multiplier or accounting.calibrate(lambda noise: [_event(noise)], budget)
        epsilon = accounting.certified_epsilon([_event(multiplier)], budget.delta)
        settings = config.method
        pixels = domain.shape[0] * domain.shape[1] * domain.shape[2]
        work = 12.0 * settings.steps * settings.batch * pixels * settings.frequencies
        return Plan(
            method=self.name,
            config=config.with_noise(multiplier),
            domain=domain,
            budget=budget,
            events=(_event(multiplier),),
            epsilon=epsilon,
            steps=settings.steps,
            memory_bytes=int(8 * settings.frequencies * (pixels + 4 * config.runtime.micro_batch)) + 500 * 2**20,
            seconds=work / 5e10 + settings.steps * 5e-3,
        )

    def train(self, run: Run) -> generators.Generator:
        """Release the embedding once, then fit the generator to it; only the first of the two touches the data."""
        embedding = _Embedding.draw_or_load(run)
        total_dp = _release_embedding(run, embedding)
        return _fit(run, embedding, total_dp)


def _event(noise_multiplier: float) -> Event:
    return Event(noise_multiplier=noise_multiplier, sensitivity="C", count=1)


class _Embedding:
    """Random Fourier features with public frequencies; the constant last feature counts records."""

    def __init__(self, frequencies: Tensor, size_share: float) -> None:
        self.frequencies, self.size_share = frequencies, size_share

    @classmethod
    def draw_or_load(cls, run: Run) -> _Embedding:
        """Frequencies for this run: drawn without the data and kept, because the noisy embedding belongs to them."""
        from understudy.files import read_tensors, write_tensors

        settings, path = _settings(run), run.private / "frequencies.safetensors"
        if not path.exists():
            write_tensors(path, {"frequencies": _draw_frequencies(run)})
        return cls(read_tensors(path)[0]["frequencies"].to(run.device), settings.size_share)

    def __call__(self, images: Tensor) -> Tensor:
        """Unit-norm features (N, 2F + 1) of images (N, pixels) in [0, 1]."""
        phase = images @ self.frequencies
        scale = ((1 - self.size_share) / self.frequencies.shape[1]) ** 0.5
        size = torch.full((len(images), 1), self.size_share**0.5, device=images.device)
        return torch.cat([phase.cos() * scale, phase.sin() * scale, size], dim=1)


def _draw_frequencies(run: Run) -> Tensor:
    settings = _settings(run)
    pixels = math.prod(run.plan.domain.shape)
    scales = torch.tensor(settings.length_scales) * pixels**0.5
    of_frequency = scales[torch.arange(settings.frequencies) % len(scales)]
    return torch.randn(pixels, settings.frequencies, generator=run.randomness.generator()) / of_frequency


def _release_embedding(run: Run, embedding: _Embedding) -> Tensor:
    """The noisy class-wise sum of embeddings, (classes, 2F + 1).

    Privacy: a record adds one row of norm at most C = 1 to one class (add-remove, sensitivity C); one Gaussian event,
    no sampling, recorded before the sum is used. Harder et al., Section 3; the sum is never divided by a private count.
    """
    config = run.plan.config
    plan = mechanisms.MechanismConfig(clip=1.0, event=run.plan.events[0], planned=1, purpose=_PURPOSE)
    mechanism = mechanisms.GaussianSum(run.ledger, run.randomness, plan)

    def compute_total() -> Tensor:
        features = 2 * embedding.frequencies.shape[1] + 1
        total = torch.zeros(run.plan.domain.classes or 1, features, dtype=torch.float64, device=run.device)
        for start in range(0, len(run.data), config.runtime.micro_batch):
            selection = slice(start, start + config.runtime.micro_batch)
            images_private, labels_private = batches.load_batch(run.data, selection, run.device)
            mechanism.accumulate(total, embedding(images_private.flatten(1)), labels_private)
        mechanism.check_finite()
        return total

    return mechanism.release_once(compute_total, run.private / "embedding.safetensors").to(run.device)


def _fit(run: Run, embedding: _Embedding, total_dp: Tensor) -> generators.Generator:
    """Minimise the squared distance of the class-wise mean embeddings: post-processing, no private value is read."""
    settings = _settings(run)
    target_dp, weights_dp = _class_means(total_dp, settings.size_share, run.plan.domain.nominal_records)
    generator = generators.build_generator(_generator_config(run, weights_dp)).to(run.device)
    optimizer = torch.optim.Adam(generator.parameters(), settings.learning_rate, betas=(0.5, 0.999))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    progress = states.Resumable(run, generator, {"optimizer": optimizer, "schedule": schedule})
    random = run.randomness.generator(run.device)
    for step in progress.steps(settings.steps):
        loss = _distance(generator, embedding, (target_dp, weights_dp), settings.batch, random)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(1, settings.steps // 100) == 0:
            run.report(step, loss=float(loss.detach()))
    return generator


def _distance(
    generator: generators.Generator,
    embedding: _Embedding,
    target: tuple[Tensor, Tensor],
    batch: int,
    random: torch.Generator,
) -> Tensor:
    """Squared distance of class-wise mean embeddings, weighted by class.

    The squared norm of a mean over few images is too large by (1 - |mean|^2) / n, which would reward images of a class
    for being alike; with |phi| = 1 the unbiased value is (n |mean|^2 - 1) / (n - 1).
    """
    target_dp, weights_dp = target
    classes, size = len(target_dp), max(2, batch // len(target_dp))
    labels = torch.arange(classes, device=random.device).repeat_interleave(size)
    images = generator.pixels(generator(generator.draw_latent(len(labels), random), labels))
    means = embedding(images.flatten(1))[:, :-1].view(classes, size, -1).mean(dim=1)
    norms = means.square().sum(dim=1) * size / (size - 1)
    return (weights_dp * (norms - 2 * (means * target_dp).sum(dim=1) + target_dp.square().sum(dim=1))).sum()


def _class_means(total_dp: Tensor, size_share: float, nominal_records: int) -> tuple[Tensor, Tensor]:
    """Mean embedding of each class and its share of the records, both from the noisy sum."""
    smallest = 0.01 * nominal_records / len(total_dp)
    sizes_dp = (total_dp[:, -1] / size_share**0.5).clamp(min=smallest)
    return (total_dp[:, :-1] / sizes_dp[:, None]).float(), (sizes_dp / sizes_dp.sum()).float()


def _generator_config(run: Run, weights_dp: Tensor) -> generators.GeneratorConfig:
    domain, settings = run.plan.domain, _settings(run)
    return generators.GeneratorConfig(
        kind="dcgan",
        shape=domain.shape,
        classes=domain.classes,
        latent=settings.latent,
        width=settings.width,
        label_weights=tuple(round(float(weight), 6) for weight in weights_dp) if domain.labelled else None,
    )


def _settings(run: Run) -> DpMerfSettings:
    assert isinstance(run.plan.config, DpMerfConfig)
    return run.plan.config.method
