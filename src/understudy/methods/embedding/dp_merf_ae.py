"""DP-MERF with an auto-encoder: a noisy mean embedding of codes, and a generator that draws codes for the decoder.

F. Harder, K. Adamczewski, M. Park, "Differentially Private Mean Embeddings with Random Features (DP-MERF) for Simple &
Practical Synthetic Data Generation", arXiv 2002.11603 (2020), the variant that the GS-WGAN paper compares with.

The budget is split in two, and the plan shows the split:

1. An auto-encoder is trained by DP-SGD on Poisson batches (``engines/dpsgd``).
2. Every image is encoded, and the class-wise sum of random Fourier features of the codes is released once with noise
   (``codes.py`` beside this file). Codes are kept inside the unit ball, so that the length scale can be a public
   constant; their features have norm one whatever they are, so the sensitivity is exact.

A small network then learns to draw codes with that embedding, which is post-processing; the decoder makes images of
them. Encoder and embedding stay in the private folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.configs import Config, Count, Fraction, MethodConfig, Positive, Share, Size
from understudy.data.domain import Domain
from understudy.data.sampling import sampling_rate
from understudy.engines.embedding.config import embedding_events
from understudy.engines.teacher.config import TaughtConfig, TaughtPrivacy
from understudy.methods.base import Method, SampledPrivacy, finish_plan
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.engines.dpsgd.step import PrivateStep
    from understudy.engines.embedding.means import NoisyMeans
    from understudy.methods.embedding.codes import CodeEmbedding
    from understudy.models.autoencoder import Autoencoder, DecoderGenerator, Encoder
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.runs.loop import Stateful
    from understudy.runs.run import Run


class AutoencoderConfig(Config):
    """An auto-encoder that is trained by DP-SGD. ``None`` is decided from the image size."""

    code: Size = 10  # numbers that an image is encoded to; the generator has as many latent values
    width: Size | None = None
    learning_rate: Positive = 2e-3
    betas: tuple[Share, Share] = (0.9, 0.999)


class CodeEmbeddingConfig(Config):
    """A mean embedding of codes and the fit of a generator to it; codes have norm at most one, hence the scale."""

    frequencies: Count = 1000
    length_scale: Positive = 0.3
    size_share: Fraction = 0.02  # the part of a record's squared norm that counts its class
    steps: Count = 2000
    batch: Count = 500
    learning_rate: Positive = 1e-3


_PURPOSE = "auto-encoder steps"
_REPORTS = 100


class DpMerfAePrivacy(SampledPrivacy, TaughtPrivacy):
    """What changes epsilon. Batch, steps, clip and ``noise_multiplier`` are those of the auto-encoder."""

    clip: Positive = 0.1
    embedding_share: Fraction = 0.4  # of epsilon; the auto-encoder gets the rest
    embedding_noise_multiplier: Positive | None = None  # decided by the share


class DpMerfAeMethodConfig(Config):
    """Auto-encoder, embedding and fit; none of it changes epsilon."""

    autoencoder: AutoencoderConfig = AutoencoderConfig()
    embedding: CodeEmbeddingConfig = CodeEmbeddingConfig()


class DpMerfAeConfig(TaughtConfig):
    """The config of ``dp-merf-ae``."""

    privacy: DpMerfAePrivacy = DpMerfAePrivacy()
    method: DpMerfAeMethodConfig = DpMerfAeMethodConfig()


# The auto-encoder's settings in Chen, Orekondy, Fritz (2020), C.4; with the embedding they cost 8.4 for 60,000 records.
_PAPER = {"privacy": {"batch": 500, "steps": 2040, "noise_multiplier": 0.686, "embedding_share": 0.6}}
# Larger batches and more steps, for many records and a graphics card: little noise is left for the embedding to mind.
_GPU = {
    "privacy": {"batch": 1000, "steps": 4000, "embedding_share": 0.2},
    "method": {"embedding": {"steps": 6000, "batch": 2000}},
}
# For 32x32 images in colour on a graphics card: longer codes and wider networks. Not measured yet.
_GPU_COLOUR = {
    "privacy": {"batch": 2000, "steps": 3000, "embedding_share": 0.2},
    "method": {
        "autoencoder": {"code": 32, "width": 32},
        "embedding": {"frequencies": 4000, "steps": 6000, "batch": 2000},
    },
}


class DpMerfAe(Method):
    """DP-SGD on an auto-encoder, then one Gaussian release of the class-wise mean embedding of codes."""

    name: ClassVar[str] = "dp-merf-ae"
    summary: ClassVar[str] = "an auto-encoder by DP-SGD, then one noisy release of the mean embedding of its codes"
    paper: ClassVar[str] = "Harder, Adamczewski, Park: DP-MERF (arXiv 2020), with auto-encoder"
    config_type: ClassVar[type[MethodConfig]] = DpMerfAeConfig
    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True
    presets: ClassVar = {"paper": _PAPER, "gpu": _GPU, "gpu-colour": _GPU_COLOUR}

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """T Poisson-sampled Gaussians and one unsampled one; the auto-encoder gets what the embedding leaves."""
        assert isinstance(config, DpMerfAeConfig)
        config = _decided(config, domain)
        privacy = config.privacy
        embedding = embedding_events(privacy.embedding_share, privacy.embedding_noise_multiplier, budget)
        noise = {"embedding_noise_multiplier": embedding[0].noise_multiplier}
        config = config.model_copy(update={"privacy": privacy.model_copy(update=noise)})

        def events(multiplier: float) -> tuple[Event, ...]:
            return (config.privacy.event(domain, multiplier, _PURPOSE), *embedding)

        plan = finish_plan(self, config, domain, budget, events, _costs(config, domain))
        return replace(plan, remarks=(_split(plan.events[:2], budget),))

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """What draws codes, and the decoder."""
        from understudy.models.generator import GeneratorConfig

        assert isinstance(config, DpMerfAeConfig)
        settings = config.method.autoencoder
        return GeneratorConfig(
            kind="decoder", shape=domain.shape, classes=domain.classes, latent=settings.code, width=settings.width or 1
        )

    def train(self, run: Run) -> Generator:
        """Train the auto-encoder, release the embedding of its codes once, then learn to draw codes."""
        from understudy.engines.embedding.means import report_fit
        from understudy.methods.embedding.codes import CodeEmbedding, CodeFit
        from understudy.models.autoencoder import Autoencoder
        from understudy.runs.loop import Resumable

        config, random = run.plan.config_as(DpMerfAeConfig), run.randomness.generator(run.device)
        settings = config.method
        generator = self._generator(run)
        encoder = _encoder(run)
        network = Autoencoder(encoder, generator.decoder).to(run.device)
        stepping = autoencoder_steps(run, network, config)
        embedding = CodeEmbedding.of_run(run, encoder, settings.autoencoder.code, settings.embedding)
        fit = CodeFit(generator, embedding, settings.embedding)
        kept: dict[str, Stateful] = {"encoder": encoder, "autoencoder_optimizer": stepping.optimizer, **fit.parts()}
        progress = Resumable(run, generator, kept)
        target = None
        for step in progress.steps(run.plan.steps):
            if step <= (config.privacy.steps or 0):
                _train_autoencoder(run, stepping, step)
                continue
            if target is None:
                if step - 1 == config.privacy.steps:
                    progress.save(step - 1)  # what is released now is about the codes of this encoder and no other
                target = _release_target(run, embedding, generator)
                fit.target = target
            report_fit(run, step, run.plan.steps, fit.step(random))
        run.lost_steps += run.plan.events[0].count - stepping.optimizer.steps
        if target is None:  # resumed behind the last step: the law of labels is not in a checkpoint
            _release_target(run, embedding, generator)
        return generator

    def assist(self, run: Run, told: Mapping[str, Any]) -> Assistance:
        """The auto-encoder's steps, or the class-wise sum of codes by the leader's encoder."""
        from understudy.engines.embedding.means import assist_means
        from understudy.methods.embedding.codes import CODES, CodeEmbedding
        from understudy.models.autoencoder import Autoencoder

        config, encoder = run.plan.config_as(DpMerfAeConfig), _encoder(run)
        if told["work"] != CODES:
            return autoencoder_steps(run, Autoencoder(encoder, self._generator(run).decoder).to(run.device), config)
        embedding = CodeEmbedding.of_shape(run, encoder, config.method.autoencoder.code, config.method.embedding)
        return assist_means(run, embedding, embedding.sharing)

    def _generator(self, run: Run) -> DecoderGenerator:
        """A generator whose decoder is trained as a part of the auto-encoder, and not by the fit."""
        from understudy.models.autoencoder import DecoderGenerator

        generator = DecoderGenerator(self.generator_config(run.plan.config, run.plan.domain)).to(run.device)
        generator.decoder.requires_grad_(False)
        return generator


def _train_autoencoder(run: Run, stepping: PrivateStep, step: int) -> None:
    """One step by DP-SGD; where a crash lost reserved steps there are fewer of them, never more."""
    if stepping.remaining:
        stepping.take()
    if step % max(1, run.plan.steps // _REPORTS) == 0 or step == run.plan.events[0].count:
        stepping.check_finite()
        run.report(step, autoencoder_steps=step)


def _release_target(run: Run, embedding: CodeEmbedding, generator: Generator) -> NoisyMeans:
    """The noisy class means; noisy class sizes become the generator's law of labels. In a resumed run: found again."""
    from understudy.engines.embedding.means import release_means

    target = release_means(run, embedding, run.plan.events[1], embedding.sharing)
    generator.config = target.inform(generator.config)
    return target


