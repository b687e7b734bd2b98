"""The points of an experiment: a run for each method, or for each value of a setting, planned before any is begun.

An axis is a list of methods (a comparison) or a setting with its values (a sweep). A sweep lays values of one or two
settings over a base: the first is the horizontal axis of its curve, the second gives one line for each of its values.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.data.sources import DataOptions
from understudy.errors import BudgetError, InputError
from understudy.methods.base import check_budget, configure
from understudy.methods.config import apply_settings
from understudy.methods.registry import get_method
from understudy.privacy.budget import stated_budget
from understudy.runs.accounts import read_account
from understudy.runs.bookings import book
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    from understudy.data.dataset import ImageDataset
    from understudy.data.domain import Domain
    from understudy.privacy.filters import Charge

BUDGET_KEYS = ("epsilon", "delta")
MOST_POINTS = 1000
RUNS, POINTS = "runs", "points"  # where the runs of a comparison and of a sweep lie


@dataclass(frozen=True)
class Axis:
    """A setting by its dotted name, or ``epsilon`` or ``delta`` of the budget, and the values to try."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class PlannedPoint:
    """The settings of one point of a sweep; ``repeat`` counts from 1."""

    values: dict[str, Any]
    repeat: int = 1

    @property
    def name(self) -> str:
        """The name of its folder: readable, and different for different points."""
        text = ",".join(f"{key}={shown_value(value)}" for key, value in self.values.items())
        plain = re.sub(r"[^A-Za-z0-9._=,+-]", "_", text)[:100]
        mark = "" if plain == text else "-" + sha256(text.encode()).hexdigest()[:8]
        return f"{plain}{mark}{f'~{self.repeat}' if self.repeat > 1 else ''}"


@dataclass(frozen=True)
class Entrant:
    """A method as it enters an experiment: with its settings."""

    method: str
    config: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None


@dataclass(frozen=True)
class ExperimentOptions:
    """What all points have in common: the data, the budget of each run by itself, and how its release is scored."""

    source: DataOptions
    epsilon: float | None = None
    delta: float | None = None
    metrics: tuple[str, ...] = ("cnn",)
    samples: int | None = None
    fast: bool = False
    test_data: str | None = None
    moved: bool = False  # the folder is a copy
    account: str | None = None  # what every run reserves its plan in
    command: str | None = None  # the command line, which every run writes down

    @property
    def shown(self) -> tuple[str, ...]:
        """The figures that are shown."""
        return shown_metrics(self.metrics)


