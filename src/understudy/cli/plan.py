"""``understudy plan``: noise, steps, memory and time of a run, before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli import options as common
from understudy.errors import BudgetError
from understudy.forecast import (
    brought_in_words,
    cautions,
    duration,
    introduce,
    seconds_of,
    usual_delta_in_words,
    warnings,
)
from understudy.progress import show_scoring

if TYPE_CHECKING:
    from understudy.data.domain import Domain
    from understudy.data.sources import DataOptions
    from understudy.methods.choice import Choice, Considered
    from understudy.privacy.budget import Budget
    from understudy.privacy.plan import Plan


NAME = "plan"
_SHAPE, _CLASSES = "1x28x28", 10  # where nothing is said


def command(
    method: common.MethodName = "auto",
    data: Annotated[
        str | None,
        typer.Option("--data", help="The data of `train`: their shape and classes, where you leave them out."),
    ] = None,
    records: common.Records = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Privacy budget: epsilon.")] = None,
    delta: common.Delta = None,
    classes: Annotated[
        int | None, typer.Option("--classes", help="Number of classes; 0: unlabelled. Without --data 10 unless given.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option("--shape", help="Channels x height x width; without --data 1x28x28 unless given.")
    ] = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    clients: Annotated[
        int | None, typer.Option("--clients", help="Enrolled clients, for the federated methods.")
    ] = None,
    people: Annotated[
        int | None, typer.Option("--people", help="People whom the images are of, all of a person protected together.")
    ] = None,
    preset: common.Preset = None,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    device: common.Device = None,
    time: common.Time = None,
    as_json: common.Json = False,
) -> None:
    """Say what a run would do and cost, from declared facts; nothing is trained and nothing is spent.

    Without a method it shows what could be chosen side by side, and what `train` without a method would choose. With
    --data the plan is that of `train` with the same words: the data are opened for their shape, as `train` does.
    """
    declared = [*common.declarations(declare, skip_broken)]
    declared += [] if clients is None else ["clients=true", f"nominal_clients={clients}"]
    declared += [] if people is None else [f"nominal_people={people}"]
    if classes == 0:
        classes, declared = None, [*declared, "unlabelled=true"]
    wished = _Wished(method, (epsilon, delta), common.read_settings(config, settings, device), preset, time)
    wished.check()
    given = (records, classes, shape, declared)
    domain = _declared(*given) if data is None else wished.opened(common.data_options(data, *given))
    if wished.automatic:
        _tell_choice(wished.chosen(domain), as_json)
    else:
        _tell_plan(wished.planned(domain), delta is None, as_json)


@dataclass(frozen=True)
class _Wished:
    """What is to be planned, before anything is known of the data."""

    method: str
    figures: tuple[float | None, float | None]  # epsilon and delta
    config: Mapping[str, Any]
    preset: str | None
    time: str | None

    @property
    def automatic(self) -> bool:
        from understudy.methods.choice import AUTO

        return self.method == AUTO

    def check(self) -> None:
        """Refuse what is wrong whatever the data are, before they are read."""
        from understudy.methods.base import configure
        from understudy.methods.choice import refuse_settings, refuse_time
        from understudy.methods.registry import get_method

        if self.automatic:
            refuse_settings(self.config, self.preset)
            self._seconds()
            self._budget()
        else:
            refuse_time(self.method, self.time)
            common.parse_budget(get_method(self.method), *self.figures)
            configure(get_method(self.method), self.config, self.preset)

    def opened(self, source: DataOptions) -> Domain:
        """The domain of the data as `train` would know it."""
        from understudy.data.check import refuse_undeclared
        from understudy.methods.choice import usual_shape

        refuse_undeclared(source)
        shaped = usual_shape(source) if self.automatic else source
        if shaped.shape is not None and shaped != source:
            typer.echo(brought_in_words(shaped.shape), err=True)
        return shaped.load().domain

    def chosen(self, domain: Domain) -> Choice:
        from understudy.methods.choice import choose

        with show_scoring() as listeners:
            watch = partial(listeners.counts, "candidates planned") if listeners.counts else None
            return choose(domain, self._budget(), self._device(), self._seconds(), compare=True, watch=watch)

    def planned(self, domain: Domain) -> Plan:
        from understudy.methods.base import configure
        from understudy.methods.registry import get_method
        from understudy.privacy.plan import remarked

        method = get_method(self.method)
        budget = common.parse_budget(method, *self.figures).settled(domain.nominal_units)
        return remarked(method.plan(configure(method, self.config, self.preset), domain, budget))

    def _device(self) -> str:
        return str(self.config.get("runtime", {}).get("device", "auto"))

    def _seconds(self) -> float | None:
        return None if self.time is None else seconds_of(self.time)

    def _budget(self) -> Budget:
        from understudy.methods.choice import stated

        return stated(common.open_budget(*self.figures))


def _tell_plan(plan: Plan, without_delta: bool, as_json: bool) -> None:
    """The plan, and exit 3 where the budget does not allow it."""
    if as_json:
        further = {"affordable": plan.epsilon <= plan.budget.epsilon, "warnings": list(warnings(plan))}
        common.print_json(plan.as_dict() | further)
    else:
        typer.echo(_describe(plan))
        if without_delta and plan.private:
            typer.echo(usual_delta_in_words(plan))
    if plan.epsilon > plan.budget.epsilon:
        raise BudgetError(
            f"budget: this plan costs epsilon {plan.epsilon:g} at delta {plan.budget.delta:g}, but only "
            f"{plan.budget.epsilon:g} is allowed; raise privacy.noise_multiplier or leave it out to have it calibrated"
        )


def _tell_choice(choice: Choice, as_json: bool) -> None:
    """All candidates side by side, and which one `train` would take."""
    if as_json:
        plan = choice.plan.as_dict() | {"warnings": list(warnings(choice.plan))}
        candidates = [considered.as_dict() for considered in choice.considered]
        near = {"signal": choice.signal, "measured_near": choice.near}
        common.print_json({"chosen": choice.chosen.as_dict(), "plan": plan, "candidates": candidates, **near})
        return
    head = ["", "candidate", "recovers of real", "time here", "memory", "runs"]
    fitting_first = sorted(choice.considered, key=lambda considered: considered.left_out is not None)
    rows = [_row(considered, considered is choice.chosen) for considered in fitting_first]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for considered in choice.considered:
        if considered.plan is None:
            typer.echo(f"left out: {considered.candidate.name}: {considered.left_out}")
    typer.echo(
        "a candidate is a method, with a preset, a teacher's share of epsilon, and a shorter or longer training where "
        "its name says so; --json has all its settings"
    )
    typer.echo(introduce(choice))
    for kind, sentence in cautions(choice.plan):
        typer.echo(f"{kind}: {sentence}")
    typer.echo(f"delta is {choice.plan.budget.delta:g}; `understudy plan {choice.method}` shows more of one method")


def _row(considered: Considered, chosen: bool) -> list[str]:
    low, high = (max(0, round(100 * share)) for share in considered.recovered)
    plan, seconds = considered.plan, considered.seconds
    costs = ["", ""]
    if plan is not None and seconds is not None:
        costs = [duration(seconds), f"{max(1, round(plan.memory_bytes / 2**20)):,} MiB"]
        costs[0] += " (too long)" if considered.left_out else ""
    share = f"{low} %" if low == high else f"{low} to {high} %"
    return ["->" if chosen else "", considered.candidate.name, share, *costs, str(len(considered.runs))]


def _declared(records: int | None, classes: int | None, shape: str | None, declared: Sequence[str]) -> Domain:
    """The domain as ``train`` would know it, from what is declared alone."""
    from understudy.data.domain import declare_domain, require_people, require_records, source_options
    from understudy.data.sources import parse_declarations, parse_shape

    options = source_options(**parse_declarations(declared))
    if options.person is not None:
        require_people(options)
    channels, height, width = parse_shape(shape or _SHAPE)
    if shape is None and options.size is not None:
        height, width = options.size
    names = options.class_names
    number = classes or (_CLASSES if names is None else len(names))
    known = {name: getattr(options, name) or None for name in ("value_range", "nominal_people", "skip_broken")}
    return declare_domain(
        shape=(options.channels or channels or 1, height, width),
        classes=None if options.unlabelled else number,
        class_names=names,
        nominal_records=require_records(records),
        nominal_clients=options.nominal_clients,
        **{name: value for name, value in known.items() if value is not None},
    )


def _describe(plan: Plan) -> str:
    rows = [
        ("method", plan.method),
        *(_spending(plan) if plan.private else [("epsilon", "none: this method is not private")]),
        ("steps", f"{plan.steps:,}"),
        *(("event", _event(event)) for event in plan.events),
        ("memory", f"about {max(1, round(plan.memory_bytes / 2**20)):,} MiB"),
        ("time", f"roughly {duration(plan.seconds)} on two CPU cores, {duration(plan.seconds_on_gpu)} on one H200"),
        *(("assumed public", statement) for statement in plan.domain.assumed_public()),
        *cautions(plan),
    ]
    return "\n".join(f"{name:<18}{value}" for name, value in rows)


def _spending(plan: Plan) -> list[tuple[str, str]]:
    epsilon = f"{plan.epsilon:.4f}" if math.isfinite(plan.epsilon) else "more than can be accounted"
    return [
        ("epsilon", f"{epsilon} of {plan.budget.epsilon:g} (delta {plan.budget.delta:g})"),
        ("noise multiplier", f"{plan.config.privacy.noise_multiplier:.6g}"),
    ]


def _event(event: object) -> str:
    from understudy.privacy.events import Event
    from understudy.privacy.meaning import event_in_words

    assert isinstance(event, Event)
    return event_in_words(event)
