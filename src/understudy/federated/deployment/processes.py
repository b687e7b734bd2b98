"""Flower's own processes: SuperLink and SuperNodes with TLS and authentication, and nothing that phones home.

Every process that is started here is stopped here, by its own id and with all it started itself; it also ends when the
process that started it does, however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from understudy.errors import CheckError, InputError
from understudy.federated.client_app import FOLDER
from understudy.federated.deployment import credentials
from understudy.federated.deployment.federation import NODES, OUTCOME, FederationConfig, client_name
from understudy.federated.deployment.leash import leashed
from understudy.files import make_folder, read_json, write_text
from understudy.runs.run import locked

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_QUIET = {  # no telemetry, no look for updates, no packages installed because a server asked for it
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def environment(home: Path) -> dict[str, str]:
    """The environment for Flower's commands: their files below ``home``, this interpreter's commands first."""
    commands = str(Path(sys.executable).parent)
    path = os.pathsep.join([commands, os.environ.get("PATH", os.defpath)])
    return {**os.environ, **_QUIET, "FLWR_HOME": str(home), "PATH": path}


def require_flower() -> None:
    """Flower's commands must be installed beside this interpreter."""
    if shutil.which("flower-superlink", path=environment(Path("."))["PATH"]) is None:
        raise InputError("flower: it is not installed; pip install 'understudy[federated]'")


@dataclass
class Processes:
    """Processes that were started together; leaving the ``with`` block stops them all, the last one first."""

    log_folder: Path
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Processes:
        make_folder(self.log_folder, "log")
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            _signal(process, signal.SIGTERM)
        for process in reversed(self._running):
            stop(process)

    def start(self, name: str, command: Sequence[str], home: Path) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own; what it says goes into its log file."""
        with (self.log_folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                leashed(command),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment(home),
                start_new_session=True,
            )
        self._running.append(process)
        return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process and all that it started to end; insist after a while."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, kind)
        ends = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < ends:
            if process.poll() is not None and not _group_lives(process.pid):
                return
            time.sleep(0.1)


def _signal(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    """Send a signal to the group that a process leads."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, kind)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """A SIGTERM inside ends the block as Ctrl-C does, so that what it started is stopped too."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def superlink_command(server: Path, settings: FederationConfig) -> list[str]:
    """The SuperLink with TLS and authenticated nodes; it keeps its state in memory."""
    return [
        "flower-superlink",
        *("--host", settings.bound, "--port", str(settings.port)),
        *("--ssl-ca-certfile", str(server / credentials.AUTHORITY)),
        *("--ssl-certfile", str(server / credentials.CERTIFICATE)),
        *("--ssl-keyfile", str(server / credentials.SERVER_KEY)),
        "--enable-supernode-auth",
    ]


def supernode_command(home: Path, address: str, port: int, *, own_code: bool = True) -> list[str]:
    """A SuperNode for a client's folder. ``own_code``: it runs nothing itself, and waits for an executor to ask it."""
    return [
        "flower-supernode",
        *("--superlink", address, "--root-certificates", str(home / credentials.AUTHORITY)),
        *("--auth-supernode-private-key", str(home / credentials.CLIENT_KEY)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process" if own_code else "subprocess"),
        *("--node-config", f"{FOLDER}={json.dumps(str(home))}"),
    ]


def wait_for_port(host: str, port: int, process: subprocess.Popen[bytes], what: str) -> None:
    """Wait until something listens; a process that ended instead, or takes too long, is one sentence."""
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise CheckError(f"{what}: it ended with code {process.returncode} before it listened; see its log file")
        if listens(host, port):
            return
        time.sleep(0.1)
    raise CheckError(f"{what}: it did not listen on {host}:{port} within {_START_SECONDS:g} seconds; see its log file")


def listens(host: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def register_clients(server: Path, clients: int) -> dict[int, int]:
    """Register every client's public key; the SuperLink says which node that is, and nobody else can be that node."""
    nodes = {}
    for client in range(clients):
        key = server / "clients" / f"{client_name(client)}.pub"
        nodes[client] = int(str(_flwr(server, "supernode", "register", str(key), "understudy")["node-id"]))
    write_text(server / NODES, json.dumps(nodes) + "\n")
    return nodes


def start_run(server: Path) -> str:
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


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _flwr(server: Path, *arguments: str) -> dict[str, object]:
    """What a Flower command says in JSON."""
    command = ["flwr", *arguments, "--format", "json"]
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment(server / "flower"), timeout=120, check=False
    )
    try:
        said = json.loads(result.stdout[result.stdout.index("{") :])
    except ValueError:
        said = {}
    if result.returncode != 0 or not said.get("success"):
        reason = " ".join((result.stderr or result.stdout).split())[-300:]
        raise CheckError(f"flower: `flwr {arguments[0]}` failed: {said.get('error-message') or reason}")
    return dict(said)
