"""``understudy demo``: the whole way on the bundled digits, without any download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from understudy.cli import options as common
from understudy.forecast import introduce
from understudy.progress import watch_run
from understudy.runs.folder import RunFolder

NAME = "demo"
_EPSILON = 10.0
_SAMPLES = 5000
_PATIENCE = 60.0  # seconds that training may take


def command(
    out: Annotated[Path, typer.Option("--out", help="Folder for the run, the samples and the report.")] = Path("demo"),
    as_json: common.Json = False,
) -> None:
    """Train on the bundled digits, sample, evaluate, report and verify; run again, it continues where it was."""
    from understudy.cli.verify import conclude
    from understudy.release.verify import verify
    from understudy.report.report import write_report

    def say(text: str) -> None:
        typer.echo(text, err=as_json)

    run = out / "run"
    say(f"1/5  train on the bundled digits, epsilon {_EPSILON:g}; the method is chosen by what is public")
    _train(run, say)
    say(f"2/5  draw {_SAMPLES} samples")
    _sample(run, out / "samples.npz")
    say("3/5  train a classifier on samples, test it on real digits that were held out")
    accuracy, verdict = _evaluate(run)
    say(f"     accuracy {100 * accuracy:.1f} %: {verdict} (not private: do not publish; these digits are public)")
    say("4/5  write the report")
    page = write_report([run], out / "report.html")
    say("5/5  verify the release")
    result = verify(run)
    if as_json:
        common.print_json({"report": str(page), "run": str(run), "accuracy": accuracy, **result.as_dict()})
    else:
        typer.echo(f"report: {page}")
    conclude(run, result, quiet=as_json)


def _train(run: Path, say: Callable[[str], None]) -> None:
    """Train, continue an interrupted demo, or keep a finished one: nothing is ever deleted."""
    import torch

    from understudy.api import TrainOptions, continue_run, start_run
    from understudy.data.sources import DataOptions
    from understudy.methods.choice import AUTO
    from understudy.privacy.budget import OpenBudget

    torch.set_num_threads(1)  # as quick for images this small, and not slowed down by whatever else is running
    source, folder = DataOptions("digits"), RunFolder(run)
    if folder.released:
        say(f"     {run} holds a finished run; it is used again (remove {run.parent} for a fresh one)")
    elif folder.begun:
        continue_run(run, source, {"epsilon": _EPSILON}, TrainOptions(), watch_run)
    else:
        options = TrainOptions(command=common.command_line(), warn=common.warn, time=_PATIENCE)
        options = replace(options, chosen=lambda choice: say(f"     {introduce(choice)}"))
        start_run(AUTO, source, OpenBudget(_EPSILON), run, options, watch_run)


def _sample(run: Path, destination: Path) -> None:
    from understudy.release.export import export
    from understudy.release.release import load

    release = load(run)
    images, labels = release.sample(_SAMPLES)
    export(images, labels, destination, release.domain.class_names)


def _evaluate(run: Path) -> tuple[float, str]:
    from understudy.data.sources import DataOptions
    from understudy.evaluate.releases import EvaluateOptions, evaluate_release
    from understudy.progress import show_scoring

    drawn = EvaluateOptions(_SAMPLES, scoring=show_scoring)
    result = evaluate_release(run, DataOptions("digits"), ["cnn"], drawn)
    return float(result["cnn_accuracy"]), str(result["figures"][0]["yardstick"]["verdict"])
