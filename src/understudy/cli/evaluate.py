"""``understudy evaluate``: score a release with real data. Its figures are not private."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from understudy.cli import options as common
from understudy.progress import show_scoring

NAME = "evaluate"
_SHARES = ("average_accuracy", "calibrated_accuracy")


def command(
    release: common.ReleaseFolder,
    data: common.Data,
    test_data: Annotated[
        str | None, typer.Option("--test-data", help="Held-out real data; by default the test split of --data.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            help="Separated by commas: fid; fid\\[lenet] (the same distance by a small network trained on real data);"
            " is (Inception score); resnet (a residual network, for colour); downstream (13 classifiers, their average"
            " and calibrated accuracy), or some of them by name: cnn, mlp, adaboost, bagging, bernoulli_nb,"
            " decision_tree, gaussian_nb, gradient_boosting, lda, linear_svc, logistic_regression, random_forest,"
            " xgboost. By default cnn, and resnet beside it where images are in colour.",
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Images to draw; by default as many as the declared records.")
    ] = None,
    temperature: common.Temperature = 1.0,
    sample_steps: common.SampleSteps = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Train classifiers on fewer images; the output says what was left out.")
    ] = False,
    reference: Annotated[
        bool,
        typer.Option(
            help="Put beside each score what real images give in its place; the first time that takes as long again."
        ),
    ] = True,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="Draw images, compute the features of fid and train classifiers in so many processes on this machine.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Classifiers trained side by side; by default one on each core.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", help="Inception weights for fid; by default they are searched for.")
    ] = None,
    allow_few: Annotated[
        bool, typer.Option("--allow-few", help="Compute fid from too few images for a stable score; it is biased.")
    ] = False,
    cache: Annotated[
        bool,
        typer.Option(
            help="Keep what follows from the real data alone in ~/.cache/understudy/private; it is private like them."
        ),
    ] = True,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    to: Annotated[Path | None, typer.Option("--to", help="Also write the JSON object to this file.")] = None,
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    as_json: common.Json = False,
) -> None:
    """Compare samples with real images and train classifiers on them; the figures are stamped not private.

    Every score stands beside what chance gives and what real images give in its place, with a verdict in words.
    """
    from understudy.evaluate.evaluation import EvaluationConfig
    from understudy.evaluate.fid import FidConfig
    from understudy.evaluate.parallel import Crew
    from understudy.evaluate.private_cache import default_folder as private_folder
    from understudy.evaluate.releases import EvaluateOptions, evaluate_release
    from understudy.files import make_folder, write_text
    from understudy.processes import checked_number

    if to is not None:
        make_folder(to.parent, "to")
    if processes is not None:
        checked_number(processes)
    chosen = EvaluationConfig(
        device=device,
        weights=weights,
        fid=FidConfig(allow_few=allow_few),
        fast=fast,
        reference=reference,
        cache=private_folder() if cache else None,
        crew=Crew(processes if workers is None else workers),
        processes=processes or 1,
    )
    source = common.data_options(data, records, classes, shape, declare, skip_broken)
    drawn = EvaluateOptions(samples, temperature, sample_steps, test_data, show_scoring, processes)
    names = None if metrics is None else [name.strip() for name in metrics.split(",")]
    result = evaluate_release(release, source, names, drawn, chosen)
    if to is not None:
        write_text(to, json.dumps(result, indent=2) + "\n")
    if as_json:
        common.print_json(result)
        return
    for line in describe(result):
        typer.echo(line)
    if cache and any("real_accuracy" in figure or "accuracy" not in figure for figure in result["figures"]):
        typer.echo(f"(what follows from the real data is kept in {private_folder()}, as private as they are)", err=True)


def describe(result: dict[str, Any]) -> Iterator[str]:
    """The figures as lines of text, each beside its yardstick, the stamp last."""
    width = max(20, *(len(figure["name"]) + 2 for figure in result["figures"]))
    for figure in result["figures"]:
        shown = _percent if "accuracy" in figure or figure["name"] in _SHARES else "{:.4g}".format
        line = f"{figure['name']:<{width}}{shown(figure['value']):<8}"
        if "yardstick" in figure:
            line += f"  {_beside(figure['yardstick'], shown)}"
        if "settings" in figure:
            size = f", {figure['parameters']:,} parameters" if figure.get("parameters") else ""
            memory = f", {figure['memory_mb']} MB" if figure["memory_mb"] else ""
            line += f"  ({figure['seconds']:.1f} s{memory}{size})" + (f"  {figure['note']}" if figure["note"] else "")
        yield line
    yield from (f"fast: {sentence}" for sentence in result["left_out"])
    yield f"({result['stamp'] or 'the real data were declared public'})"


def _beside(yardstick: Mapping[str, Any], shown: Callable[[float], str]) -> str:
    """The verdict, and the two figures that it rests on."""
    beside = [f"{yardstick['chance_means']} {shown(yardstick['chance'])}"]
    beside += [] if yardstick["real"] is None else [f"real images {shown(yardstick['real'])}"]
    return f"{yardstick['verdict']} ({', '.join(beside)})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
