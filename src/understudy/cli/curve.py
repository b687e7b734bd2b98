"""``understudy curve``: privacy against utility over a sweep of runs, each with its own certificate; resumable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.errors import CheckError, InputError

if TYPE_CHECKING:
    from understudy.experiments.curves import Curve

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
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    preset: common.Preset = None,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    device: common.Device = None,
    account: common.Account = None,
    moved: common.AllMoved = False,
    as_json: common.Json = False,
) -> None:
    """Train and evaluate a run for every value, and draw quality against privacy.

    The same command continues an interrupted sweep: finished points are kept, the half-run one is resumed.

    More values behind --over add points. Every point spends its own budget on the same data; the total is stated.
    """
    from understudy.experiments.engine import Entrant, ExperimentOptions, WorkOptions, sweep
    from understudy.experiments.engine import collect as collect_runs
    from understudy.progress import ON_STDERR

    names = () if metrics is None else common.split_names(metrics)
    if collect:
        used = {"--data": data, "--epsilon": epsilon, "--delta": delta, "--config": config, "--set": settings}
        used |= {"--samples": samples, "--device": device, "--preset": preset, "--fast": fast or None}
        used |= {"--test-data": test_data, "--moved": moved or None, "--account": account}
        used |= {"--repeats": repeats if repeats != 1 else None}
        _refuse("--collect draws finished runs", {name: value for name, value in used.items() if value is not None})
        curve = collect_runs([Path(folder) for folder in what], over or [], names, out)
        _draw(out, curve)
    else:
        if len(what) != 1:
            raise InputError(f"curve: {len(what)} methods were named; pass one, or --collect with folders of runs")
        if data is None:
            raise InputError("curve: --data is needed to run a sweep; pass for example --data digits, or use --collect")
        options = ExperimentOptions(
            source=common.data_options(data, records, classes, shape, declare, skip_broken),
            epsilon=epsilon,
            delta=delta,
            metrics=names or ("cnn",),
            samples=samples,
            fast=fast,
            test_data=test_data,
            moved=moved,
            account=account,
            command=common.command_line(),
        )
        entrant = Entrant(what[0], common.read_settings(config, settings, device), preset)
        work = WorkOptions(audience=ON_STDERR, draw=lambda found: _draw(out, found))
        curve = sweep(entrant, over or (), out, options, repeats, work)
    if as_json:
        common.print_json({"out": str(out), **curve.as_dict()})
    else:
        typer.echo(_describe(curve))
        typer.echo(f"curve: {out / 'curve.html'}, with its figures in {out / 'curve.json'}")
    if curve.problems:
        raise CheckError(f"curve: {len(curve.problems)} point(s) broke down: {', '.join(sorted(curve.problems))}")


def _draw(out: Path, curve: Curve) -> None:
    """The pictures and the page. Privacy: figures that were computed with real data are shown with their stamp."""
    from understudy.files import write_bytes
    from understudy.report.report import write_report
    from understudy.report.sweeps import picture_files

    for name, content in picture_files(curve).items():
        write_bytes(out / name, content)
    write_report([out], out / "curve.html")


def _describe(curve: Curve) -> str:
    rows = [
        [*(str(point.values.get(key)) for key in curve.keys), "-" if point.epsilon is None else f"{point.epsilon:g}"]
        + [f"{point.figures[name]:.4g}" if name in point.figures else "-" for name in curve.metrics]
        for point in curve.points
    ]
    return common.describe_points([*curve.keys, "certified epsilon", *curve.metrics], rows, curve)


def _refuse(why: str, used: dict[str, object]) -> None:
    if used:
        raise InputError(f"curve: {why}, so {next(iter(used))} has no place there; leave it out")
