"""Diffusion models by DP-SGD, from a start that a part of the budget buys.

T. Dockhorn, T. Cao, A. Vahdat, K. Kreis, "Differentially Private Diffusion Models" (DPDM), TMLR 2023; the start from
noisy means of images: K. Li et al., "From Easy to Hard: Building a Shortcut for Differentially Private Image Synthesis"
(DP-FETA), IEEE S&P 2025; network, loss and sampler: Karras et al. (EDM), see ``models/diffusion.py``.

Symbols: T steps on Poisson batches of B expected records; K noise draws of each record in a step, whose gradients are
summed before they are clipped to C, once (``engines/dpsgd/step.py``); ln sigma ~ Normal(P_mean, P_std), stratified over
the K draws of one record and never over a batch. What is released is an exponential average of the weights.

``privacy.start`` says what the network is trained on before it sees a record, at no further cost:

- ``embedding``: samples of a generator that is fitted to a noisy mean embedding (as in DP-MERF), which takes
  ``privacy.embedding_share`` of epsilon and also tells the sizes of the classes;
- ``central-images``: noisy class-wise means of a few Poisson samples (``central_images.py``);
- ``none``: nothing.

``method.warm_up.leaves`` puts images of chance alone among them (``engines/dead_leaves.py``), or stands alone where
nothing is bought: they teach edges and textures, which a noisy mean does not know.

The presets ``gpu-colour`` and ``gpu-colour-eps1`` are for images of 3x32x32, at epsilon 10 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from understudy.configs import Config, Count, Fraction, MethodConfig, Natural, Positive, Share, without_defaults
from understudy.data.domain import Domain
from understudy.data.sampling import sampling_rate
from understudy.engines.embedding.config import EmbeddingConfig, with_embedding
from understudy.engines.teacher.config import TaughtConfig, TaughtPrivacy
from understudy.errors import InputError
from understudy.methods.base import Method, SampledPrivacy, finish_plan
from understudy.methods.config import overlay
from understudy.methods.diffusion.costs import costs
from understudy.models.sampler import SamplerConfig, UNetBlocks, UNetWidths
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.plan import Plan

if TYPE_CHECKING:
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.engines.dpsgd.step import PrivateStep
    from understudy.engines.embedding.start import EmbeddingStart
    from understudy.methods.diffusion.learner import Denoiser
    from understudy.models.generator import DiffusionGeneratorConfig, Generator
    from understudy.runs.run import Run

_PURPOSE = "denoising steps"
CENTRAL_IMAGES = "class-wise central images"


class CentralImagesPrivacy(Config):
    """Noisy class-wise means: how many Poisson samples, their rate, and what part of epsilon they take together."""

    queries: Count = 5
    rate: Fraction = 0.1
    share: Fraction = 0.02
    noise_multiplier: Positive | None = None  # decided by the share


class DpDiffusionPrivacy(SampledPrivacy, TaughtPrivacy):
    """What changes epsilon; ``None`` is decided from the declared domain."""

    start: Literal["embedding", "central-images", "none"] = "embedding"
    embedding_share: Share | None = None
    embedding_noise_multiplier: Positive | None = None  # decided by the share
    central_images: CentralImagesPrivacy = CentralImagesPrivacy()


class WarmUpConfig(Config):
    """Ordinary training on images that are released already."""

    images: Count = 100_000  # drawn from the generator that was fitted to an embedding
    steps: Natural | None = None
    batch: Count | None = None
    learning_rate: Positive = 1e-3
    leaves: Share = 0.0  # the part of the images that is dead leaves, made of chance alone

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without leaves a config looks as it always did, so that older versions can read it."""
        return without_defaults(self, write(self), ("leaves",))


