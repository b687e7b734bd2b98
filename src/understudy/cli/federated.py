"""``understudy federated``: simulate a federation, set one up, run its server or a client, and see what was spent."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from understudy.cli import options as common
from understudy.errors import InputError
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    from understudy.release.release import Release


app = typer.Typer(help="Train with data that stay with their clients.", no_args_is_help=True)

Method = Annotated[str, typer.Option("--method", help="gs-wgan-federated or fedavg-gan.")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Budget of the public guarantee: epsilon.")]
Delta = Annotated[float, typer.Option("--delta", help="Budget of the public guarantee: delta.")]
Home = Annotated[Path, typer.Argument(metavar="CLIENT", help="Folder of a client, as `federated init` wrote it.")]


@app.command("simulate")
def simulate(
    data: common.Data,
    epsilon: Epsilon,
    delta: Delta,
    out: common.Out,
    clients: Annotated[
        int | None, typer.Option("--clients", help="Enrolled clients; records of data without clients are dealt out.")
    ] = None,
    method: Method = "gs-wgan-federated",
    records: common.Records = None,
    classes: common.Classes = None,
    shape: common.Shape = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    preset: common.Preset = None,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    device: common.Device = None,
    seed: common.Seed = None,
    resume: common.Resume = False,
    moved: common.Moved = False,
    as_json: common.Json = False,
) -> None:
    """Train with all clients in this process: the same ledger and certificate as with real ones."""
    from understudy.api import TrainOptions, train
    from understudy.api import resume as continue_run
    from understudy.data.dataset import with_clients
    from understudy.federated.contract import get_federated_method
    from understudy.privacy.budget import Budget
    from understudy.progress import show_progress, stop_on_signals

    common.refuse_moved_alone(moved, resume)
    get_federated_method(method)
    source = common.data_options(data, records, classes, shape, declare, skip_broken)
    values = common.read_settings(config, settings, device)
    loaded = with_clients(source.load(), clients)
    with stop_on_signals() as stop, show_progress() as listener:
        options = TrainOptions(values, seed, listener, stop, source=source.as_dict(), preset=preset)
        options = replace(options, warn=common.warn)
        if resume:
            release = continue_run(loaded, out, replace(options, config=None, preset=None, seed=None, moved=moved))
        else:
            release = train(method, loaded, Budget(epsilon, delta), out, options)
    _tell(release, out, as_json)


@app.command("init")
def init(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new federation.")],
    clients: Annotated[int, typer.Option("--clients", help="Clients to enrol; public.")],
    epsilon: Epsilon,
    delta: Delta,
    records: Annotated[int, typer.Option("--records", help="Declared records of all clients together; public.")],
    shape: Annotated[str, typer.Option("--shape", help="Images: channels x height x width, e.g. 1x28x28.")],
    classes: Annotated[int, typer.Option("--classes", help="Declared classes; 0 for unlabelled images.")] = 0,
    method: Method = "gs-wgan-federated",
    host: Annotated[str, typer.Option("--host", help="Name or address of the server.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port of the server.")] = 9092,
    listen: Annotated[
        str | None, typer.Option("--listen", help="Address to bind to, if not the host: 0.0.0.0 for all.")
    ] = None,
    client_epsilon: Annotated[
        float | None, typer.Option("--client-epsilon", help="What a client may spend against the server.")
    ] = None,
    least: Annotated[int | None, typer.Option("--least-clients", help="Clients needed to start; all of them.")] = None,
    seconds: Annotated[float, typer.Option("--round-seconds", help="Deadline of a round.")] = 120.0,
    config: common.ConfigFile = None,
    settings: common.SetValues = None,
    as_json: common.Json = False,
) -> None:
    """Write a federation: contract, certificates, keys, Flower's files, and a folder for each client."""
    from understudy.data.domain import declare_domain
    from understudy.data.sources import parse_shape
    from understudy.privacy.budget import Budget

    channels, height, width = parse_shape(shape)
    domain = declare_domain(
        shape=(channels or 1, height, width), classes=classes or None, nominal_records=records, nominal_clients=clients
    )
    _require_flower()
    from understudy.federated.deployment.federation import InitOptions, initialise, promises
    from understudy.privacy.meaning import by_viewer

    options = InitOptions(
        method=method,
        domain=domain,
        budget=Budget(epsilon, delta),
        config=common.read_settings(config, settings),
        host=host,
        port=port,
        listen=listen,
        client_budget=None if client_epsilon is None else Budget(client_epsilon, delta),
        least_clients=least,
        round_seconds=seconds,
    )
    decided, contract = initialise(out, options)
    facts = {"folder": str(out), "address": decided.address, **contract.limits.model_dump()}
    facts["noise_multiplier"] = contract.noise_multiplier
    viewers = by_viewer(promises(decided))
    if as_json:
        common.print_json({**facts, "viewers": viewers})
        return
    for line in viewers:
        typer.echo(line)
    typer.echo(f"{out}: {clients} clients, {contract.limits.rounds} rounds of {contract.limits.queries} queries, noise")
    typer.echo(f"multiplier {contract.noise_multiplier:g}. Give each client its folder below {out / 'clients'} (its")
    typer.echo(f"key is in it) and keep {out / 'server'}. Then: understudy federated server {out}")


