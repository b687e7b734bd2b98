"""``understudy data``: data sets that are known by name, data of your own, and accounts of what they may reveal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from understudy.cli import options as common
from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.runs.accounts import Account

app = typer.Typer(
    help="List, fetch and import the data sets known by name; check data of your own; keep accounts of them.",
    no_args_is_help=True,
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


@app.command("store")
def store_set(
    source: Annotated[str, typer.Argument(help="A known name, folder, table or archive, as `train --data` takes it.")],
    to: Annotated[Path, typer.Option("--to", help="Folder of the store; for you alone, and not there yet.")],
    split: Annotated[str, typer.Option("--split", help="train or test, where there are both.")] = "train",
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    as_json: Json = False,
) -> None:
    """Write data that do not fit into memory to disk, once, in the form that training reads as it goes.

    What is declared here is kept with it, so `train --data STORE` needs no declaration. A store is as private as the
    data themselves.
    """
    from understudy.data.sources import write_store

    given = common.data_options(source, records, classes, shape, declare, skip_broken).source_options()
    write_store(source, to, split=split, records=records, classes=classes, options=given)
    typer.echo(json.dumps({"store": str(to)}) if as_json else f"stored in {to}; train on it with --data {to}")


@app.command("check")
def check_set(
    path: Annotated[str, typer.Argument(help="A known name, folder, table or archive, as `train --data` takes it.")],
    split: Annotated[str, typer.Option("--split", help="train or test, where there are both.")] = "train",
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    as_json: Json = False,
) -> None:
    """Say what a source holds and list every broken file of it; exit code 1 if more than --skip-broken are broken.

    What it prints is private: figures for --records and the like should be public ones, not copied from here.
    """
    from understudy.data.check import check_source
    from understudy.data.domain import Declared

    options = common.data_options(path, None, classes, shape, declare, skip_broken).source_options()
    found = check_source(path, split, Declared(None, classes, options))
    typer.echo(json.dumps(found.as_dict()) if as_json else "\n".join(found.lines()))
    if len(found.broken) > options.skip_broken or found.damaged or not found.readable:
        raise typer.Exit(1)


# Accounts: what all runs on the same data may reveal together


@app.command("account")
def account_of_data(
    name: Annotated[str, typer.Argument(help="A name of your choice; certificates state it, so it becomes public.")],
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Open it: what all runs may spend.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Open it: what all runs may spend.")] = None,
    unit: Annotated[str, typer.Option("--unit", help="Whose privacy it counts: record, person or client.")] = "record",
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="Neighbouring data sets: add-remove, or replace-one.")
    ] = "add-remove",
    rule: Annotated[
        str,
        typer.Option(
            "--filter",
            help="How runs add up: renyi (any method), gaussian (tightest, without sampled batches), or sum (epsilons "
            "and deltas, also for federations).",
        ),
    ] = "renyi",
    order: Annotated[float | None, typer.Option("--order", help="Of the renyi filter; decided by the budget.")] = None,
    add: Annotated[
        list[Path] | None, typer.Option("--add", metavar="RUN", help="Charge a run that was begun without. Repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Open an account for data with --epsilon and --delta; without them, show what its runs have taken.

    A run with --account NAME reserves its whole plan here before anything is computed from the data, and is refused
    (exit code 3) if all runs together would exceed the account. Its terms never change.
    """
    from understudy.privacy.budget import stated_budget
    from understudy.runs.accounts import open_account, read_account

    budget = stated_budget(epsilon, delta)
    if budget is None:
        chosen = {"--unit": unit != "record", "--adjacency": adjacency != "add-remove", "--filter": rule != "renyi"}
        given = next((option for option, set_ in {**chosen, "--order": order is not None}.items() if set_), None)
        if given is not None:
            raise InputError(f"account: {given} is set when one is opened; pass --epsilon and --delta too")
        account = read_account(name)
    else:
        account = open_account(name, budget, unit, adjacency, rule, order)
    for run in add or ():
        _add(name, run)
    account = read_account(name) if add else account
    typer.echo(json.dumps(account.as_dict()) if as_json else "\n".join(_account_lines(account)))


def _add(name: str, run: Path) -> None:
    """Charge a run to an account, with what its method says of it."""
    from understudy.methods.config import build_config
    from understudy.methods.registry import ANNOTATED, get_method
    from understudy.privacy.certificate import read_certificate
    from understudy.release.folders import CERTIFICATE
    from understudy.runs.description import add_to_account, read_description
    from understudy.runs.folder import RunFolder

    folder = RunFolder(run)
    described = read_description(folder)
    if described.method == ANNOTATED:
        add_to_account(name, folder, read_certificate(folder.base / CERTIFICATE), publishes=False)
        return
    method = get_method(described.method)
    publishes = method.publishes_data_dependent_claims(build_config(method.config_type, described.config))
    add_to_account(name, folder, None, publishes)


def _account_lines(account: Account) -> list[str]:
    from understudy.runs.accounts import counted

    terms, (epsilon, delta) = account.terms, account.total
    rule = terms.filter if terms.order is None else f"{terms.filter} at order {terms.order:g}"
    lines = [
        f"{account.name}: epsilon {terms.epsilon:g} at delta {terms.delta:g} for all runs together (unit {terms.unit}, "
        f"{terms.adjacency}, filter {rule}), opened {account.opened}",
        f"taken by {counted(len(account.entries))}: epsilon {epsilon:g}" + (f" at delta {delta:g}" if delta else ""),
        f"left: one more run of about epsilon {account.room:g}" if account.room > 0 else "left: nothing",
    ]
    return lines + [f"  {entry.date}  {entry.method}  {entry.folder}" for entry in account.entries]


@app.command("accounts")
def list_accounts(as_json: Json = False) -> None:
    """List the accounts that are open on this machine, and what is left in them."""
    from understudy.runs.accounts import account_names, read_account

    rows, damaged = [], {}
    for name in account_names():
        try:
            rows.append(read_account(name))
        except InputError as error:
            damaged[name] = str(error)
    if as_json:
        typer.echo(json.dumps({"accounts": [account.as_dict() for account in rows], "damaged": damaged}))
    elif not rows and not damaged:
        typer.echo("no account is open here; `understudy data account NAME --epsilon 10 --delta 1e-5` opens one")
    else:
        for account in rows:
            typer.echo("\n".join(_account_lines(account)[:3]))
        for sentence in damaged.values():
            typer.echo(sentence, err=True)
    if damaged:
        raise typer.Exit(1)
