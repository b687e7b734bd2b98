"""Federated GS-WGAN: one critic per client; clients clip and noise their gradients on generated images themselves.

D. Chen, T. Orekondy, M. Fritz, "GS-WGAN: A Gradient-Sanitized Approach for Learning Differentially Private Generators",
NeurIPS 2020, Algorithm 2. Symbols: K clients with one critic each, C the clip bound. The unit of privacy is a whole
client.

What differs from the published algorithm, so that each viewer's epsilon is true (proof: docs/federated.md):

1. training goes in rounds. In each, *every* enrolled client gets one message: a public pool of generated images to
   train its critic on, and the query images that were routed to it, padded to a fixed number of slots;
2. for *each* query a client is drawn secretly, independently and uniformly over all that are enrolled, whether they can
   be reached or not. Its answer is clipped and noised by the client;
3. all answers of a round are put back into the order of the queries before the generator learns from any of them, so
   what it learns does not show who answered. A lost, late, refused or invalid answer is zero plus full noise.

So each answer is one routed event for the public, one plain Gaussian for the server, and one event routed over the
remaining clients for colluding ones. The same code runs a simulation (all critics as one bank) and a server whose
clients are reached by messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from understudy._lazy import LazyModule
from understudy.data.domain import Domain
from understudy.errors import BudgetError, InputError
from understudy.federated.contract import Contract
from understudy.federated.messages import bytes_per_step
from understudy.methods.base import Method, Plan
from understudy.methods.configuration import MethodConfig, PrivacyConfig
from understudy.privacy import accounting, viewers
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import ClientLimits, Guarantee
from understudy.privacy.events import Event, RoutedSampling
from understudy.training.settings import Count, CriticSettings, GeneratorSettings, Positive

if TYPE_CHECKING:
    from understudy.federated import fleet, player, routing
    from understudy.federated.fleet import Fleet
    from understudy.federated.player import RoundPlayer
    from understudy.federated.routing import RoutingDesk
    from understudy.models.generator import Generator
    from understudy.privacy import mechanisms
    from understudy.training import critic_panel, states
    from understudy.training.run import Run
else:
    fleet = LazyModule("understudy.federated.fleet")
    player = LazyModule("understudy.federated.player")
    routing = LazyModule("understudy.federated.routing")
    mechanisms = LazyModule("understudy.privacy.mechanisms")
    critic_panel = LazyModule("understudy.training.critic_panel")
    states = LazyModule("understudy.training.states")

_QUERIES_PER_CLIENT, _QUERIES_PER_CLIENT_AND_ROUND = 2400, 12
_LIMITS_SHARE = 0.01  # of delta, for limits that are decided here
_PURPOSE = "clients' answers"
_LONGEST = 50  # reports


class FederatedPrivacy(PrivacyConfig):
    """What changes epsilon; ``None`` is decided from the declared number of clients."""

    queries: Count | None = None
    queries_per_round: Count | None = None
    slots: Count | None = None  # queries that one message can hold
    answers_per_client: Count | None = None  # that any client gives at most
    colluding_clients: Count = 1
    clip: Positive = 0.1  # C


class FederatedSettings(BaseModel):
    """The game between the generator and the clients' critics; ``critics.rounds`` steps of a critic for each message.

    ``federation`` tells federations apart; ``critics.per_step`` is how many critics a simulation trains at a time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    federation: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = "0" * 32
    steps_per_round: Count = 8  # generator steps
    pool: Count = 64
    answer_bits: Literal[8, 16] = 8
    critics: CriticSettings = CriticSettings(warm_iterations=100, per_step=100)
    generator: GeneratorSettings = GeneratorSettings(learning_rate=3e-4)


class FederatedConfig(MethodConfig):
    """The config of ``gs-wgan-federated``."""

    privacy: FederatedPrivacy = FederatedPrivacy()
    method: FederatedSettings = FederatedSettings()


_PUBLISHED = {  # Algorithm 2 with the paper's settings; the noise is far too small for its epsilon to be of use
    "privacy": {"noise_multiplier": 1.07, "clip": 1.0},
    "method": {
        "critics": {"learning_rate": 1e-4, "warm_iterations": 2000},
        "generator": {"kind": "resnet", "latent": 10, "latent_law": "bernoulli", "average_decay": 0.999},
    },
}


