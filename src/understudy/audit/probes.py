"""Probes: for each method a plan so small that it can be played a hundred thousand times, and the games it consists of.

A probe is planned by the method itself, with the noise that its budget asks for; it differs from a real run in its
counts and rates alone. A method has a game for each event of its plan, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from understudy.audit.games import Game, ReleasedEmbedding, SampledBlocks, SampledClients, SampledSum, TaughtSum
from understudy.audit.query_games import ClientParts, MessageAnswers, RevealedAnswers, RoutedAnswers, Votes
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.federated.contract import get_federated_method
from understudy.methods.config import build_config
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event

_DOMAIN = Domain(shape=(1, 8, 8), classes=3, nominal_records=40, nominal_clients=4)
_POISSON = {"batch": 20, "steps": 4}  # a rate of a half
_VOTES = {"teachers": 4, "queries": 4}
_VOTING = {"queries_per_step": 4}


@dataclass(frozen=True)
class Probe:
    """What is played for a method, and against whom its answer counts."""

    method: str
    games: tuple[Game, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    viewer: Literal["public", "server"] = "public"
    variant: str = "default"
    domain: Domain = _DOMAIN

    def events(self, budget: Budget) -> tuple[Event, ...]:
        """The events of the probe's plan, as its viewer sees them."""
        method = get_method(self.method)
        plan = method.plan(build_config(method.config_type, self.config), self.domain, budget)
        if self.viewer == "server":
            return get_federated_method(self.method).contract(plan).client_events()
        return plan.events


PROBES = (
    Probe("dp-merf", (ReleasedEmbedding(),)),
    Probe(
        "dp-merf",
        (ReleasedEmbedding(), TaughtSum()),
        {"privacy": {"teacher_share": 0.8, "teacher_steps": 3}},
        variant="with a teacher",
    ),
    Probe(
        "dp-merf",
        (ReleasedEmbedding(), SampledSum()),
        {"privacy": {"teacher_share": 0.8, "teacher_steps": 3, "teacher_batch": 20}, "teacher": {"kind": "network"}},
        variant="with a network as its teacher",
    ),
    Probe(
        "dp-merf", (ReleasedEmbedding(),), variant="people", domain=_DOMAIN.model_copy(update={"nominal_people": 40})
    ),
    Probe("dp-hp", (ReleasedEmbedding(),)),
    Probe("dp-merf-ae", (SampledSum(), ReleasedEmbedding()), {"privacy": _POISSON}),
    Probe("dp-sinkhorn", (SampledBlocks(), ReleasedEmbedding()), {"privacy": _POISSON}),
    Probe("dpgan", (SampledSum(), ReleasedEmbedding()), {"privacy": _POISSON}),
    Probe("dp-diffusion", (SampledSum(), ReleasedEmbedding()), {"privacy": _POISSON}),
    Probe(
        "dp-diffusion",
        (SampledSum(), SampledSum()),
        {"privacy": {**_POISSON, "start": "central-images", "central_images": {"rate": 0.5, "queries": 2}}},
        variant="from central images",
    ),
    Probe("dp-cgan", (SampledSum(),), {"privacy": _POISSON}),
    Probe("bdp-gan", (SampledSum(), ReleasedEmbedding()), {"privacy": _POISSON}),
    Probe(
        "gs-wgan",
        (RoutedAnswers("panel"), ReleasedEmbedding()),
        {"privacy": {"subsets": 4, "queries": 8}, "method": {"queries_per_step": 8}},
    ),
    Probe(
        "gs-wgan",
        (RoutedAnswers("panel"),),
        {"privacy": {"subsets": 4, "queries": 8, "embedding_share": 0.0}, "method": {"queries_per_step": 8}},
        variant="without an embedding",
    ),
    Probe(
        "gs-wgan",
        (RevealedAnswers(),),
        {
            "privacy": {"subsets": 2, "queries": 4, "embedding_share": 0.0},
            "method": {"mode": "paper", "queries_per_step": 4},
        },
        variant="as published",
    ),
    Probe("datalens", (Votes("signs", 5),), {"privacy": {**_VOTES, "top": 5}, "method": _VOTING}),
    Probe(
        "g-pate", (Votes("bins", 3), Votes("peaks", 3)), {"privacy": {**_VOTES, "projections": 3}, "method": _VOTING}
    ),
    Probe("pate-gan", (Votes("real"),), {"privacy": _VOTES, "method": _VOTING}),
    Probe("fedavg-gan", (SampledClients(),), {"privacy": {"rounds": 3, "clients_per_round": 2}}),
    Probe(
        "gs-wgan-federated", (RoutedAnswers("desk"), ClientParts()), {"privacy": {"queries": 8, "queries_per_round": 8}}
    ),
    Probe(
        "gs-wgan-federated",
        (MessageAnswers(), MessageAnswers()),
        {"privacy": {"queries": 8, "queries_per_round": 8}},
        viewer="server",
        variant="against the server",
    ),
)


def probes_of(names: tuple[str, ...]) -> tuple[Probe, ...]:
    """The probes of the named methods, or of all; a method without any is an error, never a silent pass."""
    for name in names:
        private = get_method(name).private
        if not private:
            raise InputError(f"audit: {name} is not private, so there is no claim to audit; choose a private method")
        if not any(probe.method == name for probe in PROBES):
            raise InputError(f"audit: {name} has no probe; add one to audit/probes.py, with a game for each event")
    return tuple(probe for probe in PROBES if not names or probe.method in names)
