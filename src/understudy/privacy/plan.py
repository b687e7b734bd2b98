"""The plan of a run: its decided config, its events and its rough cost, before any data is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from understudy.configs import MethodConfig
from understudy.data.domain import Domain
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import ClientLimits
from understudy.privacy.events import Event

ConfigType = TypeVar("ConfigType", bound=MethodConfig)
RECORDS_ONLY = "the data have clients, but what is protected is one record, not all records of a client"


_FOR_FEW = "Below a few thousand people dp-merf with a teacher suits best; methods with critics or voters need more"


@dataclass(frozen=True)
class Costs:
    """What a run takes beside epsilon: its steps, and roughly its memory and time."""

    steps: int
    memory_bytes: int
    seconds: float  # on two CPU cores
    seconds_on_gpu: float  # on one H200


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

    def config_as(self, kind: type[ConfigType]) -> ConfigType:
        """The decided config as what the method that planned it knows it to be."""
        assert isinstance(self.config, kind)
        return self.config

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
    if not plan.private or any(event.unit == "client" for event in plan.events):
        return plan
    units, found = plan.domain.nominal_units, list(plan.remarks)
    if plan.domain.nominal_people is not None:
        found.append(
            f"{plan.domain.nominal_people:,} people instead of {plan.domain.nominal_records:,} images are protected; "
            f"noise is held against their number, so expect what so many images would give. {_FOR_FEW}"
        )
    elif plan.domain.nominal_clients is not None:
        found.append(RECORDS_ONLY)
    if plan.budget.delta * units >= 1:
        unit, several = ("person", "people") if plan.domain.nominal_people else ("record", "records")
        found.append(
            f"delta: {plan.budget.delta:g} times {units} {several} is 1 or more; choose a far smaller delta, since "
            f"delta may mean that a {unit} is exposed outright"
        )
    return replace(plan, remarks=tuple(found))
