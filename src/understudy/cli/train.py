"""``understudy train``: from data to a release, with live progress; Ctrl-C leaves a run that can be resumed."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli.options import (
    Classes,
    ConfigFile,
    Data,
    DataOptions,
    Declare,
    Json,
    Records,
    Settings,
    Shape,
    print_json,
    read_settings,
)
from understudy.cli.progress import show_progress, stop_on_signals
from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.release.release import Release

NAME = "train"


@dataclass(frozen=True)
class Request:
    """What was asked for, beside the data."""

    method: str
    out: Path
    epsilon: float | None
    delta: float | None
    config: dict[str, Any]
    seed: int | None


def command(
    method: Annotated[str, typer.Argument(help="One of `understudy methods`.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run; its release will be in OUT/release.")],
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Privacy budget: epsilon.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Privacy budget: delta.")] = None,
    records: Records = None,
    classes: Classes = None,
    shape: Shape = None,
    declare: Declare = None,
    config: ConfigFile = None,
    settings: Settings = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu or cuda.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="For tests only: marks the run as not for release.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in OUT as it was started.")] = False,
    as_json: Json = False,
) -> None:
    """Train a private generator within a budget and write its release."""
    source = DataOptions(data, records, classes, shape, declare or ())
    request = Request(method, out, epsilon, delta, read_settings(config, settings, device), seed)
    release = continue_run(request, source) if resume else start_run(request, source)
    headline = release.certificate.headline
    if as_json:
        figures = {"epsilon": headline.epsilon, "delta": headline.delta}
        print_json({"run": str(out), "release": str(out / "release"), "method": release.method, **figures})
        return
    from understudy.release.meaning import claim

    typer.echo(f"{claim(headline)}: the release is in {out / 'release'}")
    typer.echo(
        f"next: understudy verify {shlex.quote(str(out))}, understudy sample {shlex.quote(str(out))} -n 1000 --to x.npz"
    )


def start_run(request: Request, source: DataOptions) -> Release:
    """Check everything that needs no data, then load the data and train."""
    from understudy.methods.configuration import build_config
    from understudy.methods.registry import get_method
    from understudy.privacy.budget import Budget

    if request.epsilon is None or request.delta is None:
        raise InputError(
            "budget: --epsilon and --delta are needed to start a run; pass for example --epsilon 10 --delta 1e-5"
        )
    budget = Budget(request.epsilon, request.delta)
    build_config(get_method(request.method).config_type, request.config)
    data = source.load()

    from understudy.workflow import TrainOptions, train

    command_line = shlex.join(["understudy", *sys.argv[1:]])
    with stop_on_signals() as stop, show_progress() as listener:
        options = TrainOptions(request.config, request.seed, listener, stop, command_line, source.as_dict())
        return train(request.method, data, budget, request.out, options)


def continue_run(request: Request, source: DataOptions) -> Release:
    """Continue a run with what it was started with; anything asked for now must agree with that."""
    from understudy.workflow import TrainOptions, read_description, resume

    described = read_description(request.out)
    fixed = {"method": described.method, "epsilon": described.budget.epsilon, "delta": described.budget.delta}
    for name, value in fixed.items():
        asked = getattr(request, name)
        if asked is not None and asked != value:
            raise InputError(f"{name}: {asked} was asked for, but the run in {request.out} was started with {value}")
    if request.config or request.seed is not None:
        raise InputError("resume: a run keeps its config and seed; leave --config, --set, --device and --seed out")
    data = source.completed_by(described.source).completed_from(described.domain).load()
    with stop_on_signals() as stop, show_progress() as listener:
        return resume(data, request.out, TrainOptions(listener=listener, stop_requested=stop))
