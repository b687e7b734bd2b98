"""Flower's own simulation: the same apps, with the clients of a folder run by Flower on one machine."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from flwr.app import Context

from understudy.errors import InputError
from understudy.federated.client_app import Answering, make_client_app
from understudy.federated.deployment.federation import NODES, RUN, client_name, read_settings, server_folder
from understudy.federated.deployment.processes import environment, raise_failure
from understudy.federated.deployment.server_app import make_server_app
from understudy.federated.task import open_client


def run_flower_simulation(folder: Path) -> Path:
    """Train the federation of a folder, whose clients' data are all here; returns the folder of the run."""
    if find_spec("ray") is None:
        raise InputError("simulation: Flower's engine for it is not installed; pip install 'flwr[simulation]==1.41.*'")
    server = server_folder(folder).resolve()
    settings = read_settings(server)
    (server / NODES).unlink(missing_ok=True)  # nobody is registered here: nodes say which client they are
    os.environ.update(
        {name: value for name, value in environment(server / "flower").items() if name.startswith("FLWR_")}
    )
    from flwr.simulation import run_simulation

    run_simulation(
        server_app=make_server_app(server),
        client_app=make_client_app(partial(client_of_partition, server.parent / "clients")),
        num_supernodes=settings.domain.nominal_clients or 1,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    raise_failure(server)
    return server / RUN


def client_of_partition(clients: Path, context: Context) -> Answering:
    """The client of a simulated node."""
    return open_client(clients / client_name(int(context.node_config["partition-id"]))).answer
