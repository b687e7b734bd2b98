"""``understudy release``: package what an interrupted run has, charged for its whole plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli.options import Json, print_json
from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.release.release import Release


NAME = "release"


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    to: Annotated[Path | None, typer.Option("--to", help="Also write the release to this folder.")] = None,
    allow_seeded: Annotated[
        bool, typer.Option("--allow-seeded", help="Copy a seeded run too; its stamp makes `verify` fail.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Release a run as it stands; a run released early is charged for its plan."""
    release = _current_release(run)
    if to is not None:
        _refuse_another(to, release)
    place = run / "release" if to is None else release.save(to, allow_seeded=allow_seeded)
    if release.certificate.not_private is not None:
        raise InputError(f"release: {release.method} is {release.certificate.not_private}; it stays in its run folder")
    headline = release.certificate.headline
    if as_json:
        print_json({"release": str(place), "epsilon": headline.epsilon, "delta": headline.delta})
        return
    from understudy.privacy.meaning import claim

    typer.echo(f"{claim(headline)}: the release is in {place} ({release.certificate.stopped_because or 'complete'})")


def _refuse_another(to: Path, release: Release) -> None:
    """Refuse a folder with a release of other weights, which would be lost."""
    from understudy.privacy.certificate import read_certificate
    from understudy.release.folders import CERTIFICATE

    if not (to / CERTIFICATE).is_file():
        return
    if read_certificate(to / CERTIFICATE).generator_sha256 != release.certificate.generator_sha256:
        raise InputError(f"release: {to} holds another release; choose another folder, or remove that one first")


def _current_release(run: Path) -> Release:
    """The finished release of the run, or an early one of its newest checkpoint."""
    from understudy.api import release_early
    from understudy.release.release import load

    if (run / "release").is_dir():
        finished = load(run)
        if "early" not in (finished.certificate.stopped_because or ""):
            return finished
    return release_early(run)