def _encoder(run: Run) -> Encoder:
    from understudy.models.autoencoder import Encoder

    settings = run.plan.config_as(DpMerfAeConfig).method.autoencoder
    return Encoder(run.plan.domain.shape, settings.code, settings.width or 1)


def autoencoder_steps(run: Run, network: Autoencoder, config: DpMerfAeConfig) -> PrivateStep:
    """DP-SGD on the auto-encoder of a run; the loss of an image is that of its reconstruction."""
    from understudy.engines.dpsgd.sharing import Sharing
    from understudy.engines.dpsgd.step import PrivateStep, StepOptions
    from understudy.models.autoencoder import reconstruction_losses

    settings, privacy = config.method.autoencoder, config.privacy
    images = privacy.images_per_person or 1
    options = StepOptions(
        privacy.batch or 1, privacy.clip, settings.learning_rate, settings.betas, images_per_person=images
    )
    return PrivateStep(
        run,
        network,
        lambda shown, _: ((shown.images,), lambda raw: reconstruction_losses(raw, shown.images)),
        options,
        run.plan.events[0],
        sharing=Sharing(),
    )


def _decided(config: DpMerfAeConfig, domain: Domain) -> DpMerfAeConfig:
    """The config with everything filled in that was left to the declared domain."""
    small, records = domain.small, domain.nominal_units
    batch = config.privacy.batch or max(1, min(500, records // 10))
    sampling_rate(batch, records)  # refuses a batch above the declared number of records
    privacy = {"batch": batch, "steps": config.privacy.steps or (500 if small else 2000)}
    settings = config.method.autoencoder
    width = {"width": settings.width or (8 if small else 16)}
    method = config.method.model_copy(update={"autoencoder": settings.model_copy(update=width)})
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=privacy), "method": method})