class DpDiffusionMethodConfig(Config):
    """Network, loss, learning and sampler; none of it changes epsilon. ``None`` is decided from the image size."""

    widths: UNetWidths | None = None  # one for each resolution
    blocks: UNetBlocks = 2
    draws: Annotated[int, Field(ge=1, le=256)] = 4  # K
    paired: bool = True  # draws in pairs of opposite noise, where K is even
    noise_mean: float = -0.8  # of ln sigma
    noise_deviation: Positive = 1.3
    mirrored: bool = False  # every noisy version shows the image or its mirror image: for things, not for writing
    label_dropout: Share = 0.1  # so often the class is not told, which guidance needs
    learning_rate: Positive | None = None
    rising_steps: Natural = 20  # in which it is reached: Adam's first steps would spoil the start
    last_rate: Annotated[float, Field(ge=0, le=1)] = 0.1  # of it, to which it falls in a straight line
    betas: tuple[Share, Share] = (0.9, 0.999)
    average_decay: Share = 0.99
    guide_after: Share = 0.5  # of the steps, after which the average is kept as the guide of sampler.autoguidance
    warm_up: WarmUpConfig = WarmUpConfig()
    embedding: EmbeddingConfig = EmbeddingConfig(steps=600, batch=250)
    sampler: SamplerConfig = SamplerConfig(steps=40, churn=20.0)

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Who uses neither mirror images nor a guide writes what older versions wrote, and can read."""
        young = ("mirrored",) if self.sampler.autoguidance else ("mirrored", "guide_after")
        return without_defaults(self, write(self), young)


class DpDiffusionConfig(TaughtConfig):
    """The config of ``dp-diffusion``."""

    privacy: DpDiffusionPrivacy = DpDiffusionPrivacy()
    method: DpDiffusionMethodConfig = DpDiffusionMethodConfig()


# For 28x28 images on a black ground, on a graphics card. Weights keep some of the noise of their training, and it shows
# as a faint grey: many steps with fresh noise mend strokes, the floor mends the ground. Nothing here uses guidance, so
# the class is always told.
_GPU = {
    "privacy": {"batch": 3072, "steps": 1200, "embedding_share": 0.2},
    "method": {
        "widths": [48, 96, 96],
        "draws": 4,
        "label_dropout": 0.0,
        "learning_rate": 1.1e-3,
        "rising_steps": 60,
        "last_rate": 0.02,
        "average_decay": 0.995,
        "embedding": {"steps": 3000, "batch": 1000},
        "warm_up": {"steps": 1000, "batch": 1024},
        "sampler": {"steps": 120, "churn": 50.0, "floor": 0.05},
    },
    "runtime": {"precision": "bf16", "micro_batch": 4096},
}
# Where noise outweighs what a step learns, a smaller batch costs hardly anything, so there is time for many steps and
# for more draws of each record.
_GPU_EPS1 = overlay(
    _GPU,
    {
        "privacy": {"batch": 512, "steps": 2400, "embedding_share": 0.3},
        "method": {
            "widths": [32, 64, 64],
            "draws": 8,
            "label_dropout": 0.1,
            "learning_rate": 1e-3,
            "rising_steps": 100,
            "average_decay": 0.998,
        },
        "runtime": {"micro_batch": 4608},  # a whole step in one pass
    },
)
# For 32x32 images in colour on a graphics card. Leaves have taught the network edges and textures, so private steps may
# look at more noise, where outlines and colours are decided. Widths that are powers of two fill a card best. The batch
# is left to the declared number of records. Images are led away from what the network said at half of its steps;
# whether they may be mirrored only their owner knows.
_GPU_COLOUR = {
    "privacy": {"steps": 600, "embedding_share": 0.15},
    "method": {
        "widths": [64, 128, 128],
        "draws": 2,
        "noise_mean": -0.5,
        "label_dropout": 0.0,
        "learning_rate": 1e-3,
        "rising_steps": 50,
        "last_rate": 0.02,
        "average_decay": 0.99,
        "embedding": {"steps": 2000, "batch": 500},
        "warm_up": {"steps": 800, "batch": 512, "leaves": 0.5},
        "sampler": {"steps": 50, "churn": 20.0, "autoguidance": 2.0},
    },
    "runtime": {"precision": "bf16", "micro_batch": 4096},
}
_GPU_COLOUR_EPS1 = overlay(
    _GPU_COLOUR,
    {
        "privacy": {"batch": 512, "steps": 1000, "embedding_share": 0.3},
        "method": {"draws": 4, "rising_steps": 100, "average_decay": 0.998, "sampler": {"autoguidance": 1.0}},
    },
)
# As published, but with a sound sampling: K 32, B 4096, 300 and 150 epochs of 60,000 records.
_DPDM = {
    "privacy": {"start": "none", "batch": 4096, "steps": 4395},
    "method": {
        "widths": [32, 64, 64],
        "draws": 32,
        "paired": False,
        "noise_mean": -1.2,
        "noise_deviation": 1.2,
        "learning_rate": 3e-4,
        "rising_steps": 0,
        "last_rate": 1.0,
        "average_decay": 0.999,
        "sampler": {"steps": 500, "churn": 50.0},
    },
    "runtime": {"precision": "bf16", "micro_batch": 4096},
}
_DP_FETA = overlay(
    _DPDM,
    {
        "privacy": {"start": "central-images", "steps": 2197},
        "method": {"warm_up": {"steps": 2000, "batch": 256, "learning_rate": 3e-4}},
    },
)
_CPU = {"privacy": {"batch": 256, "steps": 120}, "method": {"widths": [16, 32], "blocks": 1}}


class DpDiffusion(Method):
    """DP-SGD on a network that takes noise away from images; samples are drawn from noise, step by step."""

    name: ClassVar[str] = "dp-diffusion"
    summary: ClassVar[str] = "a diffusion model by DP-SGD, started from a noisy mean embedding. For a graphics card"
    paper: ClassVar[str] = "Dockhorn, Cao, Vahdat, Kreis: DPDM (TMLR 2023); Li et al.: DP-FETA (S&P 2025)"
    config_type: ClassVar[type[MethodConfig]] = DpDiffusionConfig
    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True
    presets: ClassVar = {
        "gpu": _GPU,
        "gpu-eps1": _GPU_EPS1,
        "gpu-colour": _GPU_COLOUR,
        "gpu-colour-eps1": _GPU_COLOUR_EPS1,
        "dpdm": _DPDM,
        "dp-feta": _DP_FETA,
        "cpu": _CPU,
    }

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """T Poisson-subsampled Gaussians and what the start costs, with the least noise that the budget allows."""
        assert isinstance(config, DpDiffusionConfig)
        config, start = _with_start(_decided(config, domain), domain, budget)

        def events(multiplier: float) -> tuple[Event, ...]:
            return (config.privacy.event(domain, multiplier, _PURPOSE), *start)

        return finish_plan(self, config, domain, budget, events, costs(config, domain))

    def train(self, run: Run) -> Generator:
        """Release the start, warm up on it, then T private steps; the average of the weights is the generator."""
        from understudy.engines.embedding.start import EmbeddingStart, informed
        from understudy.methods.diffusion.learner import Denoiser
        from understudy.runs.loop import Resumable

        config = run.plan.config_as(DpDiffusionConfig)
        start = EmbeddingStart.of_run(run, config.method.embedding)
        denoiser = Denoiser(run, informed(self.generator_config(config, run.plan.domain), start), config.method)
        rate, stepping = config.method.learning_rate or 1e-3, _denoising_step(run, denoiser)
        progress = Resumable(run, denoiser.released, {"live": denoiser.live, "optimizer": stepping.optimizer})
        if not progress.resumed:
            _warm_up(run, denoiser, start)
        for step in progress.steps(run.plan.steps):
            if stepping.remaining == 0:
                progress.end_after(step - 1)
                break
            stepping.optimizer.rate = rate * _share_of_rate(config.method, step, run.plan.steps)
            stepping.take()
            denoiser.average(step)
            if run.report_due(step):
                run.diagnose(step, **stepping.diagnostics())
                run.report(step, denoising_steps=step)
                denoiser.show(step)
        return denoiser.released

    def generator_config(self, config: MethodConfig, domain: Domain) -> DiffusionGeneratorConfig:
        """Widths, sampler and with it whether there is a guide."""
        from understudy.models.generator import DiffusionGeneratorConfig

        assert isinstance(config, DpDiffusionConfig)
        assert config.method.widths is not None, "decided by the plan"
        return DiffusionGeneratorConfig(
            shape=domain.shape,
            classes=domain.classes,
            widths=config.method.widths,
            blocks=config.method.blocks,
            sampler=config.method.sampler,
        )

    def assist(self, run: Run, told: Mapping[str, Any]) -> Assistance:
        """The denoising step, with a network of the leader's shape; or the sums of central images."""
        from understudy.methods.diffusion.central_images import CENTRAL_IMAGES_SHARED, assist_central_images
        from understudy.methods.diffusion.learner import Denoiser
        from understudy.models.generator import DiffusionGeneratorConfig

        if told["work"] == CENTRAL_IMAGES_SHARED:
            return assist_central_images(run)
        network = DiffusionGeneratorConfig.model_validate(told["generator"])
        return _denoising_step(run, Denoiser(run, network, run.plan.config_as(DpDiffusionConfig).method))