class GsWganFederated(Method):
    """One critic per client, one generator that hears only what clients have sanitized."""

    name: ClassVar[str] = "gs-wgan-federated"
    summary: ClassVar[str] = "one critic per client; clients send clipped, noised gradients and nothing else"
    paper: ClassVar[str] = "Chen, Orekondy, Fritz: GS-WGAN (NeurIPS 2020), Algorithm 2"
    config_type: ClassVar[type[MethodConfig]] = FederatedConfig
    federated: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"published": _PUBLISHED})

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Answers routed over all enrolled clients, with the least noise that the public budget allows."""
        assert isinstance(config, FederatedConfig)
        config = _decided(config, domain, budget)
        accounted = Budget(budget.epsilon, _accounted_delta(limits_of(config, domain), budget))

        def events(multiplier: float) -> tuple[Event, ...]:
            return (_answer_event(config, domain, multiplier),)

        planned = events(config.privacy.noise_multiplier or accounting.calibrate(events, accounted))
        decided = config.with_noise(planned[0].noise_multiplier)
        assert isinstance(decided, FederatedConfig)
        limits = limits_of(decided, domain)
        return Plan(
            method=self.name,
            config=decided,
            domain=domain,
            budget=budget,
            events=planned,
            epsilon=accounting.certified_epsilon(planned, accounted.delta),
            steps=limits.rounds * decided.method.steps_per_round,
            memory_bytes=decided.method.critics.memory_bytes(domain, limits.clients),
            seconds=_seconds(decided, limits, critic_steps_per_second=20, queries_per_second=200),
            seconds_on_gpu=_seconds(decided, limits, critic_steps_per_second=7000, queries_per_second=7000),
            remarks=_remarks(decided, domain, budget),
            limits=limits,
        )

    def claims(self, config: MethodConfig, events: Sequence[Event], budget: Budget) -> list[Guarantee]:
        """What holds against the public, against the server and against colluding clients."""
        assert isinstance(config, FederatedConfig)
        sampling = events[0].sampling
        assert isinstance(sampling, RoutedSampling)
        limits = _limits(config, sampling.subsets)
        public = _limited_claim(events, limits, budget, "public", None)
        server = _server_claim(events, limits, budget.delta)
        coalition = config.privacy.colluding_clients
        colluding = []
        if coalition < sampling.subsets:
            colluding = [_limited_claim(events, limits, budget, "client", coalition)]
        return [claim for claim in (public, server, *colluding) if claim is not None]

    def contract(self, plan: Plan) -> Contract:
        """The contract that a plan means for the clients."""
        assert isinstance(plan.config, FederatedConfig)
        return federation_contract(plan.config, plan.domain)

    def train(self, run: Run) -> Generator:
        """Algorithm 2 in rounds: show the pool to all clients, ask a secret one about each image, learn from all."""
        config = _config(run)
        contract = federation_contract(config, run.plan.domain)
        generator = player.RoundPlayer(run, config.method.generator)
        desk = routing.RoutingDesk(contract.limits, run.randomness.bits)
        progress = states.Resumable(run, generator.average, {**generator.parts(), "routing": desk})
        clients = _fleet(run, contract, generator, resumed=progress.resumed)
        answering = mechanisms.GaussianAnswers(run.ledger, run.randomness, clip=contract.clip, event=run.plan.events[0])
        for number in progress.steps(contract.limits.rounds):
            if answering.account.remaining < contract.limits.queries:
                progress.save(number - 1)  # a crash lost reserved answers: fewer rounds, never more answers
                break
            _play_round(contract, generator, desk, clients, answering, config.method.steps_per_round)
            if number % max(1, contract.limits.rounds // _LONGEST) == 0 or number == contract.limits.rounds:
                answering.check_finite()
                _report(run, number, contract, generator)
        answering.check_finite()
        return generator.average


def _play_round(
    contract: Contract, generator: RoundPlayer, desk: RoutingDesk, clients: Fleet,
    answering: mechanisms.GaussianAnswers, steps: int,
) -> None:  # fmt: skip
    """One round.

    Privacy: pool and query images come from the generator as it stood before the round and the routing is drawn apart
    from them; answers are used only when all of them are there, in query order. The number of the round follows from
    the ledger, so that no number comes twice, whatever crashed.
    """
    inputs = generator.draw_inputs(contract.limits.queries)
    asked = fleet.Round(
        number=answering.account.reserved // contract.limits.queries,
        pool=generator.shown(generator.draw_inputs(contract.pool)),
        queries=generator.shown(inputs),
        routed=desk.route(),
    )
    answers_dp = clients.answers(asked, answering).to(inputs.latent.device)
    generator.learn_from(inputs, answers_dp / contract.clip, min(steps, contract.limits.queries))


def _fleet(run: Run, contract: Contract, generator: RoundPlayer, *, resumed: bool) -> Fleet:
    """Clients behind messages where the run was given a transport, else all of them simulated from the run's data."""
    if run.transport is not None:
        return fleet.RemoteFleet(contract, run.transport)
    home = critic_panel.Home(run.randomness, run.device, run.plan.config.runtime.precision)
    simulated = fleet.SimulatedFleet(run.data, contract, home)
    if resumed:
        simulated.catch_up(generator.shown(generator.draw_inputs(contract.pool)))
    else:
        simulated.warm_start()
    return simulated


