"""``understudy plan``: noise, steps, memory and time of a run, before anything is spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.forecast import duration, warnings

if TYPE_CHECKING:
    from understudy.data.domain import Domain
    from understudy.privacy.plan import Plan


NAME = "plan"
_SHAPE, _CLASSES = "1x28x28", 10  # where nothing is said


def command(
    method: Annotated[str, typer.Argument(help="One of `understudy methods`.")],
    data: Annotated[
        str | None,
        typer.Option("--data", help="The data of `train`: their shape and classes, where you leave them out."),
    ] = None,
    records: common.Records = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Privacy budget: epsilon.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Privacy budget: delta.")] = None,
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
    as_json: common.Json = False,
) -> None:
    """Say what a run would do and cost, from declared facts; nothing is trained and nothing is spent.

    With --data the plan is that of `train` with the same words: the data are opened for their shape, as `train` does.
    """
    from understudy.methods.base import configure
    from understudy.methods.registry import get_method
    from understudy.privacy.plan import remarked

    implementation = get_method(method)
    budget = common.parse_budget(implementation, epsilon, delta)
    values = configure(implementation, common.read_settings(config, settings, device), preset)
    declared = [*common.declarations(declare, skip_broken)]
    declared += [] if clients is None else ["clients=true", f"nominal_clients={clients}"]
    declared += [] if people is None else [f"nominal_people={people}"]
    if classes == 0:
        classes, declared = None, [*declared, "unlabelled=true"]
    given = (records, classes, shape, declared)
    domain = _declared(*given) if data is None else common.data_options(data, *given).load().domain
    result = remarked(implementation.plan(values, domain, budget))
    if as_json:
        further = {"affordable": result.epsilon <= budget.epsilon, "warnings": list(warnings(result))}
        common.print_json(result.as_dict() | further)
    else:
        typer.echo(_describe(result))
    if result.epsilon > budget.epsilon:
        from understudy.errors import BudgetError

        raise BudgetError(
            f"budget: this plan costs epsilon {result.epsilon:g} at delta {budget.delta:g}, but only "
            f"{budget.epsilon:g} is allowed; raise privacy.noise_multiplier or leave it out to have it calibrated"
        )


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
        *(("remark", remark) for remark in plan.remarks),
        *(("warning", sentence) for sentence in warnings(plan)),
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
