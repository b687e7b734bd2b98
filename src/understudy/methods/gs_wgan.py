"""GS-WGAN: critics train freely on disjoint subsets; only their gradients on generated images are clipped and noised.

D. Chen, T. Orekondy, M. Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators",
NeurIPS 2020, Algorithm 1. Symbols: K subsets with one critic each, C the clip bound, T generator steps of B queries.

What differs from the published algorithm, so that the epsilon is true (proof: docs/privacy.md):

1. every record goes to one of K subsets independently and uniformly;
2. which critics are trained when is a public round-robin schedule, and they train on a pool of generated images that
   does not depend on the routing;
3. for *each generated image* a critic is drawn secretly and uniformly; its answer is clipped and noised, and asking
   changes no critic. So each of the T*B answers is one routed event.

``mode = "paper"`` runs the published algorithm (one draw a step for all B rows, a critic is trained when it is drawn)
and certifies what can be proven for it, with the draws taken as revealed.

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
from understudy.methods.configuration import MethodConfig, PrivacyConfig, RuntimeConfig
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, RevealedRouting, RoutedSampling

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from understudy.models import generator as generators
    from understudy.privacy import mechanisms
    from understudy.training import critic_panel as panels
    from understudy.training import generator_player as players
    from understudy.training import states
    from understudy.training.critic_panel import CriticPanel as Panel
    from understudy.training.generator_player import GeneratorPlayer as Player
    from understudy.training.run import Run
else:
    torch = LazyModule("torch")
    generators = LazyModule("understudy.models.generator")
    mechanisms = LazyModule("understudy.privacy.mechanisms")
    panels = LazyModule("understudy.training.critic_panel")
    players = LazyModule("understudy.training.generator_player")
    states = LazyModule("understudy.training.states")

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
_RECORDS_PER_SUBSET = 10  # at least so many nominal records for each critic, where the number of subsets is not given
_QUERIES_PER_SUBSET = 640
_PURPOSE = "critics' answers"
_POOL = 512  # generated images that critics train on in one step
_REPORTS = 100
_RESERVATIONS = 200  # the ledger is written about so often in a run


class GsWganPrivacy(PrivacyConfig):
    """What changes epsilon; ``None`` is decided from the declared number of records."""

    subsets: Annotated[int, Field(ge=1)] | None = None  # K
    queries: Annotated[int, Field(ge=1)] | None = None  # T * B
    clip: Annotated[float, Field(gt=0)] = 1.0  # C


class GsWganSettings(BaseModel):
    """The game between the generator and its critics; none of it changes epsilon, except ``mode``."""

    model_config = _FROZEN
    mode: Literal["routed", "paper"] = "routed"
    queries_per_step: Annotated[int, Field(ge=1)] = 256  # B
    critics_per_step: Annotated[int, Field(ge=1)] = 100
    critic_batch: Annotated[int, Field(ge=1)] = 32
    critic_width: Annotated[int, Field(ge=8, multiple_of=8)] | None = None
    critic_learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    critic_rounds: Annotated[int, Field(ge=1)] = 5  # paper mode: critic steps for each draw
    warm_iterations: Annotated[int, Field(ge=0)] = 60
    warm_learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    generator: Literal["resnet", "dcgan"] = "resnet"
    generator_width: Annotated[int, Field(ge=1)] | None = None
    generator_learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    spectral_norm: bool = True
    latent: Annotated[int, Field(ge=1)] = 10
    latent_law: Literal["normal", "bernoulli"] = "bernoulli"
    average_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    outside_penalty: Annotated[float, Field(ge=0)] = 1.0


class GsWganConfig(MethodConfig):
    """The config of ``gs-wgan``."""

    privacy: GsWganPrivacy = GsWganPrivacy()
    method: GsWganSettings = GsWganSettings()
    runtime: RuntimeConfig = RuntimeConfig()


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
        multiplier = config.privacy.noise_multiplier or accounting.calibrate(lambda m: [_event(config, m)], budget)
        event = _event(config, multiplier)
        return Plan(
            method=self.name,
            config=config.with_noise(multiplier),
            domain=domain,
            budget=budget,
            events=(event,),
            epsilon=accounting.certified_epsilon([event], budget.delta),
            steps=event.count // config.method.queries_per_step,
            memory_bytes=_memory(config, domain),
            seconds=_seconds(config, domain, event.count),
            remarks=_remarks(config, event, budget.delta),
        )

    def train(self, run: Run) -> generators.Generator:
        """Algorithm 1: warm start, then T steps of public critic training and B sanitized answers each."""
        config = _config(run)
        answering = _answering(run, config)
        player = players.GeneratorPlayer(run, _generator_config(config, run.plan.domain), _player_config(config))
        progress = states.Resumable(run, player.average, player.parts())
        panel = panels.CriticPanel(run, _panel_config(config))
        panel.warm_start()
        for _ in range(config.method.warm_iterations if progress.resumed else 0):
            panel.train_all(player.pool(_POOL))  # critics are not kept on disk: let them catch up with the generator
        turn = _paper_turn if config.method.mode == "paper" else _routed_turn
        block = max(1, run.plan.steps // _RESERVATIONS) * config.method.queries_per_step
        for step in progress.steps(run.plan.steps):
            if answering.account.remaining < config.method.queries_per_step:
                break  # a crash lost reserved answers: fewer steps, never more answers
            raw, rows_private = turn(player, panel, config.method)
            player.learn(raw, answering.answer(rows_private, block=block).value_dp)
            if step % max(1, run.plan.steps // _REPORTS) == 0:
                _report(run, step, player, rows_private)
        answering.check_finite()
        return player.average


def _routed_turn(player: Player, panel: Panel, settings: GsWganSettings) -> tuple[Tensor, Tensor]:
    """Train the scheduled critics on a public pool, then ask a secret, uniform critic about each of B new images.

    Privacy: the schedule and the pool do not depend on the routing, and asking changes no critic, so given all but
    routing and noise a record moves only the answers that are routed to its one critic: rate 1/K, sensitivity 2C.
    """
    panel.train_scheduled(player.pool(_POOL))
    raw, labels = player.imagine(settings.queries_per_step)
    return raw, panel.answer(raw.detach().clamp(0, 1), labels, panel.draw_routing(len(raw)))


def _paper_turn(player: Player, panel: Panel, settings: GsWganSettings) -> tuple[Tensor, Tensor]:
    """The published step: draw one critic, train it several times, ask it about all B images.

    Privacy: the critic's state depends on past draws, so the draws are accounted as revealed, without amplification.
    """
    drawn = int(panel.draw_routing(1))
    for _ in range(settings.critic_rounds):
        panel.train(slice(drawn, drawn + 1), player.pool(settings.critic_batch))
    raw, labels = player.imagine(settings.queries_per_step)
    routing = torch.full((len(raw),), drawn, device=raw.device)
    return raw, panel.answer(raw.detach().clamp(0, 1), labels, routing)


def _answering(run: Run, config: GsWganConfig) -> mechanisms.GaussianAnswers:
    event = run.plan.events[0]
    plan = mechanisms.MechanismConfig(config.privacy.clip, event, planned=event.count, purpose=_PURPOSE)
    return mechanisms.GaussianAnswers(run.ledger, run.randomness, plan)


def _report(run: Run, step: int, player: Player, rows_private: Tensor) -> None:
    """Public progress from generated images; the gradient norms of the paper's Figs. 2 and A1 stay private."""
    pool = player.pool(_POOL)
    answered = step * _config(run).method.queries_per_step
    run.report(step, contrast=player.check_alive(pool.images), answers=answered)
    norms = rows_private.norm(dim=1)
    clip = _config(run).privacy.clip
    run.diagnose(
        step,
        gradient_norm_before=float(norms.mean()),
        gradient_norm_before_deviation=float(norms.std()) if len(norms) > 1 else 0.0,
        gradient_norm_after=float(norms.clamp(max=clip).mean()),
        clipped=float((norms > clip).float().mean()),
    )


