"""The server of a federation on a real machine: a SuperLink with TLS and the run on it, to the end.

The SuperLink is Flower's and keeps its state in memory; the run is in the server's folder, and goes on from there when
the server is started again.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

from understudy.errors import CheckError, InputError
from understudy.federated.deployment import credentials, processes
from understudy.federated.deployment.federation import (
    NODES,
    OUTCOME,
    RUN,
    FederationConfig,
    client_name,
    read_federation,
    server_folder,
    write_app,
    write_connection,
)
from understudy.files import read_json, write_text
from understudy.runs.folder import RunFolder, locked


def run_server(folder: Path, say: processes.Say) -> Path:
    """Start a SuperLink, register the enrolled clients, train to the end, stop it; returns the folder of the run."""
    processes.require_flower()
    server = server_folder(folder).resolve()
    federation = read_federation(server)
    if RunFolder(server / RUN).released:
        raise InputError(f"federation: the run in {server / RUN} is finished; its release is there")
    with processes.terminated_like_interrupted(), processes.Processes(server / "log") as started:
        superlink = start_superlink(started, server, federation, say)
        say(f"wait for {federation.least_clients} clients, at most {federation.start_seconds:g} seconds")
        start_serverapp(server)
        with _progress_of(server / RUN, say):
            wait_for_outcome(server, superlink)
    return server / RUN


def start_superlink(
    started: processes.Processes, server: Path, federation: FederationConfig, say: processes.Say
) -> subprocess.Popen[bytes]:
    """A SuperLink that knows the enrolled clients."""
    if processes.listens(federation.nearby, federation.port):
        raise InputError(
            f"superlink: something listens on {federation.own_address} already; stop the server that runs there, or "
            "wait until it has ended"
        )
    write_app(server)
    write_connection(server, federation)
    superlink = started.start("superlink", superlink_command(server, federation), server / "flower")
    processes.wait_for_port(federation.nearby, federation.port, superlink, "superlink")
    clients = federation.domain.nominal_clients or 0
    register_clients(server, clients)
    say(f"SuperLink with TLS on {federation.address}, {clients} clients registered by their keys")
    return superlink


def superlink_command(server: Path, federation: FederationConfig) -> list[str]:
    """The SuperLink with TLS and authenticated nodes; it keeps its state in memory."""
    return [
        "flower-superlink",
        *("--host", federation.bound, "--port", str(federation.port)),
        *("--ssl-ca-certfile", str(server / credentials.AUTHORITY)),
        *("--ssl-certfile", str(server / credentials.CERTIFICATE)),
        *("--ssl-keyfile", str(server / credentials.SERVER_KEY)),
        "--enable-supernode-auth",
    ]


def register_clients(server: Path, clients: int) -> dict[int, int]:
    """Register every client's public key; the SuperLink says which node that is, and nobody else can be that node."""
    nodes = {}
    for client in range(clients):
        key = server / "clients" / f"{client_name(client)}.pub"
        nodes[client] = int(str(_flwr(server, "supernode", "register", str(key), "understudy")["node-id"]))
    write_text(server / NODES, json.dumps(nodes) + "\n")
    return nodes


def start_serverapp(server: Path) -> str:
    """Ask the SuperLink to start the ServerApp; the app that travels names our apps and holds no code."""
    (server / OUTCOME).unlink(missing_ok=True)
    override = f"understudy-server={json.dumps(str(server.resolve()))}"
    return str(_flwr(server, "run", str(server / "app"), "understudy", "--run-config", override)["run-id"])


def wait_for_outcome(server: Path, superlink: subprocess.Popen[bytes]) -> None:
    """Wait until the ServerApp has said how it ended; a failure is raised as its own sentence."""
    while not _has_ended(server):
        if superlink.poll() is not None:
            raise CheckError("superlink: it ended before the run did; see its log file and start the server again")
        time.sleep(0.5)
    raise_failure(server)


def _has_ended(server: Path) -> bool:
    """Whether the ServerApp has said how it ended; one that was killed says nothing and holds its folder no more."""
    if not (server / OUTCOME).exists():
        return False
    held = _is_held(server)  # looked at first: an outcome is written while the folder is held
    said = "done" in read_json(server / OUTCOME, "outcome")
    if not (said or held):
        raise CheckError(
            f"server: its process was ended from outside, perhaps for want of memory; see {server / 'log'} and start "
            "the server again"
        )
    return said


def _is_held(folder: Path) -> bool:
    try:
        with locked(folder):
            return False
    except InputError:
        return True


def raise_failure(server: Path) -> None:
    """Raise what the ServerApp left as its outcome, unless it is done."""
    outcome = read_json(server / OUTCOME, "outcome")
    if not outcome.get("done"):
        error = CheckError(str(outcome.get("error")))
        error.exit_code = int(outcome.get("exit_code", 1))
        raise error


def _flwr(server: Path, *arguments: str) -> dict[str, object]:
    """What a Flower command says in JSON."""
    command = ["flwr", *arguments, "--format", "json"]
    result = subprocess.run(
        command, capture_output=True, text=True, env=processes.environment(server / "flower"), timeout=120, check=False
    )
    try:
        said = json.loads(result.stdout[result.stdout.index("{") :])
    except ValueError:
        said = {}
    if result.returncode != 0 or not said.get("success"):
        reason = " ".join((result.stderr or result.stdout).split())[-300:]
        raise CheckError(f"flower: `flwr {arguments[0]}` failed: {said.get('error-message') or reason}")
    return dict(said)


class _progress_of:  # noqa: N801
    """Says how far a run in another process is, from its public progress file, every ten seconds."""

    def __init__(self, run: Path, say: processes.Say) -> None:
        self._path, self._say, self._over = RunFolder(run).progress, say, threading.Event()
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