def _split(events: tuple[Event, ...], budget: Budget) -> str:
    """How epsilon is split, for the plan."""
    steps, embedding = (accounting.certified_epsilon([event], budget.delta) for event in events)
    return (
        f"split: the auto-encoder's {events[0].count} steps alone would cost epsilon {steps:.4g}, the embedding alone "
        f"{embedding:.4g}; together they compose to less than the sum"
    )


def _costs(config: DpMerfAeConfig, domain: Domain) -> Costs:
    """Steps, memory and time of a decided config."""
    settings, privacy, fit = config.method.autoencoder, config.privacy, config.method.embedding
    steps, batch = privacy.steps or 1, privacy.images_in_step(domain)
    relative = domain.values / 784 * ((settings.width or 16) / 16) ** 2
    at_once = min(2 * batch, config.runtime.micro_batch)
    work = 12.0 * fit.steps * fit.batch * settings.code * fit.frequencies
    return Costs(
        steps=steps + fit.steps,
        memory_bytes=int(5e5 * relative * at_once) + domain.nominal_records * domain.values + 2**30,
        seconds=steps * (0.02 + 5e-4 * relative * batch) + work / 5e9 + fit.steps * 5e-3,
        seconds_on_gpu=steps * (0.008 + 5e-6 * relative * batch) + work / 5e12 + fit.steps * 4e-3,
    )
