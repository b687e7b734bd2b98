"""``understudy keys``: make the key with which releases are signed, and show the fingerprint of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from understudy.cli import options as common

app = typer.Typer(help="Make a key to sign releases with, or show the fingerprint of one.", no_args_is_help=True)


@app.command("new")
def new(
    to: Annotated[Path, typer.Option("--to", help="Folder for both halves of the key.")] = Path(),
    name: Annotated[
        str, typer.Option("--name", help="What its files are called: NAME.key and NAME.pub.")
    ] = "understudy",
    passphrase_file: common.PassphraseFile = None,
    as_json: common.Json = False,
) -> None:
    """Make a key: NAME.key signs and stays with you, NAME.pub is for everybody; nothing is overwritten.

    With --passphrase-file the private half is encrypted, and --sign needs the passphrase as well.
    """
    from understudy.release.signing import new_key

    made = new_key(to, name, common.passphrase(passphrase_file))
    if as_json:
        fields = {"private": str(made.private), "public": str(made.public), "fingerprint": made.fingerprint}
        common.print_json(fields)
        return
    typer.echo(f"{made.private}: signs releases (--sign); only you can read it, and nobody else should")
    typer.echo(f"{made.public}: hand it out by a way of its own; it checks what you signed (--key)")
    typer.echo(f"fingerprint: {made.fingerprint}")


@app.command("show")
def show(
    key: Annotated[Path, typer.Argument(metavar="PUB", help="A public key, or a folder of them.")],
    as_json: common.Json = False,
) -> None:
    """Print the fingerprint of a public key, to compare with what its owner tells you on the telephone."""
    from understudy.release.signing import trusted_keys

    found = trusted_keys(key)
    if as_json:
        common.print_json({"keys": [{"fingerprint": each, "public": str(path)} for each, path in found.items()]})
        return
    for fingerprint, path in found.items():
        typer.echo(f"{fingerprint}  {path}")
