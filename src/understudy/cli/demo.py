"""``understudy demo``: the whole way on the bundled digits, without any download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from understudy.cli import options as common
from understudy.progress import watch_run
from understudy.runs.folder import RunFolder

NAME = "demo"
_METHOD, _EPSILON, _DELTA = "dp-merf", 10.0, 1e-5
_SAMPLES = 5000
_SETTINGS = ("method.frequencies=1000", "method.steps=400", "method.batch=200")  # small images need little


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
    say(f"1/5  train {_METHOD} on the bundled digits, epsilon {_EPSILON:g}, delta {_DELTA:g}")
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
    from understudy.privacy.budget import Budget

    torch.set_num_threads(1)  # as quick for images this small, and not slowed down by whatever else is running
    source, folder = DataOptions("digits"), RunFolder(run)
    if folder.released:
        say(f"     {run} holds a finished run; it is used again (remove {run.parent} for a fresh one)")
    elif folder.begun:
        asked = {"method": _METHOD, "epsilon": _EPSILON, "delta": _DELTA}
        continue_run(run, source, asked, TrainOptions(), watch_run)
    else:
        settings = common.read_settings(None, _SETTINGS)
        options = TrainOptions(config=settings, command=common.command_line(), warn=common.warn)
        start_run(_METHOD, source, Budget(_EPSILON, _DELTA), run, options, watch_run)


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
