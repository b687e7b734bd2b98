"""DP-Sinkhorn: the generator follows the Sinkhorn divergence; only its gradient on generated images is sanitized.

T. Cao, A. Bie, A. Vahdat, S. Fidler, K. Kreis, "Don't Generate Me: Training Differentially Private Generative Models
with Sinkhorn Divergence", NeurIPS 2021. Symbols: T steps on Poisson batches of B expected records, C the clip bound.

There is no discriminator. In each step the generated images are matched with a batch of records by entropic transport
(``sinkhorn.py`` beside this file), and the gradient of the divergence with respect to the generated images is clipped
jointly, noised, and passed on to the generator.

What a record can change: it lies in one cell of the batch, so it changes the gradient block of that cell, from one
matrix of norm at most C to any other. That is a sensitivity of 2C, and nothing smaller holds: where a cell has one
record, a further one can turn the whole clipped gradient round. ``GaussianBlocks`` proves that a step is one execution
of a Poisson-sampled Gaussian.

What differs from the paper:

1. Images are matched within their class alone (an infinite label cost), and each class is split into random cells. A
   record then meets one block only, so all blocks of a step cost what one would: parallel composition inside a step.
   ``method.transport.label_cost`` and one cell bring back the single, jointly clipped batch (preset ``joint``).
2. Costs are squared differences, for which the gradient is known in closed form.
3. With ``privacy.embedding_share`` a part of the budget buys a noisy mean embedding (as in DP-MERF) from which the
   generator starts and to which it stays tied by ``method.generator.embedding_pull``. 0 starts from random weights, as
   the paper does (preset ``random-start``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from understudy.configs import Config, Count, MethodConfig, Positive, Share
from understudy.data.domain import Domain
from understudy.data.sampling import sampling_rate
from understudy.engines.config import LearnerConfig
from understudy.engines.embedding.config import EmbeddingConfig, with_embedding
from understudy.engines.teacher.config import TaughtConfig, TaughtPrivacy
from understudy.methods.base import Method, SampledPrivacy, finish_plan
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.engines.learner import SlopeLearner
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.runs.run import Run

# Rounding is divided by it: below, what padding rounds in blocks that a record does not reach would no longer be small.
AboveRounding = Annotated[Positive, Field(ge=1e-3)]


class TransportConfig(Config):
    """The Sinkhorn divergence of small cells of images. ``None`` is decided from the declared domain."""

    cells: Count | None = None  # of each class (of the whole batch where labels only cost)
    images: Annotated[int, Field(ge=2)] = 5  # generated in each cell
    regularisation: AboveRounding = 0.02  # of the plan's entropy; costs are mean squares of pixel differences
    iterations: Count = 30
    label_cost: Annotated[Positive, Field(le=100)] | None = None  # for images of different classes; None: never matched


_PURPOSE = "transport gradients"
_REALS_IN_CELL = 3  # expected, where the number of cells is not given: many small cells say more than few large ones
_POOL = 512  # generated images for progress
_RESERVATIONS = 200  # the ledger is written about so often in a run
_ADVICE = "raise method.transport.regularisation or take larger batches (privacy.batch)"


class DpSinkhornPrivacy(SampledPrivacy, TaughtPrivacy):
    """What changes epsilon; ``None`` is decided from the declared domain."""

    clip: AboveRounding = 1.0  # C
    embedding_share: Share = 0.5
    embedding_noise_multiplier: Positive | None = None  # decided by the share


class DpSinkhornMethodConfig(Config):
    """Transport, generator and start; none of it changes epsilon."""

    transport: TransportConfig = TransportConfig()
    generator: LearnerConfig = LearnerConfig()
    embedding: EmbeddingConfig = EmbeddingConfig(steps=2000, batch=300)


class DpSinkhornConfig(TaughtConfig):
    """The config of ``dp-sinkhorn``."""

    privacy: DpSinkhornPrivacy = DpSinkhornPrivacy()
    method: DpSinkhornMethodConfig = DpSinkhornMethodConfig()


# The generator learns from transport alone, as in the paper.
_RANDOM_START: dict[str, Any] = {"privacy": {"embedding_share": 0.0}, "method": {"generator": {"learning_rate": 1e-3}}}
# One batch, one plan and one clip for all classes, as in the paper.
_JOINT = {
    **_RANDOM_START,
    "method": {**_RANDOM_START["method"], "transport": {"cells": 1, "images": 200, "label_cost": 0.5}},
}
# The fit to the embedding in larger batches: a minute on a graphics card, an hour without one.
_GPU = {"method": {"embedding": {"steps": 4000, "batch": 1000}}, "runtime": {"precision": "bf16"}}


class DpSinkhorn(Method):
    """Transport between generated images and Poisson batches; the generator hears its clipped, noised gradient."""

    name: ClassVar[str] = "dp-sinkhorn"
    summary: ClassVar[str] = "no discriminator: the generator hears the clipped, noised gradient of a transport cost"
    paper: ClassVar[str] = "Cao, Bie, Vahdat, Fidler, Kreis: Don't Generate Me (NeurIPS 2021)"
    config_type: ClassVar[type[MethodConfig]] = DpSinkhornConfig
    presets: ClassVar = {"random-start": _RANDOM_START, "joint": _JOINT, "gpu": _GPU}

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """T Poisson-sampled Gaussians of sensitivity 2C, with the least noise that the budget allows."""
        assert isinstance(config, DpSinkhornConfig)
        config, embedding = with_embedding(_decided(config, domain), domain, budget)

        def events(multiplier: float) -> tuple[Event, ...]:
            return (config.privacy.event(domain, multiplier, _PURPOSE, "2C"), *embedding)

        return finish_plan(self, config, domain, budget, events, _costs(config, domain))

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that learns from gradients."""
        assert isinstance(config, DpSinkhornConfig)
        return config.method.generator.network(domain)

    def train(self, run: Run) -> Generator:
        """T steps: generate, match with a batch, clip and noise the gradient, let the generator follow it."""
        from understudy.engines.embedding.start import EmbeddingStart
        from understudy.engines.learner import SlopeLearner
        from understudy.methods.transport.sinkhorn import SinkhornCells
        from understudy.privacy.mechanisms import GaussianBlocks
        from understudy.runs.loop import Resumable

        config = run.plan.config_as(DpSinkhornConfig)
        start = EmbeddingStart.of_run(run, config.method.embedding)
        learner = SlopeLearner(run, config.method.generator, start)
        progress = Resumable(run, learner.released, learner.parts())
        if start and not progress.resumed:
            learner.fit_start(run, config.method.embedding)
        event, transport = run.plan.events[0], config.method.transport
        cells = SinkhornCells(run, transport, config.privacy.batch or 1, event)
        answering = GaussianBlocks(run.ledger, run.randomness, clip=config.privacy.clip, event=event)
        unit = math.sqrt(transport.images) / config.privacy.clip  # slopes of about norm one for each image
        for step in progress.steps(run.plan.steps):
            if answering.account.remaining == 0:
                progress.end_after(step - 1)
                break
            drawn = learner.imagine(len(cells.labels), cells.labels)
            blocks_private = cells.slopes(drawn.pool.images)
            answer = answering.answer(blocks_private, block=max(1, event.count // _RESERVATIONS))
            learner.learn(drawn, answer.value_dp * unit)
            if run.report_due(step):
                answering.check_finite()
                _report(run, step, learner, blocks_private)
        return learner.released


def _report(run: Run, step: int, learner: SlopeLearner, blocks_private: Tensor) -> None:
    """Public progress from generated images.

    Privacy: the norms of the blocks before clipping are private and go to the private folder alone.
    """
    run.report(step, contrast=learner.check_alive(learner.pool(_POOL).images, _ADVICE))
    norms = blocks_private.norm(dim=1)
    clipped = float((norms > run.plan.config_as(DpSinkhornConfig).privacy.clip).float().mean())
    run.diagnose(step, gradient_norm_before=float(norms.mean()), clipped=clipped)


def _decided(config: DpSinkhornConfig, domain: Domain) -> DpSinkhornConfig:
    """The config with everything filled in that was left to the declared domain."""
    method, transport = config.method, config.method.transport
    small = domain.small
    batch = config.privacy.batch or max(1, min(600, domain.nominal_records // 20))
    sampling_rate(batch, domain.nominal_records)  # refuses a batch above the declared number of records
    steps = config.privacy.steps or (1500 if small else 4000)
    groups = 1 if transport.label_cost else domain.classes or 1
    cells = transport.cells or max(1, batch // (groups * _REALS_IN_CELL))
    generator = method.generator.decided(16 if small else 64, from_embedding=config.privacy.embedding_share > 0)
    settings = {"transport": transport.model_copy(update={"cells": cells}), "generator": generator}
    privacy = config.privacy.model_copy(update={"batch": batch, "steps": steps})
    return config.model_copy(update={"privacy": privacy, "method": method.model_copy(update=settings)})


def _costs(config: DpSinkhornConfig, domain: Domain) -> Costs:
    """Steps, memory and time of a decided config."""
    transport, steps = config.method.transport, config.privacy.steps or 1
    blocks = (transport.cells or 1) * (1 if transport.label_cost else domain.classes or 1)
    pixels, images = domain.values, blocks * transport.images
    pairs = images * max(transport.images, 2 * (config.privacy.batch or 1) // blocks)
    start = config.method.embedding.steps if config.privacy.embedding_share else 0
    fit = start * config.method.embedding.batch * pixels * (config.method.embedding.frequencies or 0) * 12
    return Costs(
        steps=steps,
        memory_bytes=2**30 + 2000 * images * pixels + 40 * pairs + domain.nominal_records * pixels,
        seconds=steps * (2e-2 + 4e-6 * images * pixels + 3e-8 * transport.iterations * pairs) + fit / 5e10,
        seconds_on_gpu=steps * (5e-3 + 3e-4 * transport.iterations) + start * 5e-3 + fit / 5e13,
    )
