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

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from understudy.configs import MethodConfig
from understudy.data.domain import Domain
from understudy.federated.claims import accounted_delta, claims_by_viewer, delta_remarks, enrolled
from understudy.federated.config import (
    FederatedConfig,
    answer_event,
    decided,
    embedding_event,
    federation_contract,
    limits_of,
    rough_seconds,
)
from understudy.federated.contract import Contract, FederatedMethod
from understudy.federated.messages import bytes_per_step
from understudy.methods.base import finish_plan
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Guarantee
from understudy.privacy.events import Event, RoutedSampling
from understudy.privacy.plan import Costs, Plan
from understudy.privacy.viewers import Viewer

if TYPE_CHECKING:
    from understudy.engines.embedding.start import EmbeddingStart
    from understudy.engines.learner import SlopeLearner
    from understudy.federated.fleet import Fleet
    from understudy.federated.routing import RoutingDesk
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.privacy.mechanisms import GaussianAnswers
    from understudy.runs.run import Run

_REPORTS = 50
_NOT_COVERED = (
    "whether and when a client takes part: the server and the network see it; that no client stays away because of its "
    "data or its queries is an assumption behind all three guarantees",
    "a server that tells others the routing: the guarantees against the public and against clients rest on the "
    "secrecy of the routing, the one against the server does not",
    "a client that does not run this software: its own answers may lack their noise, and so may its part of the noise "
    "of the embeddings, which protects the others; count it as a colluding client, against the public too",
    "whether clients were apart: a simulation runs all of them in one process, and then what is promised against the "
    "server and against clients describes the protocol, not that process",
)
_PUBLISHED = {  # Algorithm 2 with the paper's settings; the noise is far too small for its epsilon to be of use
    "privacy": {"noise_multiplier": 1.07, "clip": 1.0, "embedding_share": 0.0},
    "method": {
        "critics": {"learning_rate": 1e-4, "warm_iterations": 2000},
        "generator": {"kind": "resnet", "latent": 10, "latent_law": "bernoulli", "average_decay": 0.999},
    },
}
# No embedding: the generator learns from the critics alone, as in the paper.
_RANDOM_START = {"privacy": {"embedding_share": 0.0}, "method": {"generator": {"learning_rate": 3e-4}}}
# A longer fit to the embeddings, in larger batches: a minute on a graphics card, an hour without one. With hundreds of
# clients half of epsilon for the embeddings costs the answers little: at 359 clients their noise rises by a seventh. A
# weak pull lets the answers move the images.
_GPU = {
    "privacy": {"embedding_share": 0.5},
    "method": {
        "embedding": {"steps": 3000, "batch": 1080},
        "generator": {"embedding_pull": 5.0, "learning_rate": 2e-4},
    },
    "runtime": {"precision": "bf16"},
}


