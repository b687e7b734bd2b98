"""What a sweep asks for, point by point, and everything that can be refused before anything is spent."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from understudy.data.declarations import DataOptions
from understudy.errors import BudgetError, InputError

if TYPE_CHECKING:
    from understudy.configs import MethodConfig
    from understudy.data import ImageDataset
    from understudy.data.domain import Domain
    from understudy.experiments.curves import PlannedPoint
    from understudy.methods.base import Method
    from understudy.privacy.budget import Budget


POINTS = "points"


@dataclass(frozen=True)
class Sweep:
    """What was asked for."""

    method: str
    out: Path
    source: DataOptions
    budget: tuple[float | None, float | None]
    config: dict[str, Any]
    over: tuple[str, ...]
    metrics: tuple[str, ...]
    samples: int | None = None
    repeats: int = 1
    preset: str | None = None
    fast: bool = False
    test_data: str | None = None
    moved: bool = False  # its folder is a copy

    @property
    def held_out(self) -> tuple[DataOptions, str]:
        """The data that figures are measured on, and the part of them."""
        return (
            (self.source, "test") if self.test_data is None else (replace(self.source, source=self.test_data), "train")
        )

    @property
    def shown(self) -> tuple[str, ...]:
        """The figures that the curve shows."""
        from understudy.experiments.curves import shown_metrics

        return shown_metrics(self.metrics)


@dataclass(frozen=True)
class Task:
    """One point with everything that its run needs."""

    point: PlannedPoint
    folder: Path
    epsilon: float | None
    delta: float | None
    config: dict[str, Any]


def point_task(sweep: Sweep, point: PlannedPoint) -> Task:
    """The budget and the config of one point."""
    from understudy.experiments.curves import BUDGET_KEYS
    from understudy.methods.config import apply_settings

    unknown = [key for key in point.values if key not in BUDGET_KEYS and "." not in key]
    if unknown:
        raise InputError(f"over: {unknown[0]!r} is unknown; pass epsilon, delta or a setting such as privacy.queries")
    epsilon, delta = (point.values.get(name, given) for name, given in zip(BUDGET_KEYS, sweep.budget, strict=True))
    settings = [f"{key}={json.dumps(value)}" for key, value in point.values.items() if key not in BUDGET_KEYS]
    folder = sweep.out / POINTS / point.name
    return Task(point, folder, epsilon, delta, apply_settings(sweep.config, settings))


def check_settings(sweep: Sweep, tasks: Sequence[Task]) -> None:
    """Refuse a sweep with a setting or a budget that cannot be, before any data are read."""
    for task in tasks:
        _prepared(sweep, task)


def _prepared(sweep: Sweep, task: Task) -> tuple[Method, MethodConfig, Budget]:
    from understudy.cli.options import parse_budget
    from understudy.methods.base import configure
    from understudy.methods.registry import get_method

    method = get_method(sweep.method)
    return method, configure(method, task.config, sweep.preset), parse_budget(method, task.epsilon, task.delta)


def check_plans(sweep: Sweep, tasks: Sequence[Task], domain: Domain) -> None:
    """Refuse a sweep with a point over its budget, before anything is spent."""
    for task in tasks:
        if (task.folder / "run.json").exists() or task.point.repeat > 1:
            continue  # was checked when it was started, or is the same plan again
        method, config, budget = _prepared(sweep, task)
        plan = method.plan(config, domain, budget)
        if plan.epsilon > budget.epsilon:
            raise BudgetError(
                f"budget: the point {task.point.name} costs epsilon {plan.epsilon:g}, but only {budget.epsilon:g} is "
                "allowed; raise --epsilon or leave privacy.noise_multiplier out to have it calibrated"
            )


class Evaluated(Protocol):
    """Runs that will be evaluated: on what, and with how many samples."""

    @property
    def held_out(self) -> tuple[DataOptions, str]:
        """The data that figures are measured on, and the part of them."""
        ...

    @property
    def samples(self) -> int | None:
        """Images to draw."""
        ...


def check_evaluation(sweep: Evaluated, names: Sequence[str], data: ImageDataset) -> None:
    """Refuse what cannot be measured before anything is spent on it: no labels, no held-out data, no weights."""
    if not data.domain.labelled:
        raise InputError(f"labels: {data.name} has none, but an evaluation needs them; pass labelled data")
    held_out, split = sweep.held_out
    test = held_out.completed_from(data.domain).load(split)
    if "fid" in names:
        from understudy.evaluate.fid import check_counts
        from understudy.evaluate.inception import InceptionFeatures, find_weights

        samples = sweep.samples or data.domain.nominal_records
        check_counts(samples, len(test.images), InceptionFeatures.dimensions, False)
        find_weights(None)


def sweep_device(sweep: Sweep) -> str:
    """Where the runs and the evaluations work."""
    return str(sweep.config.get("runtime", {}).get("device", "auto"))


def sweep_command(sweep: Sweep, points: Sequence[PlannedPoint]) -> str:
    """The command that repeats the sweep; where the data and the results lie is not part of it."""
    from understudy.data.catalog import is_known
    from understudy.report.reproduce import PLACEHOLDER, changed_settings

    named = sweep.source.source if is_known(sweep.source.source) else PLACEHOLDER
    options: list[tuple[str, Any]] = [("--records", sweep.source.records), ("--classes", sweep.source.classes)]
    options += [("--shape", sweep.source.shape), *(("--declare", text) for text in sweep.source.declared)]
    options += zip(("--epsilon", "--delta"), sweep.budget, strict=True)
    for key in points[0].values:
        values = dict.fromkeys(json.dumps(point.values[key]).strip('"') for point in points)
        options.append(("--over", f"{key}={','.join(values)}"))
    options += [("--preset", sweep.preset)]
    for key, value in changed_settings(sweep.method, sweep.config):
        options.append(("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"))
    tested = sweep.test_data if sweep.test_data is None or is_known(sweep.test_data) else f"{PLACEHOLDER}-TEST"
    options += [("--test-data", tested), ("--metrics", ",".join(sweep.metrics)), ("--samples", sweep.samples)]
    repeats = max(point.repeat for point in points)
    options += [("--repeats", repeats if repeats > 1 else None)]
    lines = [shlex.join(["understudy", "curve", sweep.method, "--data", named])]
    lines += [shlex.join([name, str(value)]) for name, value in options if value is not None]
    lines += ["--fast"] if sweep.fast else []
    return " \\\n  ".join([*lines, "--out runs/curve"])
