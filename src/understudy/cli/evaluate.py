"""``understudy evaluate``: score a release with real data. Its figures are not private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli.options import Classes, Data, DataOptions, Declare, Json, Records, ReleaseFolder, Shape, print_json

if TYPE_CHECKING:
    from understudy.data import ImageDataset

NAME = "evaluate"
_MOST_SAMPLES = 60_000


def command(
    release: ReleaseFolder,
    data: Data,
    test_data: Annotated[
        str | None, typer.Option("--test-data", help="Held-out real data; by default the test split of --data.")
    ] = None,
    metrics: Annotated[
        str, typer.Option("--metrics", help="Separated by commas: cnn, downstream (all classifiers), is, fid.")
    ] = "cnn",
    samples: Annotated[
        int | None, typer.Option("--samples", help="Images to draw; by default as many as the declared records.")
    ] = None,
    records: Records = None,
    classes: Classes = None,
    shape: Shape = None,
    declare: Declare = None,
    as_json: Json = False,
) -> None:
    """Train classifiers on samples and test them on real images; the figures are stamped not private."""
    source = DataOptions(data, records, classes, shape, declare or ())
    held_out = source if test_data is None else DataOptions(test_data, records, classes, shape, declare or ())
    split = "test" if test_data is None else "train"
    result = evaluate_release(release, (source, held_out, split), metrics, samples)
    if as_json:
        print_json(result)
        return
    for figure in result["figures"]:
        value = f"{100 * figure['value']:.1f} %" if "accuracy" in figure else f"{figure['value']:.4g}"
        typer.echo(f"{figure['name']:<20}{value}")
    typer.echo(f"({result['stamp'] or 'the real data were declared public'})")


def evaluate_release(
    folder: Path, real: tuple[DataOptions, DataOptions, str], metrics: str, samples: int | None
) -> dict[str, Any]:
    """The figures of a release; kept as ``evaluation.json`` where the folder is that of a run.

    Privacy: reads real data without noise; the figures carry the stamp ``not private: do not publish``.
    """
    from understudy.evaluate import EvaluationConfig, evaluate
    from understudy.evaluate.evaluation import expand_metrics
    from understudy.files import write_text
    from understudy.release.release import load

    names = expand_metrics([name.strip() for name in metrics.split(",")])
    release = load(folder)
    source, held_out, split = real
    train = source.completed_from(release.domain).load("train")
    test = held_out.completed_from(release.domain).load(split)
    images, labels = release.sample(samples or min(_MOST_SAMPLES, release.domain.nominal_records))
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    config = EvaluationConfig(classes=release.domain.classes)
    result = evaluate(planes, labels, _pair(train), _pair(test), names, config).as_dict()
    if (folder / "run.json").exists():
        write_text(folder / "evaluation.json", json.dumps(result, indent=2) + "\n")
    return result


def _pair(data: ImageDataset) -> tuple[Any, Any]:
    from understudy.errors import InputError

    if data.labels is None:
        raise InputError(f"labels: {data.name} has none, but an evaluation needs them; pass labelled real data")
    return data.images, data.labels
