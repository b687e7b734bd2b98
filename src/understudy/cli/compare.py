"""``understudy compare``: several methods on the same data and budget, trained, scored and shown side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.errors import CheckError, InputError

if TYPE_CHECKING:
    from understudy.experiments.curves import Curve

NAME = "compare"
_PAGE = "compare.html"
_OWN = re.compile(r"^([a-z][a-z0-9-]*):(.*)$", re.DOTALL)


def command(
    data: common.Data,
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
    config: common.ConfigFile = None,
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
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    device: common.Device = None,
    account: common.Account = None,
    moved: common.AllMoved = False,
    as_json: common.Json = False,
) -> None:
    """Train and evaluate several methods on the same data, and write one page with all of them.

    The same command continues an interrupted comparison: finished methods are kept, a half-run one is resumed, and more
    methods add to it.

    Every method is certified for itself. Runs on the same data add up; what they spend together is stated.
    """
    from understudy.experiments.engine import Entrant, ExperimentOptions, WorkOptions
    from understudy.experiments.engine import compare as run_comparison
    from understudy.progress import ON_STDERR

    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs: {jobs}; pass 1 or more, or leave it out")
    names = _named_methods(methods)
    own_settings, own_presets = _own_and_common(settings or (), names), _presets(preset or [], names)
    options = ExperimentOptions(
        source=common.data_options(data, records, classes, shape, declare, skip_broken),
        epsilon=epsilon,
        delta=delta,
        metrics=common.split_names(metrics),
        samples=samples,
        fast=fast,
        test_data=test_data,
        moved=moved,
        account=account,
        command=common.command_line(),
    )
    entrants = [
        Entrant(name, common.read_settings(config, own_settings[name], device), own_presets.get(name)) for name in names
    ]
    work = WorkOptions(jobs, ON_STDERR, lambda found: _write_page(out, found))
    comparison = run_comparison(entrants, out, options, work)
    if as_json:
        common.print_json({"out": str(out), **comparison.as_dict()})
    else:
        typer.echo(_describe(comparison))
        typer.echo(f"comparison: {out / _PAGE}")
    if comparison.problems:
        sentences = "; ".join(f"{name}: {sentence}" for name, sentence in comparison.problems.items())
        raise CheckError(f"compare: {len(comparison.problems)} method(s) broke down: {sentences}")


def _write_page(out: Path, comparison: Curve) -> None:
    """All methods on one page. Privacy: figures that were computed with real data are shown with their stamp."""
    from understudy.experiments.points import RUNS
    from understudy.report.report import ReportOptions, write_report

    notes = tuple(total.in_words() for total in comparison.totals)
    write_report([out / RUNS / point.folder for point in comparison.points], out / _PAGE, ReportOptions(notes=notes))


def _describe(comparison: Curve) -> str:
    rows = [
        [point.method, "none" if point.epsilon is None else f"{point.epsilon:g}"]
        + [f"{point.figures[name]:.4g}" for name in comparison.metrics]
        + ["-" if point.seconds is None else f"{point.seconds:.0f}"]
        for point in comparison.points
    ]
    return common.describe_points(["method", "certified epsilon", *comparison.metrics, "seconds"], rows, comparison)


def _named_methods(text: str) -> list[str]:
    """``a,b,c`` as methods that exist, each once."""
    from understudy.methods.registry import get_method

    names = list(common.split_names(text))
    if len(names) < 2:
        raise InputError(f"--methods: {text!r} names {len(names)}; pass at least two, such as --methods dp-merf,dpgan")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--methods: {twice} is named twice; name each method once")
    for name in names:
        get_method(name)
    return names


def _own_and_common(texts: Sequence[str], methods: Sequence[str]) -> dict[str, list[str]]:
    """What each method gets: texts without a name go to all, ``NAME:text`` to that method and after the common ones."""
    common, own = [], {name: list[str]() for name in methods}
    for text in texts:
        match = _OWN.match(text)
        if match is None:
            common.append(text)
        elif match[1] in own:
            own[match[1]].append(match[2])
        else:
            raise InputError(f"--set: {text!r} is for {match[1]}, which is not compared; name it behind --methods")
    return {name: [*common, *texts] for name, texts in own.items()}


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
