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
generator starts; the critics then refine it. 0 starts from random weights, as the paper does.

Critics are never written to disk: a resumed run grows them again from their subsets and the generator, which is private
work on the same subsets and costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from understudy._lazy import LazyModule
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.methods.base import Method, Plan
from understudy.methods.configuration import MethodConfig, PrivacyConfig
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, RevealedRouting, RoutedSampling
from understudy.training.settings import EMBEDDING_PURPOSE, Count, CriticSettings, EmbeddingSettings, GeneratorSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from understudy.models.generator import Generator
    from understudy.privacy import mechanisms
    from understudy.training import critic_panel, generator_player, mean_embedding, states
    from understudy.training.critic_panel import CriticPanel
    from understudy.training.generator_player import GeneratorPlayer
    from understudy.training.run import Run
else:
    torch = LazyModule("torch")
    critic_panel = LazyModule("understudy.training.critic_panel")
    generator_player = LazyModule("understudy.training.generator_player")
    mean_embedding = LazyModule("understudy.training.mean_embedding")
    mechanisms = LazyModule("understudy.privacy.mechanisms")
    states = LazyModule("understudy.training.states")

_RECORDS_PER_SUBSET = 10  # at least so many nominal records for each critic, where the number of subsets is not given
_QUERIES_PER_SUBSET = 640
_PURPOSE = "critics' answers"
_POOL = 512  # generated images for catching up after a resume and for progress
_REPORTS = 100
_RESERVATIONS = 200  # the ledger is written about so often in a run


class GsWganPrivacy(PrivacyConfig):
    """What changes epsilon; ``None`` is decided from the declared number of records."""

    subsets: Count | None = None  # K
    queries: Count | None = None  # T * B
    clip: Annotated[float, Field(gt=0)] = 0.1  # C
    embedding_share: Annotated[float, Field(ge=0, lt=1)] = 0.2  # of epsilon; 0: no embedding
    embedding_noise_multiplier: Annotated[float, Field(gt=0)] | None = None  # decided by the share