class GsWganFederated(FederatedMethod):
    """One critic per client, one generator that hears only what clients have sanitized."""

    name: ClassVar[str] = "gs-wgan-federated"
    summary: ClassVar[str] = "one critic per client; clients send clipped, noised gradients and nothing else"
    paper: ClassVar[str] = "Chen, Orekondy, Fritz: GS-WGAN (NeurIPS 2020), Algorithm 2"
    config_type: ClassVar[type[MethodConfig]] = FederatedConfig
    not_covered: ClassVar[tuple[str, ...]] = _NOT_COVERED
    presets: ClassVar = {"random-start": _RANDOM_START, "published": _PUBLISHED, "gpu": _GPU}

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Answers routed over all enrolled clients, with the least noise that the public budget allows."""
        assert isinstance(config, FederatedConfig)
        config = decided(config, domain, budget)
        limits = limits_of(config, enrolled(domain))
        accounted = Budget(budget.epsilon, accounted_delta(limits, budget))

        def events(multiplier: float) -> tuple[Event, ...]:
            return (answer_event(config, domain, multiplier), *embedding_event(config, domain))

        costs = Costs(
            steps=limits.rounds * config.method.steps_per_round,
            memory_bytes=config.method.critics.memory_bytes(domain, limits.clients),
            seconds=rough_seconds(config, limits, critic_steps_per_second=20, queries_per_second=200),
            seconds_on_gpu=rough_seconds(config, limits, critic_steps_per_second=7000, queries_per_second=7000),
        )
        plan = finish_plan(self, config, domain, accounted, events, costs)
        return replace(plan, budget=budget, remarks=_remarks(self.contract(plan), config, budget), limits=limits)

    def viewers(self, config: MethodConfig, domain: Domain) -> tuple[Viewer, ...]:
        """The public, the server that asks, and as many colluding clients as the config says, if others are left."""
        assert isinstance(config, FederatedConfig)
        united = config.privacy.colluding_clients
        colluding = (Viewer("client", "add-remove", united),) if united < enrolled(domain) else ()
        return (Viewer(), Viewer("server", "replace-one"), *colluding)

    def claims(self, config: MethodConfig, events: Sequence[Event], budget: Budget) -> list[Guarantee]:
        """What holds against the public, against the server and against colluding clients."""
        assert isinstance(config, FederatedConfig)
        sampling = events[0].sampling
        assert isinstance(sampling, RoutedSampling)
        limits = limits_of(config, sampling.subsets)
        return claims_by_viewer(events, limits, budget, config.privacy.colluding_clients)

    def contract(self, plan: Plan) -> Contract:
        """The contract that a plan means for the clients."""
        assert isinstance(plan.config, FederatedConfig)
        return federation_contract(plan.config, plan.domain)

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that learns from answers."""
        assert isinstance(config, FederatedConfig)
        return config.method.generator.network(domain)

    def train(self, run: Run) -> Generator:
        """Algorithm 2 in rounds: show the pool to all clients, ask a secret one about each image, learn from all."""
        from understudy.engines.learner import SlopeLearner
        from understudy.federated.routing import RoutingDesk
        from understudy.privacy.mechanisms import GaussianAnswers
        from understudy.runs.loop import Resumable

        config = run.plan.config_as(FederatedConfig)
        contract = federation_contract(config, run.plan.domain)
        clients = _fleet(run, contract)
        generator = SlopeLearner(run, config.method.generator, _start(run, contract, clients))
        desk = RoutingDesk(contract.limits, run.randomness.bits, run.files.routing)
        progress = Resumable(run, generator.released, generator.parts())
        if generator.start and not progress.resumed:
            generator.fit_start(run, config.method.embedding)
        _prepare(clients, contract, generator, resumed=progress.resumed)
        answering = GaussianAnswers(run.ledger, run.randomness, clip=contract.clip, event=run.plan.events[0])
        desk.remember(answering.account.reserved // contract.limits.queries)
        for number in progress.steps(contract.limits.rounds):
            if answering.account.remaining < contract.limits.queries:
                progress.end_after(number - 1)
                break
            _play_round(contract, generator, desk, clients, answering, config.method.steps_per_round)
            if number % max(1, contract.limits.rounds // _REPORTS) == 0 or number == contract.limits.rounds:
                answering.check_finite()
                _report(run, number, contract, generator)
        answering.check_finite()
        return generator.released


def _play_round(
    contract: Contract, generator: SlopeLearner, desk: RoutingDesk, clients: Fleet,
    answering: GaussianAnswers, steps: int,
) -> None:  # fmt: skip
    """One round.

    Privacy: pool and query images come from the generator as it stood before the round and the routing is drawn apart
    from them; answers are used only when all of them are there, in query order. The number of the round follows from
    the ledger, so that no number comes twice, whatever crashed.
    """
    from understudy.federated.fleet import Round, travelling

    inputs = generator.draw_inputs(contract.limits.queries)
    number = answering.account.reserved // contract.limits.queries
    asked = Round(
        number=number,
        pool=travelling(generator.show(generator.draw_inputs(contract.pool))),
        queries=travelling(generator.show(inputs)),
        routed=desk.route(number),
    )
    answers_dp = clients.answers(asked, answering).to(inputs.latent.device)
    generator.learn_from(inputs, answers_dp / contract.clip, min(steps, contract.limits.queries))


def _fleet(run: Run, contract: Contract) -> Fleet:
    """Clients behind messages where the run was given a transport, else all of them simulated from the run's data."""
    from understudy.engines.critics.panel import Home
    from understudy.federated.fleet import RemoteFleet, SimulatedFleet

    if run.transport is not None:
        return RemoteFleet(contract, run.transport)
    home = Home(run.randomness, run.device, run.plan.config.runtime.precision)
    return SimulatedFleet(run.data, contract, home)


def _start(run: Run, contract: Contract, clients: Fleet) -> EmbeddingStart | None:
    """The sum of all clients' embeddings to start from; None where the plan has none.

    Privacy: one execution; each client clips its embedding to 1 and adds its part of the noise (docs/federated.md).
    """
    from understudy.engines.embedding.start import EmbeddingStart
    from understudy.federated.client_mechanisms import GaussianParts
    from understudy.federated.embedding import features, noisy_means

    if contract.embedding is None:
        return None
    mechanism = GaussianParts(run.ledger, run.randomness, clip=1.0, event=run.plan.events[1])
    total_dp = clients.embedding(mechanism, run.files.embedding).to(run.device)
    return EmbeddingStart(features(contract, run.device), noisy_means(total_dp, contract))


def _prepare(clients: Fleet, contract: Contract, generator: SlopeLearner, *, resumed: bool) -> None:
    """Bring simulated critics to where they should be before the next round; real clients do so for themselves."""
    from understudy.federated.fleet import SimulatedFleet, travelling

    if not isinstance(clients, SimulatedFleet):
        return
    if resumed:
        clients.catch_up(travelling(generator.show(generator.draw_inputs(contract.pool))))
    else:
        clients.warm_start()


def _report(run: Run, number: int, contract: Contract, generator: SlopeLearner) -> None:
    """Public progress: from generated images, the plan and the sizes of messages, which are fixed."""
    steps = run.plan.config_as(FederatedConfig).method.steps_per_round
    contrast = generator.check_alive(generator.pool(contract.pool).images)
    run.report(
        number * steps,
        contrast=contrast,
        rounds=number,
        answers=number * contract.limits.queries,
        bytes_per_step=bytes_per_step(contract, steps),
    )


def _remarks(contract: Contract, config: FederatedConfig, budget: Budget) -> tuple[str, ...]:
    size = bytes_per_step(contract, config.method.steps_per_round)
    messages = f"messages: {size:,.0f} bytes to and from each client for every generator step"
    return (messages, *delta_remarks(budget.delta, contract.limits.clients))
