"""``understudy report``: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from understudy.cli.options import Json, print_json

NAME = "report"


def command(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_OR_RELEASE...", help="Folders of runs or releases.")],
    to: Annotated[Path, typer.Option("--to", help="The HTML file to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a page with samples, the guarantee in plain words, checks, budget and quality."""
    from understudy.report.report import write_report

    path = write_report(folders, to)
    if as_json:
        print_json({"report": str(path)})
    else:
        typer.echo(f"report: {path}")
