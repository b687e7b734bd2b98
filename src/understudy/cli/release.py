"""``understudy release``: package what an interrupted run has, charged for its whole plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from understudy.cli import options as common
from understudy.errors import InputError

NAME = "release"


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    to: Annotated[Path | None, typer.Option("--to", help="Also write the release to this folder.")] = None,
    allow_seeded: Annotated[
        bool, typer.Option("--allow-seeded", help="Copy a seeded run too; its stamp makes `verify` fail.")
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign",
            metavar="KEY",
            help="Sign what is written to --to with this private key: see `understudy keys new`.",
        ),
    ] = None,
    passphrase_file: common.PassphraseFile = None,
    as_json: common.Json = False,
) -> None:
    """Release a run as it stands; a run released early is charged for its plan."""
    from understudy.api import release_run
    from understudy.privacy.meaning import claim
    from understudy.release.signing import NOBODY_VOUCHES, check

    release, place = release_run(run, to, allow_seeded, sign, common.passphrase(passphrase_file))
    if release.certificate.not_private is not None:
        raise InputError(f"release: {release.method} is {release.certificate.not_private}; it stays in its run folder")
    headline = release.certificate.headline
    signer = None if sign is None else check(place).fingerprint
    if as_json:
        fields = {"epsilon": headline.epsilon, "delta": headline.delta, "signed_with": signer}
        common.print_json({"release": str(place), **fields})
        return
    typer.echo(f"{claim(headline)}: the release is in {place} ({release.certificate.stopped_because or 'complete'})")
    typer.echo(f"signed with key {signer}" if signer else NOBODY_VOUCHES)
