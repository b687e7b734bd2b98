"""The method protocol: a method plans from public facts alone, then trains a generator inside a run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.federated.contract import Contract
from understudy.methods.configuration import MethodConfig, build_config, overlay
from understudy.privacy import accounting
from understudy.privacy.budget import Budget, NoBudget
from understudy.privacy.certificate import ClientLimits, Guarantee
from understudy.privacy.data_dependent import DataDependentClaim
from understudy.privacy.events import Event

if TYPE_CHECKING:
    from understudy.models.generator import Generator
    from understudy.training.run import Run

RECORDS_ONLY = "the data have clients, but what is protected is one record, not all records of a client"


@dataclass(frozen=True)
class Plan:
    """What a run will do, before any data is touched: its decided config, its events and its rough cost."""

    method: str
    config: MethodConfig
    domain: Domain
    budget: Budget
    events: tuple[Event, ...]
    epsilon: float
    steps: int
    memory_bytes: int
    seconds: float  # roughly, on two CPU cores
    seconds_on_gpu: float  # roughly, on one H200
    remarks: tuple[str, ...] = ()
    limits: ClientLimits | None = None  # of a federation's clients

    @property
    def private(self) -> bool:
        """Whether the run will carry any guarantee; a method without privacy plans no event and an infinite epsilon."""
        return bool(self.events)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json`` and ``run.json``."""
        return {
            "method": self.method,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.budget.delta if self.private else None,
            "noise_multiplier": self.config.privacy.noise_multiplier,
            "steps": self.steps,
            "memory_bytes": self.memory_bytes,
            "seconds": self.seconds,
            "seconds_on_gpu": self.seconds_on_gpu,
            "events": [event.model_dump(exclude_none=True) for event in self.events],
            "assumed_public": self.domain.assumed_public(),
            "config": self.config.model_dump(),
            "remarks": list(self.remarks),
        }


def remarked(plan: Plan) -> Plan:
    """The plan with what must be known about its unit and its delta, whatever the method."""
    if not plan.private or any(event.unit != "record" for event in plan.events):
        return plan
    records, found = plan.domain.nominal_records, list(plan.remarks)
    if plan.domain.nominal_clients is not None:
        found.append(RECORDS_ONLY)
    if plan.budget.delta * records >= 1:
        found.append(
            f"delta: {plan.budget.delta:g} times {records} records is 1 or more; choose a far smaller delta, since "
            "delta may mean that a record is exposed outright"
        )
    return replace(plan, remarks=tuple(found))


class Method(ABC):
    """One paper's way to a private generator. Adding one: see docs/adding-a-method.md."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    config_type: ClassVar[type[MethodConfig]]
    private: ClassVar[bool] = (
        True  # False: a reference without any guarantee; its releases are stamped and never verify
    )
    federated: ClassVar[bool] = False  # True: it needs data with clients, and can be deployed with real ones
    not_covered: ClassVar[tuple[str, ...]] = ()  # what its guarantees do not cover, beside what holds for all methods
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})  # named configs, for ``--preset``

    @abstractmethod
    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Decide noise and steps from public facts; raises BudgetError when the budget does not allow the method."""

    @abstractmethod
    def train(self, run: Run) -> Generator:
        """Train inside the run: all private reads through mechanisms on the run's ledger; returns the generator."""

    def contract(self, plan: Plan) -> Contract:
        """What a plan means for the clients of a federation."""
        raise InputError(f"method: {self.name} cannot be federated; choose gs-wgan-federated or fedavg-gan")

    def claims(self, config: MethodConfig, events: Sequence[Event], budget: Budget) -> list[Guarantee]:
        """What the events of a run guarantee, the headline first; a method with several viewers says so here."""
        epsilon = accounting.certified_epsilon(events, budget.delta)
        parts = {"accountant": budget.delta}
        return [Guarantee(epsilon=epsilon, delta=budget.delta, unit=events[0].unit, delta_parts=parts)]

    def data_dependent_claims(
        self, config: MethodConfig, events: Sequence[Event], budget: Budget, private: Path
    ) -> Sequence[DataDependentClaim]:
        """Claims of another kind, from what the run kept in its private folder; never instead of ``claims``."""
        return []

    def publishes_data_dependent_claims(self, config: MethodConfig) -> bool:
        """Whether the owner asked for them in the certificate; they stay in the private folder otherwise."""
        return False


def configure(method: Method, values: Mapping[str, Any], preset: str | None = None) -> MethodConfig:
    """The config of a method: its defaults, a named preset over them, and the given values over both."""
    if preset is not None and preset not in method.presets:
        known = f"choose one of {', '.join(sorted(method.presets))}" if method.presets else "it has none"
        raise InputError(f"preset: {preset!r} is unknown for {method.name}; {known}")
    below = {} if preset is None else method.presets[preset]
    return build_config(method.config_type, overlay(below, values))


def check_budget(method: Method, budget: Budget | None) -> Budget:
    """The budget to plan with: a private method needs one, and a method without privacy cannot keep any."""
    if method.private and (budget is None or isinstance(budget, NoBudget)):
        raise InputError(
            "budget: --epsilon and --delta are needed to start a run; pass for example --epsilon 10 --delta 1e-5"
        )
    if not method.private and not (budget is None or isinstance(budget, NoBudget)):
        raise InputError(
            f"budget: {method.name} is not private, so it keeps no budget; leave --epsilon and --delta out, or choose "
            "a private method"
        )
    return NoBudget() if budget is None else budget
