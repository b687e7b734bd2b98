"""``understudy curve``: privacy against utility over a sweep of runs, each with its own certificate; resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from understudy.cli.options import (
    AllMoved,
    Classes,
    ConfigFile,
    Declare,
    Device,
    Json,
    Preset,
    Records,
    SetValues,
    Shape,
    data_options,
    print_json,
    read_settings,
)
from understudy.errors import CheckError, InputError

NAME = "curve"


def command(
    what: Annotated[
        list[str],
        typer.Argument(metavar="METHOD | RUN...", help="A method to run; with --collect, folders of finished runs."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the runs (OUT/points), the figures and the pictures.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=V,V,...",
            help="What to vary: epsilon, delta or a setting such as privacy.queries. Once for the axis, once more for "
            "one line per value. With --collect only the keys.",
        ),
    ] = None,
    collect: Annotated[bool, typer.Option("--collect", help="Draw finished runs instead of running any.")] = False,
    data: Annotated[str | None, typer.Option("--data", help="As for `understudy train`.")] = None,
    test_data: Annotated[str | None, typer.Option("--test-data", help="As for `understudy evaluate`.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Budget of each run, unless it varies.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Budget of each run, unless it varies.")] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", help="As for `understudy evaluate`; cnn, or all that were collected.")
    ] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="Images to draw for each evaluation.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="As for `understudy evaluate`.")] = False,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of each point: mean and deviation are drawn.")] = 1,
    records: Records = None,
    classes: Classes = None,
    shape: Shape = None,
    declare: Declare = None,
    preset: Preset = None,
    config: ConfigFile = None,
    settings: SetValues = None,
    device: Device = None,
    moved: AllMoved = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate a run for every value, and draw quality against privacy.

    The same command continues an interrupted sweep: finished points are kept, the half-run one is resumed.

    More values behind --over add points. Every point spends its own budget on the same data; the total is stated.
    """
    from understudy.cli.sweep import collect_runs, run_sweep
    from understudy.cli.sweep_plan import Sweep

    if collect:
        used = {"--data": data, "--epsilon": epsilon, "--delta": delta, "--config": config, "--set": settings}
        used |= {"--samples": samples, "--device": device, "--preset": preset, "--fast": fast or None}
        used |= {"--test-data": test_data, "--moved": moved or None}
        used |= {"--repeats": repeats if repeats != 1 else None}
        _refuse("--collect draws finished runs", {name: value for name, value in used.items() if value is not None})
        result = collect_runs([Path(folder) for folder in what], over or [], _names(metrics), out)
    else:
        if len(what) != 1:
            raise InputError(f"curve: {len(what)} methods were named; pass one, or --collect with folders of runs")
        if data is None:
            raise InputError("curve: --data is needed to run a sweep; pass for example --data digits, or use --collect")
        sweep = Sweep(
            method=what[0],
            out=out,
            source=data_options(data, records, classes, shape, declare),
            budget=(epsilon, delta),
            config=read_settings(config, settings, device),
            over=tuple(over or ()),
            metrics=_names(metrics) or ("cnn",),
            samples=samples,
            repeats=repeats,
            preset=preset,
            fast=fast,
            test_data=test_data,
            moved=moved,
        )
        result = run_sweep(sweep)
    if as_json:
        print_json({"out": str(out), **result.as_dict()})
    else:
        from understudy.cli.sweep import describe

        typer.echo(describe(result))
        typer.echo(f"curve: {out / 'curve.html'}, with its figures in {out / 'curve.json'}")
    if result.problems:
        raise CheckError(f"curve: {len(result.problems)} point(s) broke down: {', '.join(sorted(result.problems))}")


def _names(metrics: str | None) -> tuple[str, ...]:
    return () if metrics is None else tuple(name.strip() for name in metrics.split(",") if name.strip())


def _refuse(why: str, used: dict[str, object]) -> None:
    if used:
        raise InputError(f"curve: {why}, so {next(iter(used))} has no place there; leave it out")
