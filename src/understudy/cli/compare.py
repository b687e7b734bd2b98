"""``understudy compare``: several methods on the same data and budget, trained, scored and shown side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from understudy.cli.options import (
    AllMoved,
    Classes,
    ConfigFile,
    Data,
    Declare,
    Device,
    Json,
    Records,
    Shape,
    command_line,
    data_options,
    print_json,
    read_settings,
)
from understudy.errors import CheckError, InputError

NAME = "compare"


def command(
    data: Data,
    methods: Annotated[str, typer.Option("--methods", metavar="A,B,...", help="Two or more of `understudy methods`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs (OUT/runs), the figures and the page.")] = (
        Path("comparison")
    ),
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Budget of each run by itself.")] = None,
    delta: Annotated[float, typer.Option("--delta", help="Budget of each run by itself.")] = 1e-5,
    preset: Annotated[
        list[str] | None,
        typer.Option("--preset", metavar="METHOD:NAME", help="A named configuration of one method. May be repeated."),
    ] = None,
    config: ConfigFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[METHOD:]GROUP.KEY=VALUE",
            help="One setting of all methods or, as in dp-merf:method.steps=500, of one. Repeat it for several.",
        ),
    ] = None,
    metrics: Annotated[str, typer.Option("--metrics", help="As for `understudy evaluate`.")] = "cnn",
    test_data: Annotated[str | None, typer.Option("--test-data", help="As for `understudy evaluate`.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="Images to draw for each evaluation.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="As for `understudy evaluate`.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Methods trained side by side; by default one for every two cores, one on a GPU."),
    ] = None,
    records: Records = None,
    classes: Classes = None,
    shape: Shape = None,
    declare: Declare = None,
    device: Device = None,
    moved: AllMoved = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate several methods on the same data, and write one page with all of them.

    The same command continues an interrupted comparison: finished methods are kept, a half-run one is resumed, and more
    methods add to it.

    Every method is certified for itself. Runs on the same data add up; what they spend together is stated.
    """
    from understudy.cli.comparison import PAGE, describe, run_comparison
    from understudy.cli.comparison_plan import RUNS, Task, named_methods, own_and_common
    from understudy.methods.registry import get_method

    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs: {jobs}; pass 1 or more, or leave it out")
    names = named_methods(methods)
    own_settings, own_presets = own_and_common("--set", settings or (), names), _presets(preset or [], names)
    tasks = [
        Task(
            method=name,
            folder=out / RUNS / name,
            epsilon=epsilon if get_method(name).private else None,
            delta=delta if get_method(name).private and epsilon is not None else None,
            config=read_settings(config, own_settings[name], device),
            preset=own_presets.get(name),
            source=data_options(data, records, classes, shape, declare),
            metrics=tuple(part.strip() for part in metrics.split(",") if part.strip()),
            samples=samples,
            fast=fast,
            test_data=test_data,
            moved=moved,
            command=command_line(),
        )
        for name in names
    ]
    comparison = run_comparison(tasks, out, jobs)
    if as_json:
        print_json({"out": str(out), **comparison.as_dict()})
    else:
        typer.echo(describe(comparison))
        typer.echo(f"comparison: {out / PAGE}")
    if comparison.problems:
        sentences = "; ".join(f"{name}: {sentence}" for name, sentence in comparison.problems.items())
        raise CheckError(f"compare: {len(comparison.problems)} method(s) broke down: {sentences}")


def _presets(texts: list[str], names: list[str]) -> dict[str, str]:
    """``METHOD:NAME`` as the preset of each method."""
    chosen: dict[str, str] = {}
    for text in texts:
        method, separator, preset = text.partition(":")
        if not separator or method not in names:
            raise InputError(f"--preset: {text!r} is not METHOD:NAME of a compared method; for example {names[0]}:gpu")
        if method in chosen:
            raise InputError(f"--preset: {method} has two; name one preset for each method")
        chosen[method] = preset
    return chosen
