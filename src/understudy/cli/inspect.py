"""``understudy inspect``: what is wrong with data that nobody may look at, found in the samples of their release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.errors import CheckError, InputError

if TYPE_CHECKING:
    from understudy.data.sources import DataOptions
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
            "--to", help="The HTML file to write; by default inspection.html, with --real inspection-not-private.html."
        ),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", help="Images to draw of each class.")] = 600,
    real: Annotated[
        str | None, typer.Option("--real", help="Compare with real data instead: NOT private, and stamped so.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 1 if anything was found.")] = False,
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
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
    to = to or Path("inspection.html" if real is None else "inspection-not-private.html")
    refuse_folder(to, "inspect", "inspection.html")
    drawn = _draw(suspect, samples)
    reference = None if normal is None else _draw(normal, samples)
    if real is not None:
        reference = _real(drawn, common.data_options(real, records, classes, shape, declare), samples)
    inspection = inspect_samples(drawn, reference)
    path = write_page(inspection, to)
    if as_json:
        common.print_json({**inspection.as_dict(), "page": str(path)})
    else:
        for sentence in inspection.sentences():
            typer.echo(sentence)
        typer.echo(f"page: {path} ({inspection.stamp})")
    if check and inspection.findings:
        count = len(inspection.findings)
        findings = "one finding" if count == 1 else f"{count} findings"
        raise CheckError(f"inspect: {findings} about {suspect}; the page {path} shows them")


def _draw(folder: Path, samples: int) -> Samples:
    from understudy.inspection.samples import draw_samples
    from understudy.release.release import load
    from understudy.report.subjects import name_of

    return draw_samples(load(folder), samples, name_of(folder))


def _real(suspect: Samples, source: DataOptions, samples: int) -> Samples:
    """Real images, declared as the release where the user left it open.

    Privacy: what is computed with them is not private; the page shows them and is stamped.
    """
    from understudy.inspection.samples import real_samples

    return real_samples(source.completed_from(suspect.domain).load(), samples)