def _denoising_step(run: Run, denoiser: Denoiser) -> PrivateStep:
    """The private step. Privacy: those of ``PrivateStep``, one execution of the first event each."""
    from understudy.engines.dpsgd.sharing import Sharing
    from understudy.engines.dpsgd.step import PrivateStep, StepOptions

    config = run.plan.config_as(DpDiffusionConfig)
    options = StepOptions(
        config.privacy.batch or 1,
        config.privacy.clip,
        config.method.learning_rate or 1e-3,
        config.method.betas,
        rows=config.method.draws,
        images_per_person=config.privacy.images_per_person or 1,
    )
    sharing = Sharing({"generator": denoiser.live.config.model_dump(mode="json")})
    network, objective = denoiser.live.network, denoiser.denoising.objective
    return PrivateStep(run, network, objective, options, run.plan.events[0], sharing=sharing)


def _warm_up(run: Run, denoiser: Denoiser, start: EmbeddingStart | None) -> None:
    """Train on what the start released, and on leaves. Privacy: post-processing; no record is looked at."""
    from understudy.methods.diffusion.central_images import release_central_images

    config = run.plan.config_as(DpDiffusionConfig)
    if start is not None:
        denoiser.warm_up(denoiser.imagined(start, config.method.embedding))
    elif config.privacy.start == "central-images":
        denoiser.warm_up(release_central_images(run), moved=True)
    elif config.method.warm_up.leaves:
        denoiser.warm_up(None)


