"""Fed-Avg GAN: a discriminator averaged over clients, with the noise added by a trusted server.

S. Augenstein et al., "Generative Models for Effective ML on Private, Decentralized Datasets", ICLR 2020; DP-FedAvg by
H. B. McMahan et al., ICLR 2018. In each round every client takes part with probability q, secretly and independently;
it trains the discriminator on its own images and sends the change, clipped to C. The server adds Normal(0, (C * s)^2)
to the sum of changes, divides by the *expected* number of participants, and then trains the generator against the
discriminator, which costs nothing more.

The unit is a client, and the guarantee holds against the public. There is none against the server, which sees every
change without noise. The critic and its loss are those of ``gs-wgan-federated``, so that the two can be compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from understudy.configs import Count, MethodConfig, Positive, PrivacyConfig
from understudy.data.domain import Domain
from understudy.engines.config import CriticsConfig, LearnerConfig
from understudy.federated.claims import delta_remarks, enrolled
from understudy.federated.contract import Contract, FederatedMethod
from understudy.methods.base import finish_plan
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import ClientLimits
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.engines.critics.bank import CriticBank
    from understudy.engines.learner import SlopeLearner
    from understudy.federated.updates import Updates
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.privacy.mechanisms import GaussianSum
    from understudy.runs.run import Run

_REPORTS = 50
_NO_CLAIM = (
    "the server: it sees every client's update without noise, so the guarantee holds against the public alone; nor "
    "whoever watches the network and sees who takes part"
)


class FedAvgPrivacy(PrivacyConfig):
    """What changes epsilon. ``clients_per_round`` is expected, not exact; None is a tenth of those enrolled."""

    rounds: Count = 500
    clients_per_round: Positive | None = None
    clip: Positive = 1.0  # C


class FedAvgMethodConfig(BaseModel):
    """The game; ``critics.rounds`` local steps of the discriminator for each message."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    federation: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = "0" * 32
    generator_steps: Count = 5  # a round
    batch: Count = 256
    pool: Count = 64
    server_learning_rate: Positive = 1.0
    critics: CriticsConfig = CriticsConfig(warm_iterations=0, learning_rate=1e-4)
    generator: LearnerConfig = LearnerConfig()


class FedAvgConfig(MethodConfig):
    """The config of ``fedavg-gan``."""

    privacy: FedAvgPrivacy = FedAvgPrivacy()
    method: FedAvgMethodConfig = FedAvgMethodConfig()