def _report(run: Run, number: int, contract: Contract, generator: RoundPlayer) -> None:
    """Public progress: from generated images, the plan and the sizes of messages, which are fixed."""
    steps = _config(run).method.steps_per_round
    contrast = generator.check_alive(generator.pool(contract.pool).images)
    run.report(
        number * steps,
        contrast=contrast,
        rounds=number,
        answers=number * contract.limits.queries,
        bytes_per_step=bytes_per_step(contract, steps),
    )


def federation_contract(config: FederatedConfig, domain: Domain) -> Contract:
    """The contract that a decided config means for the clients."""
    assert config.privacy.noise_multiplier is not None, "decided by the plan"
    return Contract(
        kind="gs-wgan-federated",
        federation=config.method.federation,
        domain=domain,
        limits=limits_of(config, domain),
        noise_multiplier=config.privacy.noise_multiplier,
        clip=config.privacy.clip,
        critics=config.method.critics,
        pool=config.method.pool,
        answer_bits=config.method.answer_bits,
    )


def limits_of(config: FederatedConfig, domain: Domain) -> ClientLimits:
    """The limits that a decided config sets."""
    return _limits(config, enrolled(domain))


def _limits(config: FederatedConfig, clients: int) -> ClientLimits:
    privacy = config.privacy
    per_round, queries = privacy.queries_per_round or 1, privacy.queries or 1
    return ClientLimits(
        clients=clients,
        rounds=queries // per_round,
        queries=per_round,
        slots=privacy.slots or per_round,
        answers=privacy.answers_per_client or queries,
    )


def enrolled(domain: Domain) -> int:
    """The declared, public number of enrolled clients."""
    if domain.nominal_clients is None:
        raise InputError(
            "clients: the data have none; load them with clients=true and declare nominal_clients, or deal them out "
            "with --clients N"
        )
    return domain.nominal_clients


def _decided(config: FederatedConfig, domain: Domain, budget: Budget) -> FederatedConfig:
    """The config with everything filled in that was left to the declared domain."""
    privacy, method, clients = config.privacy, config.method, enrolled(domain)
    total = privacy.queries or _QUERIES_PER_CLIENT * clients
    per_round = min(total, privacy.queries_per_round or _QUERIES_PER_CLIENT_AND_ROUND * clients)
    rounds = max(1, total // per_round)
    chance = _LIMITS_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700))) / 2
    slots = privacy.slots or viewers.smallest_limit(per_round, clients, chance / (rounds * clients))
    answers = privacy.answers_per_client or viewers.smallest_limit(rounds * per_round, clients, chance / clients)
    update = {
        "queries": rounds * per_round,
        "queries_per_round": per_round,
        "slots": min(slots, per_round),
        "answers_per_client": min(answers, rounds * per_round),
    }
    width = 64 if domain.shape[1] * domain.shape[2] > 16 * 16 else 16
    critics = {"width": method.critics.width or width, "per_step": min(method.critics.per_step, clients)}
    settings = {
        "critics": method.critics.model_copy(update=critics),
        "generator": method.generator.model_copy(
            update={"output": method.generator.output or "clamp", "width": method.generator.width or 32}
        ),
    }
    changed = {"privacy": privacy.model_copy(update=update), "method": method.model_copy(update=settings)}
    return config.model_copy(update=changed)


