"""``understudy annotate``: labels for images that were made without, by a classifier trained privately."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli import options as common
from understudy.cli.label import label_to
from understudy.errors import InputError
from understudy.progress import watch_run
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    from understudy.privacy.budget import Budget
    from understudy.release.release import Release


NAME = "annotate"


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
        Path | None, typer.Option("--to", help="Where labelled --images go: .csv, .npz, .parquet or a folder.")
    ] = None,
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    device: common.Device = None,
    seed: common.Seed = None,
    account: common.Account = None,
    resume: common.Resume = False,
    moved: common.Moved = False,
    processes: common.Processes = None,
    as_json: common.Json = False,
) -> None:
    """Name the images of a generator that was trained without labels, within a budget for both together.

    A classifier is trained privately on the labelled data: a teacher on fixed features or, with --set
    method.kind=network, a small network on pixels. The new release draws images of the classes asked for; its
    certificate holds the events of both parts. With an annotated RELEASE, --images and --to are `understudy label`.
    """
    common.refuse_moved_alone(moved, resume)
    if (images is None) != (to is None):
        raise InputError("annotate: --images names what to label and --to where it goes; pass both or neither")
    if data is None and (images is None or out is not None or resume):
        raise InputError("annotate: --data and --out are needed to train an annotator; or label --images with --to")
    if data is not None and out is None:
        raise InputError("annotate: --out is needed for the run; pass for example --out runs/annotated")
    from understudy.api import TrainOptions, continue_run, start_annotation
    from understudy.distributed import assembled
    from understudy.following import PROGRAM, follow
    from understudy.release.release import load

    if data is not None and out is not None:
        source = common.data_options(data, records, classes, shape, declare, skip_broken)
        settled = common.read_settings(config, settings, device)
        if common.taken_up_again(out, resume):
            resume, settled, seed = True, {}, None
        budget = None if resume else _budget(epsilon, delta)
        with assembled(processes, PROGRAM, {"source": asdict(source)}) as team:
            if not team.leads:
                follow(team, source)
                return
            options = TrainOptions(config=settled, seed=seed, moved=moved, team=team)
            if budget is None:
                asked = {"epsilon": epsilon, "delta": delta, "account": account}
                annotated = continue_run(out, source, asked, options, watch_run, annotation=True)
            else:
                options = replace(options, command=common.command_line(), account=account, warn=common.warn)
                annotated = start_annotation(release, source, budget, out, options, watch_run)
    elif processes is not None:
        raise InputError("annotate: --processes is for training an annotator; leave it out to label images")
    elif account is not None:
        raise InputError("annotate: --account is for training an annotator; labelling images costs nothing")
    else:
        annotated = load(release)
    labelled = None if images is None or to is None else label_to(annotated, images, to)
    _tell(annotated, out, labelled, as_json)


def _budget(epsilon: float | None, delta: float | None) -> Budget:
    from understudy.privacy.budget import Budget

    if epsilon is None or delta is None:
        missing = "--epsilon" if epsilon is None else "--delta"
        raise InputError(f"budget: {missing} is missing; pass that of generator and annotator together")
    return Budget(epsilon, delta)


def _tell(release: Release, out: Path | None, labelled: dict[str, Any] | None, as_json: bool) -> None:
    from understudy.privacy.meaning import claim

    headline, place = release.certificate.headline, None if out is None else RunFolder(out).release
    if as_json:
        told = {"release": None if place is None else str(place), "epsilon": headline.epsilon, "delta": headline.delta}
        common.print_json({**told, "labelled": labelled, **common.account_figures(release.certificate)})
        return
    if out is not None:
        typer.echo(f"{claim(headline)}, generator and annotator together: the release is in {place}")
        common.tell_account(release.certificate)
        typer.echo(f"next: understudy verify {shlex.quote(str(out))}")
    if labelled is not None:
        typer.echo(f"{labelled['count']} labelled images in {labelled['path']}")