class GsWganSettings(BaseModel):
    """The game between the generator and its critics; only ``mode`` changes epsilon."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    mode: Literal["routed", "paper"] = "routed"
    queries_per_step: Count = 512  # B
    critics: CriticSettings = CriticSettings()
    generator: GeneratorSettings = GeneratorSettings()
    embedding: EmbeddingSettings = EmbeddingSettings(steps=600, batch=250)


class GsWganConfig(MethodConfig):
    """The config of ``gs-wgan``."""

    privacy: GsWganPrivacy = GsWganPrivacy()
    method: GsWganSettings = GsWganSettings()


class GsWgan(Method):
    """Many critics on disjoint subsets, one generator that hears only sanitized gradients."""

    name: ClassVar[str] = "gs-wgan"
    summary: ClassVar[str] = "critics on disjoint subsets; the generator hears their clipped, noised gradients"
    paper: ClassVar[str] = "Chen, Orekondy, Fritz: GS-WGAN (NeurIPS 2020)"
    config_type: ClassVar[type[MethodConfig]] = GsWganConfig

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Routed answers (paper mode: answers to revealed draws), with the least noise that the budget allows."""
        assert isinstance(config, GsWganConfig)
        config = _decided(config, domain)
        embedding = _embedding_events(config, budget)
        config = _decided_embedding(config, domain, embedding)

        def events(multiplier: float) -> tuple[Event, ...]:
            return (_answer_event(config, multiplier), *embedding)

        planned = events(config.privacy.noise_multiplier or accounting.calibrate(events, budget))
        return Plan(
            method=self.name,
            config=config.with_noise(planned[0].noise_multiplier),
            domain=domain,
            budget=budget,
            events=planned,
            epsilon=accounting.certified_epsilon(planned, budget.delta),
            steps=planned[0].count // config.method.queries_per_step,
            memory_bytes=_memory(config, domain),
            seconds=_seconds(config, domain, critic_steps_per_second=2, queries_per_second=20),
            seconds_on_gpu=_seconds(config, domain, critic_steps_per_second=7000, queries_per_second=7000),
            remarks=_remarks(config, planned[0], budget.delta),
        )

    def train(self, run: Run) -> Generator:
        """Algorithm 1: warm start, then T steps of public critic training and B sanitized answers each."""
        config = _config(run)
        player = generator_player.GeneratorPlayer(run, config.method.generator)
        progress = states.Resumable(run, player.average, player.parts())
        if config.privacy.embedding_share and not progress.resumed:
            _start_from_embedding(run, player, config)
        panel = critic_panel.CriticPanel(run, config.privacy.subsets or 1, config.method.critics)
        panel.warm_start()
        for _ in range(config.method.critics.warm_iterations if progress.resumed else 0):
            panel.train_all(player.pool(_POOL))  # critics are not kept on disk: let them catch up with the generator
        answering = _answering(run, config)
        turn = _paper_turn if config.method.mode == "paper" else _routed_turn
        block = max(1, run.plan.steps // _RESERVATIONS) * config.method.queries_per_step
        for step in progress.steps(run.plan.steps):
            if answering.account.remaining < config.method.queries_per_step:
                progress.save(step - 1)  # a crash lost reserved answers: fewer steps, never more answers
                break
            raw, rows_private = turn(player, panel, config.method)
            player.learn(raw, answering.answer(rows_private, block=block).value_dp)
            if step % max(1, run.plan.steps // _REPORTS) == 0 or step == run.plan.steps:
                answering.check_finite()
                _report(run, step, player, rows_private)
        answering.check_finite()
        return player.average


def _routed_turn(player: GeneratorPlayer, panel: CriticPanel, settings: GsWganSettings) -> tuple[Tensor, Tensor]:
    """Generate B images, train the scheduled critics on them, then ask a secret, uniform critic about each image.

    Privacy: all B images are the pool of every scheduled critic and the routing is drawn afterwards, so no critic's
    training depends on the routing; asking changes no critic. Given all but routing and noise a record moves only the
    answers that are routed to its one critic: rate 1/K, sensitivity 2C.
    """
    raw, labels = player.imagine(settings.queries_per_step)
    images = raw.detach().clamp(0, 1)
    panel.train_scheduled(critic_panel.FakePool(images, labels))
    return raw, panel.answer(images, labels, panel.draw_routing(len(images)))


def _paper_turn(player: GeneratorPlayer, panel: CriticPanel, settings: GsWganSettings) -> tuple[Tensor, Tensor]:
    """The published step: draw one critic, train it several times, ask it about all B images.

    Privacy: the critic's state depends on past draws, so the draws are accounted as revealed, without amplification.
    """
    drawn = int(panel.draw_routing(1))
    for _ in range(settings.critics.rounds):
        panel.train(slice(drawn, drawn + 1), player.pool(settings.critics.batch))
    raw, labels = player.imagine(settings.queries_per_step)
    routing = torch.full((len(raw),), drawn, device=raw.device)
    return raw, panel.answer(raw.detach().clamp(0, 1), labels, routing)


def _answering(run: Run, config: GsWganConfig) -> mechanisms.GaussianAnswers:
    return mechanisms.GaussianAnswers(run.ledger, run.randomness, clip=config.privacy.clip, event=run.plan.events[0])


def _start_from_embedding(run: Run, player: GeneratorPlayer, config: GsWganConfig) -> None:
    settings = config.method.embedding
    embedding = mean_embedding.Embedding.of_run(run, settings)
    player.start_from(mean_embedding.release_means(run, embedding, run.plan.events[1]), embedding, settings)


def _report(run: Run, step: int, player: GeneratorPlayer, rows_private: Tensor) -> None:
    """Public progress from generated images; the gradient norms of the paper's Figs. 2 and A1 stay private."""
    config = _config(run)
    contrast = player.check_alive(player.pool(_POOL).images)
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


def _embedding_events(config: GsWganConfig, budget: Budget) -> tuple[Event, ...]:
    """The one release of the embedding, with noise for its share of epsilon."""
    if not config.privacy.embedding_share:
        return ()
    noise = config.privacy.embedding_noise_multiplier
    if noise is None:
        share = Budget(budget.epsilon * config.privacy.embedding_share, budget.delta)
        noise = accounting.calibrate(lambda multiplier: [Event(noise_multiplier=multiplier, count=1)], share)
    return (Event(noise_multiplier=noise, sensitivity="C", count=1, purpose=EMBEDDING_PURPOSE),)


def _decided(config: GsWganConfig, domain: Domain) -> GsWganConfig:
    """The config with everything filled in that was left to the declared domain."""
    method, rows = config.method, config.method.queries_per_step
    subsets = config.privacy.subsets or max(1, min(1000, domain.nominal_records // _RECORDS_PER_SUBSET))
    if subsets > domain.nominal_records:
        raise InputError(
            f"subsets: {subsets}, but only {domain.nominal_records} nominal records are declared; "
            f"pass privacy.subsets of at most {domain.nominal_records}"
        )
    steps = max(1, (config.privacy.queries or _QUERIES_PER_SUBSET * subsets) // rows)
    width = 64 if domain.shape[1] * domain.shape[2] > 16 * 16 else 16
    critics = {"width": method.critics.width or width, "per_step": min(method.critics.per_step, subsets)}
    settings = {
        "critics": method.critics.model_copy(update=critics),
        "generator": method.generator.model_copy(update={"width": method.generator.width or width}),
    }
    privacy = config.privacy.model_copy(update={"subsets": subsets, "queries": steps * rows})
    return config.model_copy(update={"privacy": privacy, "method": method.model_copy(update=settings)})


def _decided_embedding(config: GsWganConfig, domain: Domain, events: tuple[Event, ...]) -> GsWganConfig:
    noise = events[0].noise_multiplier if events else 0.0
    privacy = config.privacy.model_copy(update={"embedding_noise_multiplier": noise or None})
    pixels = domain.shape[0] * domain.shape[1] * domain.shape[2]
    settings = config.method.embedding.decided(pixels, noise * (domain.classes or 1) / domain.nominal_records)
    method = config.method.model_copy(update={"embedding": settings})
    return config.model_copy(update={"privacy": privacy, "method": method})


def _remarks(config: GsWganConfig, event: Event, delta: float) -> tuple[str, ...]:
    if config.method.mode == "routed":
        return ()
    published = event.model_copy(update={"sampling": RoutedSampling(subsets=config.privacy.subsets or 1)})
    figure = accounting.epsilon([published], delta, "renyi")
    return (
        f"the paper's own formula, which treats the rows of a draw as drawn independently, gives {figure:.4g} here; "
        "it is not a guarantee of this algorithm",
    )


def _memory(config: GsWganConfig, domain: Domain) -> int:
    """Parameters and Adam moments of all critics, and the working memory of those trained together."""
    critics, (channels, height, columns) = config.method.critics, domain.shape
    width = critics.width or 64
    features = 4 * width * -(-height // 8) * -(-columns // 8)
    parameters = 25 * width * (channels + 10 * width) + features * (1 + (domain.classes or 0))
    working = 40 * critics.batch * width * height * columns * critics.per_step
    return (config.privacy.subsets or 1) * parameters * 12 + working + 2**30


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


def _config(run: Run) -> GsWganConfig:
    assert isinstance(run.plan.config, GsWganConfig)
    return run.plan.config
