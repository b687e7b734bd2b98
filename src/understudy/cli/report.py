"""``understudy report``: one self-contained HTML page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.errors import InputError
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    from understudy.data.dataset import ImageDataset
    from understudy.data.domain import Domain
    from understudy.data.sources import DataOptions
    from understudy.report.report import ReportOptions


NAME = "report"


def command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN_OR_RELEASE...", help="Folders of runs, releases or curves.")
    ],
    to: Annotated[Path, typer.Option("--to", help="The HTML file to write.")] = Path("report.html"),
    public: Annotated[
        bool, typer.Option("--public", help="Leave out everything that was computed with private data.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="The real data: shows real images beside generated ones, by class and the nearest; stamped."
        ),
    ] = None,
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    key: common.TrustedKeys = None,
    as_json: common.Json = False,
) -> None:
    """Write a page with samples, the guarantee in plain words, quality, budget and checks; several side by side.

    Parts that were computed with private data are stamped "not private: do not publish". Ctrl-P prints the page.
    """
    from understudy.report.report import ReportOptions, write_report

    options = ReportOptions(public=public, keys=key)
    if data is not None and not public:
        source = common.data_options(data, records, classes, shape, declare, skip_broken)
        options = replace(_with_data(folders, source), keys=key)
    elif data is not None:
        raise InputError("report: --data shows real records, so it has no place beside --public; leave one of them out")
    path = write_report(folders, to, options)
    if as_json:
        common.print_json({"report": str(path)})
    else:
        typer.echo(f"report: {path}")


def _with_data(folders: list[Path], source: DataOptions) -> ReportOptions:
    """The real data, declared as for the first release where the user left it open; held-out data if there are any.

    Privacy: the page will show real records, and says so.
    """
    from understudy.report.report import ReportOptions

    completed = source.completed_from(_first_domain(folders))
    train = completed.load("train")
    return ReportOptions(train_data=train, test_data=_held_out(completed))


def _first_domain(folders: list[Path]) -> Domain:
    from understudy.release.contents import read_config
    from understudy.release.folders import CONFIG, find_release

    for folder in folders:
        if (folder / CONFIG).is_file() or (RunFolder(folder).release / CONFIG).is_file():
            return read_config(find_release(folder) / CONFIG).domain
    raise InputError(f"report: {folders[0]} holds no release, so there is nothing to compare --data with; leave it out")


def _held_out(source: DataOptions) -> ImageDataset | None:
    try:
        return source.load("test")
    except InputError:
        return None  # a source without a test part: the check does without the comparison
