"""What the commands do: run a server until its run has ended, run a client until it is interrupted."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from understudy.errors import CheckError, InputError
from understudy.federated.deployment import processes
from understudy.federated.deployment.federation import (
    RUN,
    FederationConfig,
    read_settings,
    server_folder,
    write_connection,
)
from understudy.federated.task import open_client
from understudy.runs.run import locked

Say = Callable[[str], None]
_AGAIN_SECONDS = 5.0
_REFUSED_SECONDS = 600.0


def run_server(folder: Path, say: Say) -> Path:
    """Start a SuperLink, register the enrolled clients, train to the end, stop it; returns the folder of the run."""
    processes.require_flower()
    server = server_folder(folder).resolve()
    settings = read_settings(server)
    if (server / RUN / "release").is_dir():
        raise InputError(f"federation: the run in {server / RUN} is finished; its release is there")
    with processes.terminated_like_interrupted(), processes.Processes(server / "log") as started:
        superlink = start_superlink(started, server, settings, say)
        say(f"wait for {settings.least_clients} clients, at most {settings.start_seconds:g} seconds")
        processes.start_run(server)
        with _progress_of(server / RUN, say):
            processes.wait_for_outcome(server, superlink)
    return server / RUN


def start_superlink(
    started: processes.Processes, server: Path, settings: FederationConfig, say: Say
) -> subprocess.Popen[bytes]:
    """A SuperLink that knows the enrolled clients."""
    if processes.listens(settings.nearby, settings.port):
        raise InputError(
            f"superlink: something listens on {settings.own_address} already; stop the server that runs there, or wait "
            "until it has ended"
        )
    write_connection(server, settings)
    superlink = started.start("superlink", processes.superlink_command(server, settings), server / "flower")
    processes.wait_for_port(settings.nearby, settings.port, superlink, "superlink")
    clients = settings.domain.nominal_clients or 0
    processes.register_clients(server, clients)
    say(f"SuperLink with TLS on {settings.address}, {clients} clients registered by their keys")
    return superlink


def check_address(superlink: str | None) -> str:
    """The address of a server, if it is one: a SuperNode would try any other for ever."""
    if superlink is None:
        raise InputError("superlink: where the server is, is not known; pass --superlink HOST:PORT once")
    host, _, port = superlink.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"superlink: {superlink!r} is no address of a server; pass --superlink HOST:PORT")
    return superlink


def run_client(home: Path, superlink: str, say: Say, *, own_code: bool = True) -> None:
    """Keep a SuperNode connected and answer its messages until interrupted."""
    processes.require_flower()
    with locked(home):  # nobody else may be at its ledger
        client = open_client(home, say)  # whatever is wrong is said now, not to the server later
    say(f"client {client.membership.client} of {client.contract.limits.clients} in a {client.contract.kind} federation")
    say(f"server {superlink}; {'installed code only' if own_code else 'STOCK: runs shipped code'}")
    try:
        with processes.terminated_like_interrupted():
            _stay_connected(home, superlink, say, own_code=own_code)
    except KeyboardInterrupt:
        say("stopped")


def _stay_connected(home: Path, superlink: str, say: Say, *, own_code: bool) -> None:
    """One SuperNode after the other: none outlives its SuperLink, and a server that starts again has a new one.

    A SuperNode that is refused is tried again for a while, since the server may not have come to its key yet.
    """
    refused_since: float | None = None
    while True:
        with processes.Processes(home / "log") as started:
            node, address = start_supernode(started, home, superlink, own_code=own_code)
            if own_code:
                from understudy.federated.deployment.own_client import answer_tasks

                answer_tasks(address, home, lambda: node.poll() is None)  # noqa: B023
            code = node.wait()
        refused_since = (refused_since or time.monotonic()) if code else None
        if refused_since is not None and time.monotonic() - refused_since > _REFUSED_SECONDS:
            raise CheckError(
                f"supernode: {superlink} refuses this client, or shows another certificate; ask the operator whether "
                f"this folder is of that server, and see {home / 'log'}"
            )
        say("not accepted yet; it is tried again" if code else "the server is gone; the client waits for it")
        time.sleep(_AGAIN_SECONDS)


def start_supernode(
    started: processes.Processes, home: Path, superlink: str, *, own_code: bool = True
) -> tuple[subprocess.Popen[bytes], str]:
    """A SuperNode for a client's folder and the address at which it hands out its tasks."""
    port = processes.free_port()
    command = processes.supernode_command(home, superlink, port, own_code=own_code)
    node = started.start("supernode", command, home / "flower")
    processes.wait_for_port("127.0.0.1", port, node, "supernode")
    return node, f"127.0.0.1:{port}"


class _progress_of:  # noqa: N801
    """Says how far a run in another process is, from its public progress file, every ten seconds."""

    def __init__(self, run: Path, say: Say) -> None:
        self._path, self._say, self._over = run / "progress.jsonl", say, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5)

    def _watch(self) -> None:
        last, told = "", 0.0
        while not self._over.wait(1.0):
            lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
            if lines and lines[-1] != last and time.monotonic() - told > 10:
                last, told = lines[-1], time.monotonic()
                values = json.loads(last)
                self._say(f"round {values.get('rounds')}, epsilon {values.get('epsilon_spent')} spent")
