"""``understudy evaluate``: score a release with real data. Its figures are not private."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli.options import (
    Classes,
    Data,
    Declare,
    Json,
    Records,
    ReleaseFolder,
    Shape,
    Temperature,
    data_options,
    print_json,
)
from understudy.errors import InputError
from understudy.progress import Listeners, show_scoring

if TYPE_CHECKING:
    from understudy.data import ImageDataset
    from understudy.data.declarations import DataOptions
    from understudy.evaluate.evaluation import EvaluationConfig


NAME = "evaluate"
_MOST_SAMPLES = 60_000
_SHARES = ("average_accuracy", "calibrated_accuracy")


@dataclass(frozen=True)
class Choices:
    """How the figures are computed, as far as the command line lets one choose."""

    weights: Path | None = None
    fast: bool = False
    workers: int | None = None
    cache: bool = False
    allow_few: bool = False
    device: str = "auto"
    temperature: float = 1.0

    def config(self, classes: int | None, listeners: Listeners) -> EvaluationConfig:
        """The same for the evaluation itself."""
        from understudy.evaluate import EvaluationConfig
        from understudy.evaluate.fid import FidConfig
        from understudy.evaluate.parallel import Crew
        from understudy.evaluate.private_cache import default_folder

        return EvaluationConfig(
            device=self.device,
            classes=classes,
            weights=self.weights,
            fid=FidConfig(allow_few=self.allow_few),
            fast=self.fast,
            cache=default_folder() if self.cache else None,
            crew=Crew(self.workers, listeners.classifiers),
            listener=listeners.counts,
        )


def command(
    release: ReleaseFolder,
    data: Data,
    test_data: Annotated[
        str | None, typer.Option("--test-data", help="Held-out real data; by default the test split of --data.")
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            help="Separated by commas: fid; fid\\[lenet] (the same distance by a small network trained on real data);"
            " is (Inception score); downstream (13 classifiers, their average and calibrated accuracy), or some of them"
            " by name: cnn, mlp, adaboost, bagging, bernoulli_nb, decision_tree, gaussian_nb, gradient_boosting, lda,"
            " linear_svc, logistic_regression, random_forest, xgboost.",
        ),
    ] = "cnn",
    samples: Annotated[
        int | None, typer.Option("--samples", help="Images to draw; by default as many as the declared records.")
    ] = None,
    temperature: Temperature = 1.0,
    fast: Annotated[
        bool, typer.Option("--fast", help="Train classifiers on fewer images; the output says what was left out.")
    ] = False,
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
    records: Records = None,
    classes: Classes = None,
    shape: Shape = None,
    declare: Declare = None,
    as_json: Json = False,
) -> None:
    """Compare samples with real images and train classifiers on them; the figures are stamped not private."""
    from understudy.evaluate.private_cache import default_folder as private_folder
    from understudy.files import make_folder, write_text

    source = data_options(data, records, classes, shape, declare)
    held_out = source if test_data is None else data_options(test_data, records, classes, shape, declare)
    split = "test" if test_data is None else "train"
    if to is not None:
        make_folder(to.parent, "to")
    choices = Choices(weights, fast, workers, cache, allow_few, device, temperature)
    result = evaluate_release(release, (source, held_out, split), metrics, samples, choices)
    if to is not None:
        write_text(to, json.dumps(result, indent=2) + "\n")
    if as_json:
        print_json(result)
        return
    for line in describe(result):
        typer.echo(line)
    if cache and any("real_accuracy" in figure or "accuracy" not in figure for figure in result["figures"]):
        typer.echo(f"(what follows from the real data is kept in {private_folder()}, as private as they are)", err=True)


def evaluate_release(
    folder: Path,
    real: tuple[DataOptions, DataOptions, str],
    metrics: str,
    samples: int | None,
    choices: Choices | None = None,
) -> dict[str, Any]:
    """The figures of a release; at temperature 1 kept as ``evaluation.json`` where the folder is that of a run.

    Privacy: reads real data without noise; the figures carry the stamp ``not private: do not publish``.
    """
    from understudy.evaluate import evaluate
    from understudy.evaluate.evaluation import expand_metrics
    from understudy.files import write_text
    from understudy.release.release import load

    choices = choices or Choices()
    names = [name.strip() for name in metrics.split(",")]
    expand_metrics(names)  # a misspelt name is refused before anything is read
    if samples is not None and samples < 1:
        raise InputError(f"samples: {samples} images were asked for; pass 1 or more")
    release = load(folder)
    if not release.domain.labelled:
        raise InputError(
            f"labels: the release in {folder} has none, but an evaluation needs them; name its images with `annotate`"
        )
    source, held_out, split = real
    train = source.completed_from(release.domain).load("train")
    test = held_out.completed_from(release.domain).load(split)
    count = samples or min(_MOST_SAMPLES, release.domain.nominal_records)
    images, labels = release.sample(count, temperature=choices.temperature)
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    with show_scoring() as listeners:
        config = choices.config(release.domain.classes, listeners)
        result = evaluate(planes, labels, _pair(train), _pair(test), names, config).as_dict()
    if choices.temperature != 1:
        result["temperature"] = choices.temperature
    elif (folder / "run.json").exists():
        write_text(folder / "evaluation.json", json.dumps(result, indent=2) + "\n")
    return result


def describe(result: dict[str, Any]) -> Iterator[str]:
    """The figures as lines of text, the stamp last."""
    width = max(20, *(len(figure["name"]) + 2 for figure in result["figures"]))
    for figure in result["figures"]:
        is_share = "accuracy" in figure or figure["name"] in _SHARES
        line = f"{figure['name']:<{width}}" + (_percent(figure["value"]) if is_share else f"{figure['value']:.4g}")
        if "real_accuracy" in figure:
            line += f"  of {_percent(figure['real_accuracy'])} with real data: {_percent(figure['calibrated'])}"
        if "settings" in figure:
            memory = f", {figure['memory_mb']} MB" if figure["memory_mb"] else ""
            line += f"  ({figure['seconds']:.1f} s{memory})" + (f"  {figure['note']}" if figure["note"] else "")
        yield line
    yield from (f"fast: {sentence}" for sentence in result["left_out"])
    yield f"({result['stamp'] or 'the real data were declared public'})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _pair(data: ImageDataset) -> tuple[Any, Any]:
    if data.labels is None:
        raise InputError(f"labels: {data.name} has none, but an evaluation needs them; pass labelled real data")
    return data.images, data.labels
