"""``understudy inspect``: what is wrong with data that nobody may look at, found in the samples of their release."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.errors import CheckError, InputError
from understudy.progress import show_scoring

if TYPE_CHECKING:
    from understudy.data.sources import DataOptions
    from understudy.inspection.inspection import Inspection
    from understudy.inspection.samples import Samples


NAME = "inspect"


def command(
    suspect: Annotated[
        Path, typer.Argument(metavar="RELEASE", help="The release to inspect, or the run that made it.")
    ],
    normal: Annotated[
        Path | None, typer.Argument(metavar="[NORMAL]", help="A release of data that are in order, to compare with.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", help="Also write a page with the images to this HTML file; nothing is written without it."
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", help="Images to draw of each class.")] = 600,
    real: Annotated[
        str | None, typer.Option("--real", help="Compare with real data instead: NOT private, and stamped so.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if anything was found, or nothing can be said.")
    ] = False,
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    as_json: common.Json = False,
) -> None:
    """Find faults of the data in samples: turned, mirrored or inverted images, missing, mixed or rare classes.

    Alone, a release is tested for consistency with itself; beside a normal one, class by class. Every finding comes
    with a statistic, a margin and a false-alarm rate. Samples cost no privacy: what is said follows from releases.
    """
    from understudy.inspection.inspection import inspect_samples
    from understudy.inspection.page import write_page
    from understudy.report.report import refuse_folder

    if normal is not None and real is not None:
        raise InputError("inspect: compare with a normal release or with --real data; leave one of them out")
    if to is not None:
        refuse_folder(to, "inspect", "inspection.html")
    drawn = _draw(suspect, samples)
    reference = None if normal is None else _draw(normal, samples)
    if real is not None:
        reference = _real(drawn, common.data_options(real, records, classes, shape, declare, skip_broken), samples)
    inspection = inspect_samples(drawn, reference)
    if to is not None:
        write_page(inspection, to)
    if as_json:
        common.print_json({**inspection.as_dict(), "page": None if to is None else str(to)})
    else:
        for sentence in inspection.sentences():
            typer.echo(sentence)
        typer.echo(f"({inspection.stamp})" if to is None else f"page: {to} ({inspection.stamp})")
        if to is None:
            typer.echo("next: --to inspection.html writes a page with samples, prototypes and all figures", err=True)
    if check and (inspection.findings or inspection.doubts):
        _fail_check(inspection, suspect, to)


def _fail_check(inspection: Inspection, suspect: Path, to: Path | None) -> None:
    count = len(inspection.findings)
    findings = "one finding" if count == 1 else f"{count} findings" if count else "nothing can be said"
    where = "add --to inspection.html to see more" if to is None else f"the page {to} shows more"
    raise CheckError(f"inspect: {findings} about {suspect}; {where}")


def _draw(folder: Path, samples: int) -> Samples:
    from understudy.inspection.samples import draw_samples
    from understudy.release.release import load
    from understudy.report.subjects import name_of

    with show_scoring() as listeners:
        watch = partial(listeners.counts, f"images drawn from {folder}") if listeners.counts else None
        return draw_samples(load(folder), samples, name_of(folder), watch)


def _real(suspect: Samples, source: DataOptions, samples: int) -> Samples:
    """Real images, declared as the release where the user left it open.

    Privacy: what is computed with them is not private; the page shows them and is stamped.
    """
    from understudy.inspection.samples import real_samples

    return real_samples(source.completed_from(suspect.domain).load(), samples)
