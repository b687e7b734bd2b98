"""DPGAN: a GAN whose discriminator is trained by DP-SGD, with many discriminator steps for each generator step.

A. Bie, G. Kamath, G. Zhang, "Private GANs, Revisited", TMLR 2023, Algorithm 1. Symbols: T discriminator steps on
Poisson batches of B expected reals and exactly B fakes, C the clip bound, n_D discriminator steps for each generator
step.

Only the discriminator sees private data: each step sums per-example gradients that were clipped to C, adds noise once
and divides by the public constant 2B (``engines/dpsgd/step.py``). Generator steps and the adaptive step schedule
read generated images and the discriminator, and so cost nothing.

Additions to the paper, each of which can be turned off: with ``privacy.embedding_share`` a part of the budget buys a
noisy mean embedding (as in DP-MERF) from which the generator starts and to which it stays tied by
``method.embedding_pull``, and what is released may be an exponential average of the generator's weights.
The presets named ``paper`` are the settings of the paper, without either; ``gpu`` uses both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from understudy.configs import Config, Count, MethodConfig, Natural, NonNegative, Positive, Share, Size
from understudy.data.domain import Domain
from understudy.data.sampling import sampling_rate
from understudy.engines.embedding.config import EmbeddingConfig, with_embedding
from understudy.engines.teacher.config import TaughtConfig, TaughtPrivacy
from understudy.methods.adversarial.schedule import ScheduleConfig, StepSchedule
from understudy.methods.base import Method, SampledPrivacy, finish_plan
from understudy.methods.config import overlay
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from torch import nn

    from understudy.engines.dpsgd.step import PrivateStep, StepOptions
    from understudy.models.dpgan import DpganDiscriminatorConfig
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.runs.loop import Stateful
    from understudy.runs.run import Run

Adversary = Literal["logistic", "wasserstein"]  # the loss: of a discriminator's logits, or of a critic's scores
_PURPOSE = "discriminator steps"


class DpGanPrivacy(SampledPrivacy, TaughtPrivacy):
    """What changes epsilon; ``None`` is decided from the declared domain."""

    embedding_share: Share | None = None
    embedding_noise_multiplier: Positive | None = None  # decided by the share


class DpGanMethodConfig(Config):
    """The game between generator and discriminator; none of it changes epsilon. ``None`` is decided as in privacy."""

    loss: Adversary = "logistic"
    width: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] | None = None
    latent: Size | None = None
    learning_rate: Positive | None = None  # of the discriminator
    generator_learning_rate: Positive | None = None
    betas: tuple[Share, Share] = (0.5, 0.999)
    average_decay: Share = 0.98  # of the generator's weights; 0 releases the last ones
    head_start: Natural | None = None  # discriminator steps before the first generator step
    embedding_pull: NonNegative = 30.0  # towards a released embedding, beside the logistic loss
    discriminator_steps: Count | Literal["adaptive"] | None = None  # n_D
    schedule: ScheduleConfig = ScheduleConfig()  # of the adaptive n_D
    embedding: EmbeddingConfig = EmbeddingConfig(steps=600, batch=250)


class DpGanConfig(TaughtConfig):
    """The config of ``dpgan`` and of the methods on the same loop."""

    privacy: DpGanPrivacy = DpGanPrivacy()
    method: DpGanMethodConfig = DpGanMethodConfig()


def paper_preset(noise_multiplier: float, batch: int, steps: int, **method: Any) -> dict[str, Any]:
    """Settings of the paper: its networks and optimiser, no embedding and no average."""
    privacy = {
        "noise_multiplier": noise_multiplier,
        "batch": batch,
        "steps": steps,
        "clip": 1.0,
        "embedding_share": 0.0,
    }
    network = {"width": 64, "latent": 128, "learning_rate": 2e-4, "generator_learning_rate": 2e-4}
    return {"privacy": privacy, "method": {**network, "average_decay": 0.0, "head_start": 0, **method}}


# For 28x28 images on a graphics card: a longer fit, a stronger pull, and no generator step before five of the other.
_GPU = {
    "privacy": {"steps": 50_000, "batch": 512},
    "method": {
        "embedding": {"steps": 4000, "batch": 1000},
        "embedding_pull": 150.0,
        "schedule": {"ladder": [5, 10, 20, 50, 100, 200]},
    },
    "runtime": {"precision": "bf16"},
}
# At a small epsilon nearly all of it buys the embedding, which few latent values fit best; few generator steps follow.
_GPU_EPS1 = overlay(
    _GPU,
    {
        "privacy": {"steps": 5000, "embedding_share": 0.9},
        "method": {"latent": 16, "embedding_pull": 300.0, "schedule": {"ladder": [100, 200]}},
    },
)


class DpGan(Method):
    """DP-SGD on the discriminator; the generator learns from what that discriminator says about its images."""

    name: ClassVar[str] = "dpgan"
    summary: ClassVar[str] = "DP-SGD on the discriminator, many of its steps for each generator step, large batches"
    paper: ClassVar[str] = "Bie, Kamath, Zhang: Private GANs, Revisited (TMLR 2023)"
    config_type: ClassVar[type[MethodConfig]] = DpGanConfig
    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True
    presets: ClassVar = {
        "gpu": _GPU,
        "gpu-eps1": _GPU_EPS1,
        "paper-eps10": paper_preset(1.0, 128, 450_000, discriminator_steps=50),
        "paper-eps10-fashion": paper_preset(1.0, 128, 450_000, discriminator_steps=100),
        "paper-eps10-adaptive": paper_preset(
            2.0, 512, 174_000, discriminator_steps="adaptive", schedule={"threshold": 0.6}
        ),
        "paper-eps1": paper_preset(5.0, 128, 325_000, discriminator_steps=200),
        "paper-eps1-adaptive": paper_preset(
            14.0, 512, 165_000, discriminator_steps="adaptive", schedule={"threshold": 0.7}
        ),
    }

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """T Poisson-subsampled Gaussians, with the least noise that the budget allows."""
        assert isinstance(config, DpGanConfig)
        config, embedding = with_embedding(decided(config, domain), domain, budget)

        def events(multiplier: float) -> tuple[Event, ...]:
            return (config.privacy.event(domain, multiplier, _PURPOSE), *embedding)

        return finish_plan(self, config, domain, budget, events, self.costs(config, domain))

    def train(self, run: Run) -> Generator:
        """Algorithm 1: T discriminator steps, and a generator step after every n_D of them."""
        from understudy.engines.embedding.start import EmbeddingStart, informed
        from understudy.methods.adversarial.discriminator import discriminator_step
        from understudy.methods.adversarial.learner import AdversarialLearner, GanWatch
        from understudy.runs.loop import Resumable

        config, domain = run.plan.config_as(DpGanConfig), run.plan.domain
        start = EmbeddingStart.of_run(run, config.method.embedding)
        network = informed(self.generator_config(config, domain), start)
        learner = AdversarialLearner(run, network, config.method, _batch(config), start)
        discriminator = self.discriminator(config, domain).to(run.device)
        event = run.plan.events[0] if run.plan.events else None
        options = self.step_options(config)
        step_of = discriminator_step(run, discriminator, learner.live, options, config.method.loss, event)
        schedule = step_schedule(config.method)
        kept = {**learner.parts(), "discriminator": discriminator, "optimizer": step_of.optimizer, "schedule": schedule}
        progress = Resumable(run, learner.released, {**kept, **self.accompany(run, step_of)})
        if start and not progress.resumed:
            learner.fit_start(run, config.method.embedding)
        watch = GanWatch(run, learner, step_of, schedule)
        for step in progress.steps(run.plan.steps):
            if step_of.remaining == 0:
                progress.end_after(step - 1)
                break
            step_of.take()
            if step > (config.method.head_start or 0) and schedule.count_discriminator_step():
                loss, accuracy = learner.step(discriminator, schedule.generator_steps)
                climbed = schedule.count_generator_step(float(accuracy) if schedule.adaptive else None)
                watch.generator_step(step, loss, accuracy, climbed)
            watch.discriminator_step(step)
        return learner.released

    def assist(self, run: Run, told: Mapping[str, Any]) -> PrivateStep:
        """The discriminator's step, beside a generator of which the leader sends every change."""
        from understudy.methods.adversarial.discriminator import discriminator_step
        from understudy.models.generator import build_generator, read_generator_config

        config = run.plan.config_as(DpGanConfig)
        generator = build_generator(read_generator_config(told["generator"])).to(run.device)
        discriminator = self.discriminator(config, run.plan.domain).to(run.device)
        event = run.plan.events[0] if run.plan.events else None
        return discriminator_step(run, discriminator, generator, self.step_options(config), config.method.loss, event)

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator of the paper, as wide as the config decided."""
        from understudy.models.generator import GeneratorConfig

        assert isinstance(config, DpGanConfig)
        return GeneratorConfig(
            kind="dpgan",
            shape=domain.shape,
            classes=domain.classes,
            latent=config.method.latent or 128,
            width=config.method.width or 64,
        )

    def discriminator(self, config: DpGanConfig, domain: Domain) -> nn.Module:
        """The network that sees private data; it treats every example for itself."""
        from understudy.models.dpgan import DpganDiscriminator

        return DpganDiscriminator(discriminator_config(config, domain))

    def step_options(self, config: DpGanConfig) -> StepOptions:
        """What a discriminator step does."""
        from understudy.engines.dpsgd.step import StepOptions

        return StepOptions(
            _batch(config),
            config.privacy.clip,
            config.method.learning_rate or 2e-4,
            config.method.betas,
            images_per_person=config.privacy.images_per_person or 1,
            private=self.private,
        )

    def costs(self, config: DpGanConfig, domain: Domain) -> Costs:
        """Steps, memory and time of a decided config."""
        steps, start = config.privacy.steps or 1, config.method.embedding.steps if config.privacy.embedding_share else 0
        working_bytes, seconds, seconds_on_gpu = self.costs_of_step(config, domain)
        return Costs(
            steps=steps,
            memory_bytes=working_bytes + domain.nominal_records * domain.shape[0] * 4096 + 2**30,
            seconds=steps * seconds + 0.02 * start,
            seconds_on_gpu=steps * seconds_on_gpu + 0.005 * start,
        )

    def costs_of_step(self, config: DpGanConfig, domain: Domain) -> tuple[int, float, float]:
        """Bytes and seconds, on two cores and on a graphics card: from speeds seen at 28x28 and width 64."""
        examples = 2 * config.privacy.images_in_step(domain)
        relative = domain.shape[1] * domain.shape[2] / 784 * ((config.method.width or 64) / 64) ** 2
        at_once = min(examples, config.runtime.micro_batch)
        return int(3e6 * relative * at_once), 0.01 + 0.015 * relative * examples, 0.001 + 6e-6 * relative * examples

    def accompany(self, run: Run, step_of: PrivateStep) -> dict[str, Stateful]:
        """What else goes along with the steps and must be in a checkpoint; nothing here."""
        return {}


def discriminator_config(config: DpGanConfig, domain: Domain) -> DpganDiscriminatorConfig:
    """The image, the classes and the width that the config decided."""
    from understudy.models.dpgan import DpganDiscriminatorConfig

    return DpganDiscriminatorConfig(shape=domain.shape, classes=domain.classes, width=config.method.width or 64)


def decided(config: DpGanConfig, domain: Domain) -> DpGanConfig:
    """The config with everything filled in that was left to the declared domain."""
    small, records = domain.small, domain.nominal_units
    privacy, method = config.privacy, config.method
    share = privacy.embedding_share if privacy.embedding_share is not None else 0.5
    steps = privacy.steps or (1000 if small else 60_000)
    batch = privacy.batch or max(1, min(512, records // 10))
    sampling_rate(batch, records)  # refuses a batch above the declared number of records
    late = steps // 10 if share else 0
    rate = 1e-3 if small else 2e-4
    settings = {
        "width": method.width or (16 if small else 64),
        "latent": method.latent or (16 if small else 128),
        "discriminator_steps": method.discriminator_steps or (2 if small else "adaptive"),
        "learning_rate": method.learning_rate or rate,
        "generator_learning_rate": method.generator_learning_rate or rate / 2,
        "head_start": late if method.head_start is None else method.head_start,
    }
    return config.model_copy(
        update={
            "privacy": privacy.model_copy(update={"batch": batch, "steps": steps, "embedding_share": share}),
            "method": method.model_copy(update=settings),
        }
    )


def step_schedule(settings: DpGanMethodConfig) -> StepSchedule:
    """The schedule that the settings name."""
    fixed = settings.discriminator_steps
    return StepSchedule.fixed(fixed) if isinstance(fixed, int) else StepSchedule(settings.schedule)


def _batch(config: DpGanConfig) -> int:
    return config.privacy.batch or 1
