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


def command(release: common.ReleaseFolder, key: common.TrustedKeys = None, as_json: common.Json = False) -> None:
    """Recompute the guarantee from the events, replay the plan, check hashes and files: one of three verdicts.

    verified (exit 0), consistent (nothing contradicts the claim, but something it needs is missing: exit 1), or refused
    (exit 1).
    """
    from understudy.release.verify import verify

    result = verify(release, key)
    if as_json:
        common.print_json(result.as_dict())
    else:
        tell(result)
    conclude(release, result, quiet=as_json)


def tell(result: Verification) -> None:
    """A line for each check, remark and statement."""
    for check in result.checks:
        mark = "ok     " if check.passed else "MISSING" if check.missing else "FAILED "
        typer.echo(f"{mark} {one_line(f'{check.name}: {check.detail}')}")
    if "signature" not in {check.name for check in result.checks}:
        typer.echo(one_line(result.signature.detail))
    for statement in result.stated:
        typer.echo(f"stated by the trainer: {one_line(statement)}")
    typer.echo("not proven: " + "; ".join(result.does_not_prove))


def conclude(folder: Path, result: Verification, quiet: bool = False) -> None:
    """The last lines: remarks and the claim, verified; or an error that names what is missing or contradicts it."""
    from understudy.privacy.certificate import round_up

    if result.reason is not None or result.claimed is None or result.delta is None:
        found = f": {result.reason.name}: {result.reason.detail}" if result.reason else ""
        if result.verdict == "consistent":
            raise CheckError(f"{folder} is consistent, but not verified{found}")
        raise CheckError(f"{folder} is refused{found}")
    if not quiet:
        for remark in result.remarks:
            typer.echo(f"remark: {one_line(remark)}")
        typer.echo(f"epsilon {round_up(result.claimed)} (delta {result.delta:g}) verified")