@dataclass(frozen=True)
class Task:
    """One point with everything that its run and its evaluation need."""

    folder: Path
    entrant: Entrant
    options: ExperimentOptions  # with the budget of this point
    point: PlannedPoint = field(default_factory=lambda: PlannedPoint({}))

    @property
    def name(self) -> str:
        """What the point is called: its method, or its settings."""
        return self.folder.name

    @property
    def title(self) -> str:
        """The same in a sentence."""
        return f"the point {self.name}" if self.point.values else self.name

    @property
    def run(self) -> RunFolder:
        """The files of its run."""
        return RunFolder(self.folder)

    @property
    def device(self) -> str:
        """Where it runs."""
        return device_of(self.entrant.config)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a process of its own."""
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Task:
        """The task that ``as_dict`` described."""
        told = {**raw["options"], "source": DataOptions(**raw["options"]["source"])}
        options = ExperimentOptions(**{**told, "metrics": tuple(told["metrics"])})
        return cls(Path(raw["folder"]), Entrant(**raw["entrant"]), options, PlannedPoint(**raw["point"]))


def method_tasks(out: Path, entrants: Sequence[Entrant], options: ExperimentOptions) -> list[Task]:
    """A task for each method; one without privacy keeps no budget."""
    with_budget = options if options.epsilon is not None else replace(options, delta=None)
    without = replace(options, epsilon=None, delta=None)
    return [
        Task(out / RUNS / each.method, each, with_budget if get_method(each.method).private else without)
        for each in entrants
    ]


def point_task(out: Path, entrant: Entrant, options: ExperimentOptions, point: PlannedPoint) -> Task:
    """The budget and the config of one point of a sweep."""
    unknown = [key for key in point.values if key not in BUDGET_KEYS and "." not in key]
    if unknown:
        raise InputError(f"over: {unknown[0]!r} is unknown; pass epsilon, delta or a setting such as privacy.queries")
    budget = {key: value for key, value in point.values.items() if key in BUDGET_KEYS}
    settings = [f"{key}={json.dumps(value)}" for key, value in point.values.items() if key not in BUDGET_KEYS]
    varied = replace(entrant, config=apply_settings(entrant.config, settings))
    return Task(out / POINTS / point.name, varied, replace(options, **budget), point)


def parse_axis(text: str) -> Axis:
    """``privacy.queries=1000,2000`` as an axis; values are read as JSON, else as text."""
    key, separator, raw = text.partition("=")
    key = key.strip()
    if not separator or not key or not raw.strip():
        raise InputError(f"--over: {text!r} is not of the form key=value,value; for example epsilon=1,3,10")
    values = tuple(_parsed(part.strip()) for part in re.split(r",(?![^\[]*\])", raw) if part.strip())
    if len({hashable(value) for value in values}) < len(values):
        raise InputError(f"--over: {text!r} names a value twice; use --repeats to run points several times")
    if key in BUDGET_KEYS and not all(isinstance(value, (int, float)) for value in values):
        raise InputError(f"--over: {text!r}: {key} takes numbers; for example {key}=1,3,10")
    return Axis(key, values)


def plan_points(axes: Sequence[Axis], repeats: int = 1) -> list[PlannedPoint]:
    """Every combination of the values, each ``repeats`` times."""
    if not axes:
        raise InputError("--over: nothing to vary was named; pass for example --over epsilon=1,3,10")
    if len(axes) > 2:
        raise InputError(f"--over: {len(axes)} settings to vary; pass one for the axis and at most one for the lines")
    if len({axis.key for axis in axes}) < len(axes):
        raise InputError(f"--over: {axes[0].key} is named twice; put all of its values behind one --over")
    if repeats < 1:
        raise InputError(f"--repeats: {repeats}; pass 1 or more")
    count = math.prod(len(axis.values) for axis in axes) * repeats
    if count > MOST_POINTS:
        raise InputError(f"--over: {count} runs; at most {MOST_POINTS} make a curve, so name fewer values")
    combinations = itertools.product(*(axis.values for axis in axes))
    chosen = [dict(zip((axis.key for axis in axes), values, strict=True)) for values in combinations]
    return [PlannedPoint(values, repeat) for repeat in range(1, repeats + 1) for values in chosen]


def check_tasks(tasks: Sequence[Task], domain: Domain | None = None) -> None:
    """Refuse settings, presets and budgets that cannot be; with the domain also plans that cost too much.

    Privacy: done for all points before the first private read, so that an experiment that cannot be paid for spends
    nothing. Where the runs are charged to an account, all of them together must fit; each reserves its own plan.
    """
    prices: dict[str, Charge] = {}
    for task in tasks:
        if task.run.begun:
            continue  # was checked when it was started
        method = get_method(task.entrant.method)
        config = configure(method, task.entrant.config, task.entrant.preset)
        budget = check_budget(method, stated_budget(task.options.epsilon, task.options.delta))
        if domain is None or task.point.repeat > 1:
            continue  # nothing to price yet, or the same plan again
        plan = method.plan(config, domain, budget)
        if task.options.account is not None:
            prices[_priced(task)] = book(task.options.account, method, plan).charge
        if plan.epsilon > budget.epsilon:
            raise BudgetError(
                f"budget: {task.title} costs epsilon {plan.epsilon:g}, but only {budget.epsilon:g} is allowed; "
                + ("raise --epsilon or leave" if task.point.values else "raise --epsilon, leave")
                + " privacy.noise_multiplier out to have it calibrated"
                + ("" if task.point.values else ", or leave the method out")
            )

    charges = [prices[_priced(task)] for task in tasks if not task.run.begun and _priced(task) in prices]
    if charges and tasks[0].options.account is not None:
        read_account(tasks[0].options.account).check(*charges)


def _priced(task: Task) -> str:
    """What the price of a point follows from; repeats of a point have one price."""
    return json.dumps([asdict(task.entrant), task.options.epsilon, task.options.delta], sort_keys=True)


def check_evaluation(options: ExperimentOptions, data: ImageDataset) -> None:
    """Refuse what cannot be measured before anything is spent on it: no labels, no held-out data, no weights."""
    from understudy.evaluate.evaluation import expand_metrics

    if not data.domain.labelled:
        raise InputError(f"labels: {data.name} has none, but an evaluation needs them; pass labelled data")
    held_out, split = options.source.held_out(options.test_data)
    test = held_out.completed_from(data.domain).load(split)
    if "fid" in expand_metrics(options.metrics):
        from understudy.evaluate.fid import check_counts
        from understudy.evaluate.inception import InceptionFeatures, find_weights

        samples = options.samples or data.domain.nominal_records
        check_counts(samples, len(test.images), InceptionFeatures.dimensions, False)
        find_weights(None)


def shown_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """The figures that are shown: those asked for, and for all classifiers together their two averages."""
    names: list[str] = []
    for metric in metrics:
        names += ["average_accuracy", "calibrated_accuracy"] if metric == "downstream" else [metric]
    return tuple(dict.fromkeys(names))


def device_of(config: Mapping[str, Any]) -> str:
    """Where a method with this config works."""
    return str(config.get("runtime", {}).get("device", "auto"))


def hashable(value: Any) -> Any:
    """A value of a setting as one that can be a key."""
    return value if isinstance(value, (int, float, str, bool, type(None))) else json.dumps(value)


def shown_value(value: Any) -> str:
    """A value of a setting in words."""
    return f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
