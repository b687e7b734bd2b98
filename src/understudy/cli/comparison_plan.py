"""What a comparison asks for, method by method, and everything that can be refused before anything is spent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.data.declarations import DataOptions
from understudy.errors import BudgetError, InputError

if TYPE_CHECKING:
    from understudy.data.domain import Domain


RUNS = "runs"
_OWN = re.compile(r"^([a-z][a-z0-9-]*):(.*)$", re.DOTALL)


@dataclass(frozen=True)
class Task:
    """One method with everything that its run and its evaluation need."""

    method: str
    folder: Path
    epsilon: float | None  # None for a method without privacy
    delta: float | None
    config: dict[str, Any]
    preset: str | None
    source: DataOptions
    metrics: tuple[str, ...]
    samples: int | None = None
    fast: bool = False
    test_data: str | None = None
    moved: bool = False  # its folder is a copy
    command: str | None = None  # the command line, which a run writes down; its own process has another

    @property
    def held_out(self) -> tuple[DataOptions, str]:
        """The data that figures are measured on, and the part of them."""
        if self.test_data is None:
            return self.source, "test"
        return replace(self.source, source=self.test_data), "train"

    @property
    def shown(self) -> tuple[str, ...]:
        """The figures that the comparison shows."""
        from understudy.experiments.curves import shown_metrics

        return shown_metrics(self.metrics)

    @property
    def device(self) -> str:
        """Where it runs."""
        return str(self.config.get("runtime", {}).get("device", "auto"))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a process of its own and for the description of a comparison."""
        source = {**asdict(self.source), "declared": list(self.source.declared)}
        return {**asdict(self), "folder": str(self.folder), "source": source, "metrics": list(self.metrics)}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Task:
        """The task that ``as_dict`` described."""
        source = DataOptions(**raw["source"])
        return cls(**{**raw, "folder": Path(raw["folder"]), "source": source, "metrics": tuple(raw["metrics"])})


def named_methods(text: str) -> list[str]:
    """``a,b,c`` as methods that exist, each once."""
    from understudy.methods.registry import get_method

    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(names) < 2:
        raise InputError(f"--methods: {text!r} names {len(names)}; pass at least two, such as --methods dp-merf,dpgan")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--methods: {twice} is named twice; name each method once")
    for name in names:
        get_method(name)
    return names


def own_and_common(option: str, texts: Sequence[str], methods: Sequence[str]) -> dict[str, list[str]]:
    """What each method gets: texts without a name go to all, ``NAME:text`` to that method and after the common ones."""
    common, own = [], {name: list[str]() for name in methods}
    for text in texts:
        match = _OWN.match(text)
        if match is None:
            common.append(text)
        elif match[1] in own:
            own[match[1]].append(match[2])
        else:
            raise InputError(f"{option}: {text!r} is for {match[1]}, which is not compared; name it behind --methods")
    return {name: [*common, *texts] for name, texts in own.items()}


def check_tasks(tasks: Sequence[Task], domain: Domain | None = None) -> None:
    """Refuse settings, presets and budgets that cannot be; with the domain also plans that cost too much.

    Privacy: done for all methods before the first private read, so that a comparison that cannot be paid for spends
    nothing.
    """
    from understudy.cli.options import parse_budget
    from understudy.methods.base import configure
    from understudy.methods.registry import get_method

    for task in tasks:
        if (task.folder / "run.json").exists():
            continue  # was checked when it was started
        method = get_method(task.method)
        config, budget = configure(method, task.config, task.preset), parse_budget(method, task.epsilon, task.delta)
        if domain is None:
            continue
        plan = method.plan(config, domain, budget)
        if plan.epsilon > budget.epsilon:
            raise BudgetError(
                f"budget: {task.method} costs epsilon {plan.epsilon:g}, but only {budget.epsilon:g} is allowed; raise "
                "--epsilon, leave privacy.noise_multiplier out to have it calibrated, or leave the method out"
            )
