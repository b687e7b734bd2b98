"""The demonstration: a server and three clients with TLS and authentication on loopback, on the bundled digits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from understudy.data.dataset import with_clients
from understudy.data.named import load_named
from understudy.data.npz import write_arrays
from understudy.data.options import Declared
from understudy.errors import InputError
from understudy.federated.deployment import processes
from understudy.federated.deployment.federation import RUN, InitOptions, client_name, initialise, read_settings
from understudy.federated.deployment.operating import Say, start_superlink
from understudy.federated.task import read_spending, read_terms, write_terms
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


def run_demo(out: Path, say: Say) -> Path:
    """Set up, start everything, train, stop everything; returns the folder of the run."""
    processes.require_flower()
    if out.exists() and any(out.iterdir()):
        raise InputError(f"demo: {out} is not empty; remove it or choose another folder with --out")
    out = out.resolve()
    say("1/4  deal the bundled digits to three clients; write contract, certificates and keys")
    server = _prepare(out)
    settings = read_settings(server)
    with processes.terminated_like_interrupted(), processes.Processes(out / "log") as started:
        say("2/4  start a SuperLink with TLS and three authenticated clients that run installed code only")
        superlink = start_superlink(started, server, settings, lambda text: say(f"     {text}"))
        for client in range(_CLIENTS):
            home = out / "clients" / client_name(client)
            command = [sys.executable, "-m", __package__ or "", str(home)]
            started.start(client_name(client), command, home / "flower")
        say("3/4  train")
        processes.start_run(server)
        processes.wait_for_outcome(server, superlink)
        for client in range(_CLIENTS):
            spent = read_spending(out / "clients" / client_name(client))
            say(
                f"     client {client} gave {spent['answers']} answers: epsilon {spent['epsilon']:g} against the server"
            )
    say("4/4  everything is stopped; verify the release")
    return server / RUN


def _prepare(out: Path) -> Path:
    digits = with_clients(load_named("digits", "train", Declared()), _CLIENTS)
    request = InitOptions(
        "gs-wgan-federated", digits.domain, _BUDGET, _CONFIG, port=processes.free_port(), round_seconds=60
    )
    initialise(out, request)
    assert digits.client_ids is not None
    assert digits.labels is not None
    for client in range(_CLIENTS):
        home, mine = out / "clients" / client_name(client), np.flatnonzero(digits.client_ids == client)
        write_arrays(home / "digits.npz", {"x": digits.images[mine, 0], "y": digits.labels[mine]})
        write_terms(home, read_terms(home).model_copy(update={"source": str(home / "digits.npz")}))
    return out / "server"
