"""The method protocol: a method plans from public facts alone, then trains a generator inside a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.data.domain import Domain
from understudy.methods.configuration import MethodConfig
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event

if TYPE_CHECKING:
    from understudy.models.generator import Generator
    from understudy.training.run import Run


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

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json`` and ``run.json``."""
        return {
            "method": self.method,
            "epsilon": self.epsilon,
            "delta": self.budget.delta,
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


class Method(ABC):
    """One paper's way to a private generator. Adding one: see docs/adding-a-method.md."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    config_type: ClassVar[type[MethodConfig]]

    @abstractmethod
    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Decide noise and steps from public facts; raises BudgetError when the budget does not allow the method."""

    @abstractmethod
    def train(self, run: Run) -> Generator:
        """Train inside the run: all private reads through mechanisms on the run's ledger; returns the generator."""
