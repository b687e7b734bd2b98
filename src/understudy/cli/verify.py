"""``understudy verify``: exit 0 only if both accountants confirm the claim and everything else is in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from understudy.cli import options as common
from understudy.errors import CheckError, one_line

if TYPE_CHECKING:
    from understudy.release.verify import Verification


NAME = "verify"


def command(release: common.ReleaseFolder, as_json: common.Json = False) -> None:
    """Recompute the guarantee from the events and check hashes, files and schema."""
    from understudy.release.verify import verify

    result = verify(release)
    if as_json:
        common.print_json(result.as_dict())
    else:
        for check in result.checks:
            typer.echo(f"{'ok    ' if check.passed else 'FAILED'}  {one_line(f'{check.name}: {check.detail}')}")
        typer.echo("not proven: " + "; ".join(result.does_not_prove))
    conclude(release, result, quiet=as_json)


def conclude(folder: Path, result: Verification, quiet: bool = False) -> None:
    """The last line: the claim, verified; or an error that names the first failed check."""
    from understudy.privacy.certificate import round_up

    if not result.passed or result.claimed is None or result.delta is None:
        failed = next(check for check in result.checks if not check.passed)
        raise CheckError(f"{folder} does not verify: {failed.name}: {failed.detail}")
    if not quiet:
        typer.echo(f"epsilon {round_up(result.claimed)} (delta {result.delta:g}) verified")