class FedAvgGan(FederatedMethod):
    """DP-FedAvg on the discriminator, the generator on the server."""

    name: ClassVar[str] = "fedavg-gan"
    summary: ClassVar[str] = "a discriminator averaged over clients; a trusted server adds the noise (baseline)"
    paper: ClassVar[str] = "Augenstein et al.: Generative Models for Effective ML on Private, Decentralized Datasets"
    config_type: ClassVar[type[MethodConfig]] = FedAvgConfig
    not_covered: ClassVar[tuple[str, ...]] = (_NO_CLAIM,)

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Poisson-sampled sums of clipped updates, with the least noise that the budget allows."""
        assert isinstance(config, FedAvgConfig)
        config = _decided(config, domain)
        clients = enrolled(domain)

        def events(multiplier: float) -> tuple[Event, ...]:
            return (_event(config, clients, multiplier),)

        settings, rounds = config.method, config.privacy.rounds
        steps = rounds * (config.privacy.clients_per_round or 1) * settings.critics.rounds
        costs = Costs(
            steps=rounds * settings.generator_steps,
            memory_bytes=settings.critics.memory_bytes(domain, clients),
            seconds=steps / 20 + rounds * settings.generator_steps * settings.batch / 200 + 10,
            seconds_on_gpu=steps / 2000 + rounds * settings.generator_steps * settings.batch / 7000 + 10,
        )
        remarks = (f"there is no guarantee against {_NO_CLAIM}", *delta_remarks(budget.delta, clients))
        return replace(finish_plan(self, config, domain, budget, events, costs), remarks=remarks)

    def contract(self, plan: Plan) -> Contract:
        """The contract that a plan means for the clients."""
        assert isinstance(plan.config, FedAvgConfig)
        return _contract(plan.config, plan.domain)

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that learns from the discriminator."""
        assert isinstance(config, FedAvgConfig)
        return config.method.generator.network(domain)

    def train(self, run: Run) -> Generator:
        """Rounds of: secret participants, their clipped changes, one noisy sum, and free steps of the generator."""
        from understudy.engines.critics.panel import Home
        from understudy.engines.learner import SlopeLearner
        from understudy.federated.updates import RemoteUpdates, SimulatedUpdates, make_discriminator
        from understudy.privacy.mechanisms import GaussianSum
        from understudy.runs.loop import Resumable

        config = run.plan.config_as(FedAvgConfig)
        contract = _contract(config, run.plan.domain)
        home = Home(run.randomness, run.device, run.plan.config.runtime.precision)
        generator = SlopeLearner(run, config.method.generator)
        discriminator = make_discriminator(contract, home)
        state = _Discriminator(discriminator)
        progress = Resumable(run, generator.released, {**generator.parts(), "discriminator": state})
        clients: Updates = (
            SimulatedUpdates(run.data, contract, home)
            if run.transport is None
            else RemoteUpdates(contract, run.transport)
        )
        mechanism = GaussianSum(run.ledger, run.randomness, clip=contract.clip, event=run.plan.events[0])
        for number in progress.steps(config.privacy.rounds):
            if mechanism.account.remaining < 1:
                progress.end_after(number - 1)
                break
            average(run, config, discriminator, clients, mechanism, generator)
            for _ in range(config.method.generator_steps):
                _teach(generator, discriminator, config.method.batch)
            if number % max(1, config.privacy.rounds // _REPORTS) == 0 or number == config.privacy.rounds:
                mechanism.check_finite()
                _report(run, number, contract, generator, discriminator)
        mechanism.check_finite()
        return generator.released


def average(
    run: Run, config: FedAvgConfig, discriminator: CriticBank, clients: Updates,
    mechanism: GaussianSum, generator: SlopeLearner,
) -> None:  # fmt: skip
    """One round of federated averaging.

    Privacy: each client takes part with probability q, secretly and independently; adding or removing one moves the sum
    of clipped changes by at most C. A client that stays away or sends rubbish adds nothing. Division is by the expected
    number of participants, a public constant. One execution of a Poisson-sampled Gaussian.
    """
    import torch

    from understudy.federated.fleet import travelling
    from understudy.federated.updates import Weights, chosen_clients, settle

    contract = _contract(config, run.plan.domain)
    rate = _rate(config, contract.limits.clients)
    flips = run.randomness.coins(torch.device("cpu")).flip((contract.limits.clients,), rate)
    pool = travelling(generator.show(generator.draw_inputs(contract.pool)))
    weights = Weights(discriminator.parameters.clone(), discriminator.vectors.clone())
    changes_private = clients.of(chosen_clients(flips), mechanism.account.reserved, weights, pool)
    total = torch.zeros(discriminator.parameters.shape[1], dtype=torch.float64, device=run.device)
    mechanism.accumulate(total, changes_private.to(run.device))
    mean_dp = mechanism.release(total).value_dp / (rate * contract.limits.clients)
    discriminator.parameters += (config.method.server_learning_rate * mean_dp).float()
    settle(discriminator)


def _teach(generator: SlopeLearner, discriminator: CriticBank, batch: int) -> None:
    """One step of the generator against the discriminator, which is sanitized already: free."""
    import torch

    drawn = generator.imagine(batch)
    routing = torch.zeros(batch, dtype=torch.long, device=discriminator.device)
    slopes: Tensor = discriminator.query(drawn.pool.images, drawn.pool.labels, routing).flatten(1)
    generator.learn(drawn, slopes)


def _report(run: Run, number: int, contract: Contract, generator: SlopeLearner, discriminator: CriticBank) -> None:
    """Public progress: from generated images, the plan and the sizes of messages, which are fixed."""
    from understudy.federated.updates import message_bytes

    steps = run.plan.config_as(FedAvgConfig).method.generator_steps
    sizes = message_bytes(contract, discriminator.parameters.shape[1], discriminator.vectors.shape[1])
    contrast = float(generator.pool(contract.pool).images.flatten(1).std(dim=1).mean())
    run.report(number * steps, contrast=contrast, rounds=number, bytes_per_step=sum(sizes) / steps)


class _Discriminator:
    """The server's discriminator as a part of checkpoints; it is sanitized, so it may be kept."""

    def __init__(self, bank: CriticBank) -> None:
        self._bank = bank

    def state_dict(self) -> dict[str, Tensor]:
        """All that must be restored."""
        return self._bank.state()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore it."""
        self._bank.load_state(state)


def _contract(config: FedAvgConfig, domain: Domain) -> Contract:
    assert config.privacy.noise_multiplier is not None, "decided by the plan"
    rounds, clients = config.privacy.rounds, enrolled(domain)
    return Contract(
        kind="fedavg-gan",
        federation=config.method.federation,
        domain=domain,
        limits=ClientLimits(clients=clients, rounds=rounds, queries=clients, slots=1, answers=rounds),
        noise_multiplier=config.privacy.noise_multiplier,
        clip=config.privacy.clip,
        critics=config.method.critics,
        pool=config.method.pool,
    )


def _decided(config: FedAvgConfig, domain: Domain) -> FedAvgConfig:
    """The config with everything filled in that was left to the declared domain."""
    method, clients = config.method, enrolled(domain)
    each = min(float(clients), config.privacy.clients_per_round or max(1.0, clients / 10))
    width = 16 if domain.small else 64
    critics = {"width": method.critics.width or width, "per_step": min(method.critics.per_step, clients)}
    output = {"output": method.generator.output or "clamp", "width": method.generator.width or 32}
    settings = {
        "critics": method.critics.model_copy(update=critics),
        "generator": method.generator.model_copy(update=output),
    }
    privacy = config.privacy.model_copy(update={"clients_per_round": each})
    return config.model_copy(update={"privacy": privacy, "method": method.model_copy(update=settings)})


def _rate(config: FedAvgConfig, clients: int) -> float:
    return min(1.0, (config.privacy.clients_per_round or 1.0) / clients)


def _event(config: FedAvgConfig, clients: int, noise_multiplier: float) -> Event:
    return Event(
        noise_multiplier=noise_multiplier,
        sensitivity="C",
        unit="client",
        sampling=PoissonSampling(rate=_rate(config, clients)),
        count=config.privacy.rounds,
        purpose="clients' updates",
    )
