"""``understudy label``: names for images, by the classifier that comes with a release."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli import options as common
from understudy.errors import InputError
from understudy.progress import show_scoring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from understudy.release.release import Release

NAME = "label"

_COLUMNS = ("image", "label", "name", "probability")


def command(
    release: common.ReleaseFolder,
    images: Annotated[
        str, typer.Option("--images", help="A folder, .npz or IDX file; brought to the size of the release.")
    ],
    to: Annotated[
        Path, typer.Option("--to", help="labels.csv; or .npz, .parquet or a folder, with the images themselves.")
    ],
    as_json: common.Json = False,
) -> None:
    """Name images of your own with the private classifier of a release; costs no privacy of the data it learnt from.

    A release has one if it was trained with privacy.teacher_share, or made by `understudy annotate`.
    """
    from understudy.release.release import load

    told = label_to(load(release), images, to)
    if as_json:
        common.print_json(told)
    else:
        typer.echo(f"{told['count']} labelled images in {told['path']}")


def label_to(release: Release, images: str, to: Path) -> dict[str, Any]:
    """Label the images of a file or folder. Privacy: post-processing of the release."""
    from understudy.data.sources import DataOptions
    from understudy.release.export import check_destination, export
    from understudy.report.pictures import planes_last

    table = to.suffix == ".csv"
    if not table:
        check_destination(to)
    release.check_classifier()
    shape = "x".join(str(side) for side in release.domain.shape)
    shown = planes_last(DataOptions(images, records=1, shape=shape, declared=("unlabelled=true",)).load().images)
    with show_scoring() as listeners:
        likely = release.probabilities(shown, listeners.counting("images named", len(shown)))
    if table:
        _write_table(to, _places(images, len(shown)), likely, release.domain.class_names)
    else:
        export(shown, likely.argmax(axis=1), to, release.domain.class_names)
    return {"path": str(to), "count": len(shown)}


def _places(source: str, count: int) -> list[str]:
    """What each image is called in the table: its place in a folder, or its number."""
    from understudy.data.domain import SourceOptions
    from understudy.data.folder import folder_items

    folder = Path(source)
    if folder.is_dir():
        items = list(folder_items(folder, None, SourceOptions(unlabelled=True)))
        if len(items) == count:
            return [str(Path(item.name).relative_to(folder)) for item in items]
    return [str(number) for number in range(count)]


def _write_table(
    path: Path, places: Sequence[str], likely: NDArray[np.float64], class_names: Sequence[str] | None
) -> None:
    from io import StringIO

    from understudy.files import write_text

    content = StringIO()
    table = csv.writer(content, lineterminator="\n")
    table.writerow(_COLUMNS)
    for place, row in zip(places, likely, strict=True):
        label = int(row.argmax())
        name = str(label) if class_names is None else class_names[label]
        table.writerow((place, label, name, f"{row[label]:.4f}"))
    if path.is_dir():
        raise InputError(f"output: {path} is a folder; choose another name")
    write_text(path, content.getvalue())
