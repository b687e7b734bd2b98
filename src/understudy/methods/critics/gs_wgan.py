"""GS-WGAN: critics train freely on disjoint subsets; only their gradients on generated images are clipped and noised.

D. Chen, T. Orekondy, M. Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators",
NeurIPS 2020, Algorithm 1. Symbols: K subsets with one critic each, C the clip bound, T generator steps of B queries.

What differs from the published algorithm, so that the epsilon is true (proof: docs/privacy.md):

1. every record goes to one of K subsets independently and uniformly;
2. which critics are trained when is a public round-robin schedule, and all of them train on the whole batch of
   generated images, whoever is asked about them;
3. for *each generated image* a critic is drawn secretly and uniformly; its answer is clipped and noised, and asking
   changes no critic. So each of the T*B answers is one routed event.

``mode = "paper"`` runs the published algorithm (one draw a step for all B rows, a critic is trained when it is drawn)
and certifies what can be proven for it, with the draws taken as revealed.

With ``privacy.embedding_share`` a part of the budget buys a noisy mean embedding (as in DP-MERF) from which the
generator starts and to which it stays tied by ``method.generator.embedding_pull`` while it listens to the critics. 0
starts from random weights, as the paper does (preset ``random-start``).

Answers may be given in few cosine frequencies instead of all pixels (``method.low_frequencies``), and several queries
may be asked about one image and their answers averaged (``method.queries_per_point``). Neither changes an event.

Several processes may share the critics (``engines/critics/sharing.py``); the generator, the sanitizing and the ledger
stay with the first of them.

Critics are never written to disk: a resumed run grows them again from their subsets and the generator, which is private
work on the same subsets and costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from understudy.configs import Config, Count, MethodConfig, Positive, Share, without_defaults
from understudy.data.domain import Domain
from understudy.engines.config import CriticsConfig, LearnerConfig
from understudy.engines.embedding.config import EmbeddingConfig, with_embedding
from understudy.engines.teacher.config import TaughtConfig, TaughtPrivacy
from understudy.errors import InputError
from understudy.methods.base import Method, finish_plan
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, RevealedRouting, RoutedSampling
from understudy.privacy.meaning import plural
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.engines.critics.frequencies import AnswerBasis
    from understudy.engines.critics.panel import Critics
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.engines.learner import Drawn, SlopeLearner
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.privacy.mechanisms import GaussianAnswers
    from understudy.runs.run import Run


_RECORDS_PER_SUBSET = 10  # at least so many nominal records for each critic, where the number of subsets is not given
_QUERIES_PER_SUBSET = 640
_PURPOSE = "critics' answers"
_POOL = 512  # generated images for progress
_RESERVATIONS = 200  # the ledger is written about so often in a run


class GsWganPrivacy(TaughtPrivacy):
    """What changes epsilon; ``None`` is decided from the declared number of records."""

    subsets: Count | None = None  # K
    queries: Count | None = None  # T * B
    clip: Positive = 0.1  # C
    embedding_share: Share = 0.4
    embedding_noise_multiplier: Positive | None = None  # decided by the share


class GsWganMethodConfig(Config):
    """The game between the generator and its critics; only ``mode`` changes epsilon."""

    mode: Literal["routed", "paper"] = "routed"
    queries_per_step: Count = 512  # B
    queries_per_point: Count = 1  # queries about one image, each with a critic of its own; answers are averaged
    low_frequencies: Annotated[tuple[Count, ...], Field(max_length=100)] = ()  # on a side, by stages; none: all pixels
    critics: CriticsConfig = CriticsConfig()
    generator: LearnerConfig = LearnerConfig()
    embedding: EmbeddingConfig = EmbeddingConfig(steps=2000, batch=300)

    @property
    def images_per_step(self) -> int:
        """Generated images that the queries of a step are about."""
        return self.queries_per_step // self.queries_per_point

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """With one query an image, about all pixels, a config looks as it always did; older versions can read it."""
        return without_defaults(self, write(self), ("queries_per_point", "low_frequencies"))


class GsWganConfig(TaughtConfig):
    """The config of ``gs-wgan``."""

    privacy: GsWganPrivacy = GsWganPrivacy()
    method: GsWganMethodConfig = GsWganMethodConfig()


# No embedding: the generator learns from the critics alone, as in the paper, but with routed queries.
_RANDOM_START = {
    "privacy": {"embedding_share": 0.0},
    "method": {
        "queries_per_step": 256,
        "critics": {"per_step": 100, "warm_iterations": 100},
        "generator": {"learning_rate": 3e-4},
    },
}
# The published algorithm with its own settings; it is sound at an epsilon of 610, not of 10.
_PUBLISHED = {
    "privacy": {"embedding_share": 0.0, "subsets": 1000, "queries": 640_000, "clip": 1.0, "noise_multiplier": 1.07},
    "method": {
        "mode": "paper",
        "queries_per_step": 32,
        "critics": {"learning_rate": 1e-4, "warm_learning_rate": 1e-4, "warm_iterations": 2000},
        "generator": {"kind": "resnet", "latent": 10, "latent_law": "bernoulli", "average_decay": 0.999},
    },
}
# The fit to the embedding in larger batches: a minute on a graphics card, an hour without one.
_GPU = {"method": {"embedding": {"steps": 4000, "batch": 1000}}, "runtime": {"precision": "bf16"}}


class GsWgan(Method):
    """Many critics on disjoint subsets, one generator that hears only sanitized gradients."""

    name: ClassVar[str] = "gs-wgan"
    summary: ClassVar[str] = "critics on disjoint subsets; the generator hears their clipped, noised gradients"
    paper: ClassVar[str] = "Chen, Orekondy, Fritz: GS-WGAN (NeurIPS 2020)"
    config_type: ClassVar[type[MethodConfig]] = GsWganConfig
    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True
    presets: ClassVar = {"random-start": _RANDOM_START, "published": _PUBLISHED, "gpu": _GPU}

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Routed answers (paper mode: answers to revealed draws), with the least noise that the budget allows."""
        assert isinstance(config, GsWganConfig)
        config, embedding = with_embedding(_decided(config, domain), domain, budget)

        def events(multiplier: float) -> tuple[Event, ...]:
            return (_answer_event(config, multiplier), *embedding)

        plan = finish_plan(self, config, domain, budget, events, _costs(config, domain))
        return replace(plan, remarks=_remarks(config, plan.events[0], budget.delta))

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that learns from answers."""
        assert isinstance(config, GsWganConfig)
        return config.method.generator.network(domain)

    def train(self, run: Run) -> Generator:
        """Algorithm 1: warm start, then T steps of public critic training and B sanitized answers each."""
        from understudy.engines.critics.frequencies import BasisSchedule
        from understudy.engines.critics.panel import Critics
        from understudy.engines.embedding.start import EmbeddingStart
        from understudy.engines.learner import SlopeLearner
        from understudy.runs.loop import Resumable

        config = run.plan.config_as(GsWganConfig)
        start = EmbeddingStart.of_run(run, config.method.embedding)
        learner = SlopeLearner(run, config.method.generator, start)
        progress = Resumable(run, learner.released, learner.parts())
        if start and not progress.resumed:
            learner.fit_start(run, config.method.embedding)
        critics = Critics.of_run(run, config.privacy.subsets or 1, config.method.critics)
        critics.grow(learner.pool if start or progress.resumed else None)
        answering = _answering(run, config)
        bases = BasisSchedule(run.plan.domain.shape, config.method.low_frequencies, run.plan.steps, run.device)
        turn = _paper_turn if config.method.mode == "paper" else _routed_turn
        block = max(1, run.plan.steps // _RESERVATIONS) * config.method.queries_per_step
        for step in progress.steps(run.plan.steps):
            if answering.account.remaining < config.method.queries_per_step:
                progress.end_after(step - 1)
                break
            drawn, rows_private = turn(learner, critics, config.method)
            learner.learn(drawn, _sanitized(answering, rows_private, bases.at(step), len(drawn.values), block))
            if run.report_due(step):
                answering.check_finite()
                _report(run, step, learner, bases.at(step).project(rows_private))
        answering.check_finite()
        return learner.released

    def assist(self, run: Run, told: Mapping[str, Any]) -> Assistance:
        """The critics of this process, which train and answer when the leader says so."""
        from understudy.engines.critics.panel import Critics, CriticsHelp

        config = run.plan.config_as(GsWganConfig)
        critics = Critics.of_run(run, config.privacy.subsets or 1, config.method.critics)
        return CriticsHelp(critics, critics.own_answers)

    def memory_of_device(self, plan: Plan, processes: int) -> int:
        """Critics are divided among the devices of all processes; what a teacher needs is not."""
        from understudy.devices import cards_of

        config = plan.config_as(GsWganConfig)
        subsets, devices = config.privacy.subsets or 1, cards_of(processes)
        return config.method.critics.memory_of_device(plan.memory_bytes, plan.domain, subsets, devices)

    def check_processes(self, config: MethodConfig, processes: int) -> None:
        """Refuse processes that would have no critic."""
        super().check_processes(config, processes)
        assert isinstance(config, GsWganConfig)
        config.method.critics.check_processes(processes, config.privacy.subsets or 1, "privacy.subsets")


def _routed_turn(learner: SlopeLearner, critics: Critics, settings: GsWganMethodConfig) -> tuple[Drawn, Tensor]:
    """Generate B images, train the scheduled critics on them, then ask a secret, uniform critic about each image.

    With q queries for each there are B/q images, and every one of the B queries has a critic of its own.

    Privacy: all images are the pool of every scheduled critic and the routing is drawn afterwards, so no critic's
    training depends on the routing; asking changes no critic. Given all but routing and noise a record moves only the
    answers that are routed to its one critic: rate 1/K, sensitivity 2C.
    """
    drawn = learner.imagine(settings.images_per_step)
    critics.train_scheduled(drawn.pool)
    return drawn, critics.answer(drawn.pool, critics.draw_routing(settings.queries_per_step))


def _paper_turn(learner: SlopeLearner, critics: Critics, settings: GsWganMethodConfig) -> tuple[Drawn, Tensor]:
    """The published step: draw one critic, train it several times, ask it about all B images.

    Privacy: the critic's state depends on past draws, so the draws are accounted as revealed, without amplification.
    """
    chosen = critics.draw_routing(1)
    for _ in range(settings.critics.rounds):
        critics.train(slice(int(chosen), int(chosen) + 1), learner.pool(settings.critics.batch))
    drawn = learner.imagine(settings.images_per_step)
    return drawn, critics.answer(drawn.pool, chosen.expand(settings.queries_per_step))


def _sanitized(answering: GaussianAnswers, rows_private: Tensor, basis: AnswerBasis, images: int, block: int) -> Tensor:
    """The slopes (images, pixels) that a generator hears, in units of the clip bound.

    Privacy: first into the basis, then clipped and noised there, each query for itself: B executions, whatever the
    basis is and however many queries an image has. The average over the queries of an image, and the way back to
    pixels, see sanitized values alone.
    """
    answers_dp = answering.answer(basis.project(rows_private), block=block).value_dp / answering.clip
    return basis.back(answers_dp.view(images, -1, answers_dp.shape[1]).mean(dim=1))


def _answering(run: Run, config: GsWganConfig) -> GaussianAnswers:
    from understudy.privacy.mechanisms import GaussianAnswers

    return GaussianAnswers(run.ledger, run.randomness, clip=config.privacy.clip, event=run.plan.events[0])


def _report(run: Run, step: int, learner: SlopeLearner, rows_private: Tensor) -> None:
    """Public progress from generated images; the gradient norms of the paper's Figs. 2 and A1 stay private.

    ``rows_private`` are the gradients as they are clipped: in the basis of the answers.
    """
    config = run.plan.config_as(GsWganConfig)
    contrast = learner.check_alive(learner.pool(_POOL).images)
    run.report(step, contrast=contrast, answers=step * config.method.queries_per_step)
    norms = rows_private.norm(dim=1)
    run.diagnose(
        step,
        gradient_norm_before=float(norms.mean()),
        gradient_norm_before_deviation=float(norms.std()) if len(norms) > 1 else 0.0,
        gradient_norm_after=float(norms.clamp(max=config.privacy.clip).mean()),
        clipped=float((norms > config.privacy.clip).float().mean()),
    )


def _answer_event(config: GsWganConfig, noise_multiplier: float) -> Event:
    subsets, queries = config.privacy.subsets or 1, config.privacy.queries or 1
    paper = config.method.mode == "paper"
    sampling = RevealedRouting(subsets=subsets, rows=config.method.queries_per_step) if paper else None
    return Event(
        noise_multiplier=noise_multiplier,
        sensitivity="2C",
        sampling=sampling or RoutedSampling(subsets=subsets),
        count=queries,
        purpose=_PURPOSE,
    )


def _decided(config: GsWganConfig, domain: Domain) -> GsWganConfig:
    """The config with everything filled in that was left to the declared domain."""
    method, rows = config.method, config.method.queries_per_step
    subsets = config.privacy.subsets or max(1, min(1000, domain.nominal_units // _RECORDS_PER_SUBSET))
    if subsets > domain.nominal_units:
        raise InputError(
            f"subsets: {subsets}, but only {domain.nominal_units} nominal {plural(domain.unit)} are declared; "
            f"pass privacy.subsets of at most {domain.nominal_units}"
        )
    _check_answers(method, domain)
    steps = max(1, (config.privacy.queries or _QUERIES_PER_SUBSET * subsets) // rows)
    width = 16 if domain.small else 64
    critics = {"width": method.critics.width or width, "per_step": min(method.critics.per_step, subsets)}
    settings = {
        "critics": method.critics.model_copy(update=critics),
        "generator": method.generator.decided(width, from_embedding=config.privacy.embedding_share > 0),
    }
    privacy = config.privacy.model_copy(update={"subsets": subsets, "queries": steps * rows})
    return config.model_copy(update={"privacy": privacy, "method": method.model_copy(update=settings)})


def _check_answers(settings: GsWganMethodConfig, domain: Domain) -> None:
    """Refuse more frequencies than an image has, and queries that cannot be shared out evenly among images."""
    _, height, width = domain.shape
    most = max(height, width)
    if any(side > most for side in settings.low_frequencies):
        raise InputError(
            f"low_frequencies: {max(settings.low_frequencies)}, but images of {height}x{width} have {most} on a side; "
            f"pass method.low_frequencies of at most {most}"
        )
    if settings.queries_per_step % settings.queries_per_point:
        raise InputError(
            f"queries_per_point: {settings.queries_per_point}, but the {settings.queries_per_step} queries of a step "
            "cannot be shared out so; pass a method.queries_per_step that is a multiple of it"
        )


def _remarks(config: GsWganConfig, event: Event, delta: float) -> tuple[str, ...]:
    if config.method.mode == "routed":
        return ()
    published = event.model_copy(update={"sampling": RoutedSampling(subsets=config.privacy.subsets or 1)})
    figure = accounting.epsilon([published], delta, "renyi")
    return (
        f"the paper's own formula, which treats the rows of a draw as drawn independently, gives {figure:.4g} here; "
        "it is not a guarantee of this algorithm",
    )


def _costs(config: GsWganConfig, domain: Domain) -> Costs:
    """Steps, memory and time of a decided config."""
    fit = config.method.embedding  # of which the generator takes most, on a processor
    drawn = fit.steps * fit.batch * domain.values if config.privacy.embedding_share else 0
    return Costs(
        steps=(config.privacy.queries or 1) // config.method.queries_per_step,
        memory_bytes=config.method.critics.memory_bytes(domain, config.privacy.subsets or 1),
        seconds=_seconds(config, domain, critic_steps_per_second=2, queries_per_second=20) + 1.3e-6 * drawn,
        seconds_on_gpu=_seconds(config, domain, critic_steps_per_second=7000, queries_per_second=7000),
    )


def _seconds(
    config: GsWganConfig, domain: Domain, *, critic_steps_per_second: float, queries_per_second: float
) -> float:
    """A rough time, from speeds seen at 28x28 and width 64; a query includes the generator's part."""
    critics, queries = config.method.critics, config.privacy.queries or 1
    relative = (domain.shape[1] * domain.shape[2] / 784) * ((critics.width or 64) / 64) ** 2
    each_step = critics.rounds if config.method.mode == "paper" else critics.per_step
    critic_steps = queries // config.method.queries_per_step * each_step
    critic_steps += (config.privacy.subsets or 1) * critics.warm_iterations
    work = critic_steps * critics.batch / 32 / critic_steps_per_second + queries / queries_per_second
    return work * relative + 10