@app.command("server")
def server(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation.")],
    simulation: Annotated[
        bool, typer.Option("--simulation", help="Let Flower's simulation run the clients below DIR/clients here.")
    ] = False,
    as_json: common.Json = False,
) -> None:
    """Start the SuperLink and train; run it again to go on where it stopped."""
    _require_flower()
    from understudy.release.release import load

    if simulation:
        from understudy.federated.deployment.demonstration import run_flower_simulation

        run = run_flower_simulation(folder)
    else:
        from understudy.federated.deployment.superlink import run_server

        run = run_server(folder, lambda text: typer.echo(text, err=True))
    _tell(load(run), run, as_json)


@app.command("client")
def client(
    home: Home,
    data: Annotated[str | None, typer.Option("--data", help="Where the images are; kept for the next time.")] = None,
    declare: common.Declare = None,
    skip_broken: common.SkipBroken = None,
    superlink: Annotated[str | None, typer.Option("--superlink", help="host:port of the server.")] = None,
    stock: Annotated[
        bool, typer.Option("--stock", help="Run a stock SuperNode: it executes whatever code the server ships.")
    ] = False,
) -> None:
    """Take part: answer the server's questions with installed code only, until interrupted."""
    _require_flower()
    from understudy.data.domain import source_options
    from understudy.data.sources import parse_declarations
    from understudy.federated.deployment.supernode import check_address, run_client
    from understudy.federated.task import lasting_source, read_terms, write_terms

    terms = read_terms(home)
    update = {"source": None if data is None else lasting_source(data), "superlink": superlink}
    terms = terms.model_copy(update={name: value for name, value in update.items() if value is not None})
    declared = common.declarations(declare, skip_broken)
    if declared:
        terms = terms.model_copy(update={"options": source_options(**parse_declarations(declared))})
    address = check_address(terms.superlink)
    write_terms(home, terms)
    run_client(home.resolve(), address, lambda text: typer.echo(text, err=True), own_code=not stock)


@app.command("spending")
def spending(home: Home, as_json: common.Json = False) -> None:
    """Say what a client has spent against the server, from its own ledger."""
    from understudy.federated.task import read_spending

    spent = read_spending(home)
    if as_json:
        common.print_json(spent)
        return
    typer.echo(
        f"client {spent['client']}: {spent['answers']} of {spent['most_answers']} answers given, epsilon "
        f"{spent['epsilon']:g} of {spent['most_epsilon']:g} spent at delta {spent['delta']:g} (against the server, all "
        "images of the client replaced)"
    )


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for everything.")] = Path("federated-demo"),
    as_json: common.Json = False,
) -> None:
    """Start a server and three clients with TLS and authentication on this machine, train, verify, stop them all."""
    _require_flower()
    from understudy.cli.verify import conclude
    from understudy.federated.deployment.demonstration import run_demo
    from understudy.release.verify import verify

    run = run_demo(out, lambda text: typer.echo(text, err=True))
    result = verify(run)
    if as_json:
        common.print_json({"run": str(run), **result.as_dict()})
    conclude(run, result, quiet=as_json)


def _require_flower() -> None:
    """Flower is there, and does not phone home: it reads that when it is imported, which must come later."""
    from importlib.util import find_spec

    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    if find_spec("flwr") is None:
        raise InputError("flower: it is not installed; pip install 'understudy[federated]'")


def _tell(release: Release, out: Path, as_json: bool) -> None:
    """What a release promises against each viewer."""
    from understudy.privacy.meaning import by_viewer

    claims = release.certificate.guarantees
    if as_json:
        guarantees = [guarantee.model_dump(exclude_none=True) for guarantee in claims]
        headline = release.certificate.headline
        common.print_json({
            "run": str(out), "release": str(RunFolder(out).release), "method": release.method,
            "epsilon": headline.epsilon, "delta": headline.delta, "guarantees": guarantees,
        })  # fmt: skip
        return
    for line in by_viewer(claims):
        typer.echo(line)
    typer.echo(f"the release is in {RunFolder(out).release}")