def _answer_event(config: FederatedConfig, domain: Domain, noise_multiplier: float) -> Event:
    return Event(
        noise_multiplier=noise_multiplier,
        sensitivity="2C",
        unit="client",
        sampling=RoutedSampling(subsets=enrolled(domain)),
        count=config.privacy.queries or 1,
        purpose=_PURPOSE,
    )


def _accounted_delta(limits: ClientLimits, budget: Budget) -> float:
    """What the limits leave of delta for the accountants, at the largest epsilon that may be claimed."""
    left = budget.delta - viewers.limits_delta(limits, budget.epsilon)
    if left < budget.delta / 2:
        raise BudgetError(
            f"limits: {limits.slots} slots and {limits.answers} answers per client cut off answers too often for delta "
            f"{budget.delta:g}; raise privacy.slots and privacy.answers_per_client, or leave them out"
        )
    return left


def _limited_claim(
    events: Sequence[Event], limits: ClientLimits, budget: Budget, viewer: str, coalition: int | None
) -> Guarantee | None:
    """A claim whose delta pays for the limits too; None where they cost more than delta."""
    fields: dict[str, Any] = {
        "unit": "client", "viewer": viewer, "adjacency": "add-remove", "delta": budget.delta,
        "limits": limits, "coalition": coalition,
    }  # fmt: skip
    seen = viewers.events_seen(events, Guarantee.model_validate({**fields, "epsilon": 0.0}))
    guess = budget.epsilon
    while (part := viewers.limits_delta(limits, guess)) < budget.delta / 2:
        epsilon = accounting.certified_epsilon(seen, budget.delta - part)
        if epsilon <= guess:
            parts = {"accountant": budget.delta - part, viewers.LIMITS_PART: part}
            return Guarantee.model_validate({**fields, "epsilon": epsilon, "delta_parts": parts})
        guess = epsilon * 1.01 + 0.01
    return None


def _server_claim(events: Sequence[Event], limits: ClientLimits, delta: float) -> Guarantee | None:
    """Every client refuses past its limit, so no part of delta is needed; None where epsilon says nothing any more."""
    fields = {"unit": "client", "viewer": "server", "adjacency": "replace-one", "delta": delta, "limits": limits}
    seen = viewers.events_seen(events, Guarantee.model_validate({**fields, "epsilon": 0.0}))
    epsilon = accounting.certified_epsilon(seen, delta)
    if not math.isfinite(epsilon):
        return None
    return Guarantee.model_validate({**fields, "epsilon": epsilon, "delta_parts": {"accountant": delta}})


def _remarks(config: FederatedConfig, domain: Domain, budget: Budget) -> tuple[str, ...]:
    contract = federation_contract(config, domain)
    size = bytes_per_step(contract, config.method.steps_per_round)
    remarks = [f"messages: {size:,.0f} bytes to and from each client for every generator step"]
    if budget.delta * contract.limits.clients > 0.01:
        remarks.append(
            f"delta: {budget.delta:g} times {contract.limits.clients} clients is more than 0.01; choose a smaller "
            "delta, since delta may mean that a client is exposed outright"
        )
    return tuple(remarks)


def _seconds(
    config: FederatedConfig, limits: ClientLimits, *, critic_steps_per_second: float, queries_per_second: float
) -> float:
    """A rough time of a simulation, from speeds seen at 28x28 and width 64."""
    critics = config.method.critics
    steps = limits.clients * (limits.rounds * critics.rounds + critics.warm_iterations)
    relative = ((critics.width or 64) / 64) ** 2
    return relative * steps / critic_steps_per_second + limits.rounds * limits.queries / queries_per_second + 10


def _config(run: Run) -> FederatedConfig:
    assert isinstance(run.plan.config, FederatedConfig)
    return run.plan.config