def _event(config: GsWganConfig, noise_multiplier: float) -> Event:
    subsets, queries = config.privacy.subsets, config.privacy.queries
    assert subsets is not None, "decided before the event is made"
    assert queries is not None, "decided before the event is made"
    rows = config.method.queries_per_step
    paper = config.method.mode == "paper"
    sampling = RevealedRouting(subsets=subsets, rows=rows) if paper else RoutedSampling(subsets=subsets)
    return Event(noise_multiplier=noise_multiplier, sensitivity="2C", sampling=sampling, count=queries)


def _decided(config: GsWganConfig, domain: Domain) -> GsWganConfig:
    """The config with everything filled in that was left to the declared domain."""
    rows, pixels = config.method.queries_per_step, domain.shape[1] * domain.shape[2]
    subsets = config.privacy.subsets or max(1, min(1000, domain.nominal_records // _RECORDS_PER_SUBSET))
    if subsets > domain.nominal_records:
        raise InputError(
            f"subsets: {subsets}, but only {domain.nominal_records} nominal records are declared; "
            f"pass privacy.subsets of at most {domain.nominal_records}"
        )
    wanted = config.privacy.queries or _QUERIES_PER_SUBSET * subsets
    width = 64 if pixels > 16 * 16 else 16
    settings = {
        "critic_width": config.method.critic_width or width,
        "generator_width": config.method.generator_width or width,
        "critics_per_step": min(config.method.critics_per_step, subsets),
    }
    privacy = {"subsets": subsets, "queries": max(1, wanted // rows) * rows}
    return config.model_copy(
        update={
            "privacy": config.privacy.model_copy(update=privacy),
            "method": config.method.model_copy(update=settings),
        }
    )


def _remarks(config: GsWganConfig, event: Event, delta: float) -> tuple[str, ...]:
    if config.method.mode == "routed":
        return ()
    subsets = config.privacy.subsets
    assert subsets is not None, "decided before"
    published = event.model_copy(update={"sampling": RoutedSampling(subsets=subsets)})
    figure = accounting.epsilon([published], delta, "renyi")
    return (
        f"the paper's own formula, which treats the rows of a draw as drawn independently, gives {figure:.4g} here; "
        "it is not a guarantee of this algorithm",
    )


def _memory(config: GsWganConfig, domain: Domain) -> int:
    """Parameters and Adam moments of all critics, and the working memory of those trained together."""
    width, (channels, height, columns) = config.method.critic_width or 64, domain.shape
    features = 4 * width * -(-height // 8) * -(-columns // 8)
    parameters = 25 * width * (channels + 10 * width) + features * (1 + (domain.classes or 0))
    working = 40 * config.method.critic_batch * width * height * columns * config.method.critics_per_step
    return (config.privacy.subsets or 0) * parameters * 12 + working + 2**30


def _seconds(config: GsWganConfig, domain: Domain, queries: int) -> float:
    """A rough time on two CPU cores: one critic step of 32 images is about 15 GFLOP at 28x28 and width 64."""
    relative = (domain.shape[1] * domain.shape[2] / 784) * ((config.method.critic_width or 64) / 64) ** 2
    steps = queries // config.method.queries_per_step * config.method.critics_per_step
    steps += (config.privacy.subsets or 0) * config.method.warm_iterations
    return (steps + queries / 10) * relative * config.method.critic_batch / 32 / 2 + steps * 1e-3


def _panel_config(config: GsWganConfig) -> panels.PanelConfig:
    settings = config.method
    assert config.privacy.subsets is not None, "decided by the plan"
    assert settings.critic_width is not None, "decided by the plan"
    return panels.PanelConfig(
        subsets=config.privacy.subsets,
        width=settings.critic_width,
        learning_rate=settings.critic_learning_rate,
        batch=settings.critic_batch,
        per_step=settings.critics_per_step,
        warm_iterations=settings.warm_iterations,
        warm_learning_rate=settings.warm_learning_rate,
    )


def _player_config(config: GsWganConfig) -> players.PlayerConfig:
    settings = config.method
    return players.PlayerConfig(settings.generator_learning_rate, settings.average_decay, settings.outside_penalty)


def _generator_config(config: GsWganConfig, domain: Domain) -> generators.GeneratorConfig:
    settings = config.method
    assert settings.generator_width is not None, "decided by the plan"
    return generators.GeneratorConfig(
        kind=settings.generator,
        shape=domain.shape,
        classes=domain.classes,
        latent=settings.latent,
        latent_law=settings.latent_law,
        width=settings.generator_width,
        output="clamp",
        spectral_norm=settings.spectral_norm and settings.generator == "resnet",
    )


def _config(run: Run) -> GsWganConfig:
    assert isinstance(run.plan.config, GsWganConfig)
    return run.plan.config
