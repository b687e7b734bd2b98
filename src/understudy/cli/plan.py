"""``understudy plan``: noise, steps, memory and time of a run, before any data is touched."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common

if TYPE_CHECKING:
    from understudy.privacy.plan import Plan


NAME = "plan"


def command(
    method: Annotated[str, typer.Argument(help="One of `understudy methods`.")],
    records: Annotated[int, typer.Option("--records", help="Declared, public number of records.")],
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Privacy budget: epsilon.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Privacy budget: delta.")] = None,
    classes: Annotated[int, typer.Option("--classes", help="Number of classes; 0: unlabelled.")] = 10,
    shape: Annotated[str, typer.Option("--shape", help="Channels x height x width.")] = "1x28x28",
    clients: Annotated[
        int | None, typer.Option("--clients", help="Enrolled clients, for the federated methods.")
    ] = None,
    preset: common.Preset = None,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    as_json: common.Json = False,
) -> None:
    """Say what a run would do and cost, without data."""
    from understudy.data.domain import declare_domain
    from understudy.data.sources import parse_shape
    from understudy.methods.base import configure
    from understudy.methods.registry import get_method
    from understudy.privacy.plan import remarked

    implementation = get_method(method)
    budget = common.parse_budget(implementation, epsilon, delta)
    channels, height, width = parse_shape(shape)
    domain = declare_domain(
        shape=(channels or 1, height, width), classes=classes or None, nominal_records=records, nominal_clients=clients
    )
    values = configure(implementation, common.read_settings(config, settings), preset)
    result = remarked(implementation.plan(values, domain, budget))
    if as_json:
        common.print_json(result.as_dict() | {"affordable": result.epsilon <= budget.epsilon})
    else:
        typer.echo(_describe(result))
    if result.epsilon > budget.epsilon:
        from understudy.errors import BudgetError

        raise BudgetError(
            f"budget: this plan costs epsilon {result.epsilon:g} at delta {budget.delta:g}, but only "
            f"{budget.epsilon:g} is allowed; raise privacy.noise_multiplier or leave it out to have it calibrated"
        )


def _describe(plan: Plan) -> str:
    rows = [
        ("method", plan.method),
        *(_spending(plan) if plan.private else [("epsilon", "none: this method is not private")]),
        ("steps", f"{plan.steps:,}"),
        *(("event", _event(event)) for event in plan.events),
        ("memory", f"about {max(1, round(plan.memory_bytes / 2**20)):,} MiB"),
        ("time", f"roughly {_duration(plan.seconds)} on two CPU cores, {_duration(plan.seconds_on_gpu)} on one H200"),
        *(("assumed public", statement) for statement in plan.domain.assumed_public()),
        *(("remark", remark) for remark in plan.remarks),
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


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
