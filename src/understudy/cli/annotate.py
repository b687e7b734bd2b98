"""``understudy annotate``: labels for images that were made without, by a classifier trained privately."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli.options import (
    Classes,
    ConfigFile,
    Declare,
    Device,
    Json,
    Moved,
    Records,
    Resume,
    Seed,
    SetValues,
    Shape,
    data_options,
    print_json,
    read_settings,
    refuse_moved_alone,
)
from understudy.errors import InputError
from understudy.progress import show_progress, stop_on_signals

if TYPE_CHECKING:
    from understudy.data.declarations import DataOptions
    from understudy.release.release import Release


NAME = "annotate"


@dataclass(frozen=True)
class Request:
    """What was asked for, beside the data."""

    release: Path
    out: Path
    epsilon: float | None
    delta: float | None
    config: dict[str, Any]
    seed: int | None


def command(
    release: Annotated[
        Path, typer.Argument(metavar="RELEASE", help="A generator without labels, or an annotated one.")
    ],
    data: Annotated[str | None, typer.Option("--data", help="Private labelled data to learn the classes from.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the run; OUT/release will draw labels.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Of generator and annotator together.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Of generator and annotator together.")] = None,
    images: Annotated[
        str | None,
        typer.Option(
            "--images", help="Label these too, at the size of the release: a folder, .npz or IDX file without labels."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Where labelled --images go: .npz, .parquet or a folder.")
    ] = None,
    records: Records = None,
    classes: Classes = None,
    shape: Shape = None,
    declare: Declare = None,
    config: ConfigFile = None,
    settings: SetValues = None,
    device: Device = None,
    seed: Seed = None,
    resume: Resume = False,
    moved: Moved = False,
    as_json: Json = False,
) -> None:
    """Name the images of a generator that was trained without labels, within a budget for both together.

    A classifier is trained by DP-SGD on the private labelled data. The new release draws images of the classes asked
    for; its certificate holds the events of both parts. With an annotated RELEASE, --images and --to label further
    images at no cost.
    """
    refuse_moved_alone(moved, resume)
    if (images is None) != (to is None):
        raise InputError("annotate: --images names what to label and --to where it goes; pass both or neither")
    if data is None and (images is None or out is not None or resume):
        raise InputError("annotate: --data and --out are needed to train an annotator; or label --images with --to")
    if data is not None and out is None:
        raise InputError("annotate: --out is needed for the run; pass for example --out runs/annotated")
    if data is not None and out is not None:
        source = data_options(data, records, classes, shape, declare)
        request = Request(release, out, epsilon, delta, read_settings(config, settings, device), seed)
        annotated = _continue(request, source, moved) if resume else _start(request, source)
    else:
        annotated = _load(release)
    labelled = None if images is None or to is None else _label(annotated, images, to)
    _tell(annotated, out, labelled, as_json)


def _start(request: Request, source: DataOptions) -> Release:
    from understudy.annotation import annotate
    from understudy.api import TrainOptions
    from understudy.privacy.budget import Budget

    if request.epsilon is None or request.delta is None:
        missing = "--epsilon" if request.epsilon is None else "--delta"
        raise InputError(f"budget: {missing} is missing; pass that of generator and annotator together")
    budget, base = Budget(request.epsilon, request.delta), _load(request.release)
    data = source.load()
    words = shlex.join(["understudy", *sys.argv[1:]])
    with stop_on_signals() as stop, show_progress() as listener:
        options = TrainOptions(request.config, request.seed, listener, stop, words, source.as_dict())
        return annotate(base, data, budget, request.out, options)


def _continue(request: Request, source: DataOptions, moved: bool) -> Release:
    """Continue a run with what it was started with; anything asked for now must agree with that."""
    from understudy.annotation import resume_annotation
    from understudy.api import TrainOptions, read_description

    described = read_description(request.out)
    for name in ("epsilon", "delta"):
        asked, started = getattr(request, name), getattr(described.budget, name)
        if asked is not None and asked != started:
            raise InputError(f"{name}: {asked} was asked for, but the run in {request.out} was started with {started}")
    if request.config or request.seed is not None:
        raise InputError("resume: a run keeps its config and seed; leave --config, --set, --device and --seed out")
    data = source.completed_by(described.source).completed_from(described.domain).load()
    with stop_on_signals() as stop, show_progress() as listener:
        return resume_annotation(data, request.out, TrainOptions(listener=listener, stop_requested=stop, moved=moved))


def _load(folder: Path) -> Release:
    from understudy.release.release import load

    return load(folder)


def _label(release: Release, images: str, to: Path) -> dict[str, Any]:
    """Label images of a file or folder. Privacy: post-processing of the annotated release."""
    from understudy.annotation import label_images
    from understudy.data.declarations import DataOptions
    from understudy.release.export import check_destination, export
    from understudy.report.pictures import planes_last

    check_destination(to)
    shape = "x".join(str(side) for side in release.domain.shape)
    source = DataOptions(images, records=1, shape=shape, declared=("unlabelled=true",)).load()
    labels = label_images(release, source.images)
    path = export(planes_last(source.images), labels, to, release.domain.class_names)
    return {"path": str(path), "count": len(labels)}


def _tell(release: Release, out: Path | None, labelled: dict[str, Any] | None, as_json: bool) -> None:
    headline = release.certificate.headline
    if as_json:
        place = None if out is None else str(out / "release")
        print_json({"release": place, "epsilon": headline.epsilon, "delta": headline.delta, "labelled": labelled})
        return
    from understudy.privacy.meaning import claim

    if out is not None:
        typer.echo(f"{claim(headline)}, generator and annotator together: the release is in {out / 'release'}")
        typer.echo(f"next: understudy verify {shlex.quote(str(out))}")
    if labelled is not None:
        typer.echo(f"{labelled['count']} labelled images in {labelled['path']}")