def _share_of_rate(method: DpDiffusionMethodConfig, step: int, steps: int) -> float:
    """The learning rate of a step, as a share: it rises at first, then falls in a straight line."""
    fallen = 1 - (1 - method.last_rate) * (step - 1) / steps
    return fallen * min(1.0, step / max(1, method.rising_steps))


def _decided(config: DpDiffusionConfig, domain: Domain) -> DpDiffusionConfig:
    """The config with everything filled in that was left to the declared domain."""
    small, records, privacy, method = domain.small, domain.nominal_units, config.privacy, config.method
    _check_start(privacy)
    _check_guidance(method, domain)
    share = 0.3 if privacy.embedding_share is None else privacy.embedding_share
    batch = privacy.batch or max(1, min(4096, records // 5))
    sampling_rate(batch, records)  # refuses a batch above the declared number of records
    warm_up = {"steps": 600 if small else 1500, "batch": 256 if small else 1024}
    given = method.warm_up.model_dump(exclude_none=True)
    settings = {
        "widths": method.widths or _widths(domain),
        "learning_rate": method.learning_rate or (1e-3 if small else 5e-4),
        "warm_up": method.warm_up.model_copy(update={**warm_up, **given}),
    }
    decided = {
        "batch": batch,
        "steps": privacy.steps or (200 if small else 1000),
        "embedding_share": share if privacy.start == "embedding" else 0.0,
    }
    return config.model_copy(
        update={"privacy": privacy.model_copy(update=decided), "method": method.model_copy(update=settings)}
    )


def _check_start(privacy: DpDiffusionPrivacy) -> None:
    """Refuse settings of a start that the run does not have: they would be recorded and mean nothing."""
    share, noise = privacy.embedding_share, privacy.embedding_noise_multiplier
    if privacy.start == "embedding" and share == 0:
        raise InputError(
            "privacy.embedding_share: nothing is left for the embedding that privacy.start asks for; pass a share, or "
            "privacy.start=none"
        )
    if privacy.start != "embedding" and (share or noise):
        name, given = ("embedding_share", share) if share else ("embedding_noise_multiplier", noise)
        raise InputError(
            f"privacy.{name}: {given:g} is for an embedding, but privacy.start is {privacy.start!r}; leave one of them "
            "out"
        )
    if privacy.start != "central-images" and privacy.central_images != CentralImagesPrivacy():
        raise InputError(
            f"privacy.central_images: set, but privacy.start is {privacy.start!r}; pass privacy.start=central-images, "
            "or leave them out"
        )


def _check_guidance(method: DpDiffusionMethodConfig, domain: Domain) -> None:
    """Refuse to lead images away from what there is not, and a guide that no image is led away from."""
    if method.sampler.guidance and not (domain.labelled and method.label_dropout):
        why = "method.label_dropout is 0" if domain.labelled else "the images have no classes"
        raise InputError(
            f"method.sampler.guidance: {method.sampler.guidance:g}, but {why}; pass method.sampler.guidance=0"
            + (", or method.label_dropout=0.1" if domain.labelled else "")
        )
    if method.guide_after != DpDiffusionMethodConfig().guide_after and not method.sampler.autoguidance:
        raise InputError(
            f"method.guide_after: {method.guide_after:g}, but no image is led away from a guide, as "
            "method.sampler.autoguidance is 0; pass method.sampler.autoguidance=1, or leave it out"
        )


def _widths(domain: Domain) -> tuple[int, ...]:
    """So many resolutions that the last is 4 to 8 pixels wide."""
    side = max(domain.shape[1:])
    return (16, 32) if domain.small else (32, 64, 64) if side <= 32 else (32, 64, 64, 64)


def _with_start(
    config: DpDiffusionConfig, domain: Domain, budget: Budget
) -> tuple[DpDiffusionConfig, tuple[Event, ...]]:
    """The config with the noise of its start filled in, and the events of the start."""
    if config.privacy.start != "central-images":
        return with_embedding(config, domain, budget)
    if domain.nominal_people is not None:
        raise InputError(
            "privacy.start: central-images takes one image of one class of each record, not all of a person; pass "
            "privacy.start=embedding where people are declared"
        )
    settings = config.privacy.central_images

    def event(noise: float) -> Event:
        sampling = PoissonSampling(rate=settings.rate)
        return Event(
            noise_multiplier=noise, sensitivity="C", sampling=sampling, count=settings.queries, purpose=CENTRAL_IMAGES
        )

    part = Budget(budget.epsilon * settings.share, budget.delta)
    noise = settings.noise_multiplier or accounting.calibrate(lambda multiplier: [event(multiplier)], part)
    decided = {"central_images": settings.model_copy(update={"noise_multiplier": noise})}
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=decided)}), (event(noise),)
