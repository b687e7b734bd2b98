"""A whole federation on one machine.

The demonstration runs a server and three clients as real processes, with TLS and authentication on loopback, on the
bundled digits. Flower's own simulation runs the same apps with the clients of a folder.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from understudy.data.catalog import load_named
from understudy.data.dataset import with_clients
from understudy.data.domain import Declared
from understudy.data.npz import write_arrays
from understudy.errors import InputError
from understudy.federated.client_app import Answering, make_client_app
from understudy.federated.deployment import processes, supernode
from understudy.federated.deployment.federation import (
    NODES,
    RUN,
    InitOptions,
    client_name,
    initialise,
    read_federation,
    server_folder,
)
from understudy.federated.deployment.server_app import make_server_app
from understudy.federated.deployment.superlink import raise_failure, start_serverapp, start_superlink, wait_for_outcome
from understudy.federated.task import open_client, read_spending, read_terms, write_terms
from understudy.privacy.budget import Budget

_CLIENTS = 3
_BUDGET = Budget(epsilon=10, delta=1e-5)
_CONFIG: dict[str, dict[str, Any]] = {  # a few rounds: this shows how a federation works, not how well it draws
    "privacy": {"queries": 96, "queries_per_round": 24},
    "method": {
        "steps_per_round": 4,
        "pool": 32,
        "critics": {"width": 16, "batch": 16, "rounds": 2, "warm_iterations": 10},
        "embedding": {"steps": 200, "batch": 100},
        "generator": {"width": 8},
    },
    "runtime": {"device": "cpu"},
}


def run_demo(out: Path, say: processes.Say) -> Path:
    """Set up, start everything, train, stop everything; returns the folder of the run."""
    processes.require_flower()
    if out.exists() and any(out.iterdir()):
        raise InputError(f"demo: {out} is not empty; remove it or choose another folder with --out")
    out = out.resolve()
    say("1/4  deal the bundled digits to three clients; write contract, certificates and keys")
    server = _prepare(out)
    federation = read_federation(server)
    with processes.terminated_like_interrupted(), processes.Processes(out / "log") as started:
        say("2/4  start a SuperLink with TLS and three authenticated clients that run installed code only")
        superlink = start_superlink(started, server, federation, lambda text: say(f"     {text}"))
        for client in range(_CLIENTS):
            home = out / "clients" / client_name(client)
            command = [sys.executable, "-m", supernode.__name__, str(home)]
            started.start(client_name(client), command, home / "flower")
        say("3/4  train")
        start_serverapp(server)
        wait_for_outcome(server, superlink)
        for client in range(_CLIENTS):
            spent = read_spending(out / "clients" / client_name(client))
            say(
                f"     client {client} gave {spent['answers']} answers: epsilon {spent['epsilon']:g} against the server"
            )
    say("4/4  everything is stopped; verify the release")
    return server / RUN


def _prepare(out: Path) -> Path:
    digits = with_clients(load_named("digits", "train", Declared()), _CLIENTS)
    options = InitOptions(
        "gs-wgan-federated", digits.domain, _BUDGET, _CONFIG, port=processes.free_port(), round_seconds=60
    )
    initialise(out, options)
    assert digits.client_ids is not None
    assert digits.labels is not None
    for client in range(_CLIENTS):
        home, mine = out / "clients" / client_name(client), np.flatnonzero(digits.client_ids == client)
        write_arrays(home / "digits.npz", {"x": digits.images[mine, 0], "y": digits.labels[mine]})
        write_terms(home, read_terms(home).model_copy(update={"source": str(home / "digits.npz")}))
    return out / "server"


def run_flower_simulation(folder: Path) -> Path:
    """Train the federation of a folder, whose clients' data are all here; returns the folder of the run."""
    if find_spec("ray") is None:
        raise InputError("simulation: Flower's engine for it is not installed; pip install 'flwr[simulation]==1.41.*'")
    server = server_folder(folder).resolve()
    federation = read_federation(server)
    (server / NODES).unlink(missing_ok=True)  # nobody is registered here: nodes say which client they are
    os.environ.update(
        {name: value for name, value in processes.environment(server / "flower").items() if name.startswith("FLWR_")}
    )
    from flwr.simulation import run_simulation

    run_simulation(
        server_app=make_server_app(server),
        client_app=make_client_app(partial(client_of_partition, server.parent / "clients")),
        num_supernodes=federation.domain.nominal_clients or 1,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    raise_failure(server)
    return server / RUN


def client_of_partition(clients: Path, context: Context) -> Answering:
    """The client of a simulated node."""
    return open_client(clients / client_name(int(context.node_config["partition-id"]))).answer
