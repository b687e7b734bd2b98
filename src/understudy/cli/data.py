"""``understudy data``: list, fetch and import the data sets that are known by name, and check data of your own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from understudy.cli import options as common

app = typer.Typer(
    help="List, fetch and import the data sets known by name; check data of your own.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Name = Annotated[str, typer.Argument(help="One of the names that `understudy data list` shows.")]


@app.command("list")
def list_sets(as_json: Json = False) -> None:
    """Say which data sets are known and which of them are on this machine."""
    from understudy.data.catalog import known_names

    rows = [_row(name) for name in known_names()]
    if as_json:
        typer.echo(json.dumps({"datasets": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "images", "classes", "records", "on this machine", "what")
    for row in rows:
        place = row["path"] or ("bundled" if row["available"] else "no")
        table.add_row(row["name"], row["shape"], str(row["classes"]), str(row["records"]), place, row["about"])
    Console().print(table)


def _row(name: str) -> dict[str, Any]:
    from understudy.data.catalog import known_set, locate

    known = known_set(name)
    place = None if name == "digits" else locate(known)
    return {
        "name": name,
        "available": name == "digits" or place is not None,
        "path": None if place is None else str(place),
        "fetchable": bool(known.mirrors),
        "shape": "x".join(map(str, known.shape)),
        "classes": known.classes,
        "records": known.records["train"],
        "about": known.about,
    }


@app.command("fetch")
def fetch_set(name: Name, as_json: Json = False) -> None:
    """Download a data set from its official mirrors, with checksum and resume."""
    from understudy.data.fetch import fetch

    files = fetch(name, progress=not as_json)
    if as_json:
        typer.echo(json.dumps({"name": name, "files": [str(path) for path in files]}))
    elif files:
        typer.echo(f"{name}: {len(files)} files in {files[0].parent}, checksums confirmed")
    else:
        typer.echo(f"{name}: bundled, nothing to download")


@app.command("import")
def import_set(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(
            help="An .npz archive, a folder of IDX files, or what its publisher hands out: LEAF's JSON files (femnist),"
            " cifar-10-binary.tar.gz, cell_images.zip (malaria-cells), QMNIST's label files (mnist-writers)."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Check local files and copy them into the cache under a known name."""
    from understudy.data.fetch import import_local

    target = import_local(name, path)
    if as_json:
        typer.echo(json.dumps({"name": name, "path": str(target)}))
    else:
        typer.echo(f"{name}: imported to {target}")


@app.command("check")
def check_set(
    path: Annotated[str, typer.Argument(help="A folder, table or archive, as `train --data` takes it.")],
    split: Annotated[str, typer.Option("--split", help="train or test, where there are both.")] = "train",
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    as_json: Json = False,
) -> None:
    """Say what a source holds and list every broken file of it; exit code 1 if there is one.

    What it prints is private: figures for --records and the like should be public ones, not copied from here.
    """
    from understudy.data.check import check_source
    from understudy.data.domain import Declared

    options = common.data_options(path, None, classes, shape, declare)
    found = check_source(path, split, Declared(None, classes, options.source_options()))
    typer.echo(json.dumps(found.as_dict()) if as_json else "\n".join(found.lines()))
    if found.broken:
        raise typer.Exit(1)
