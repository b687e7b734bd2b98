"""Flower's own processes: started with an environment in which nothing phones home, and stopped.

Every process that is started here is stopped here, by its own id and with all it started itself; it also ends when the
process that started it does, however that ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from understudy.errors import CheckError, InputError
from understudy.files import make_folder, open_private
from understudy.processes import leashed

Say = Callable[[str], None]  # how to speak to whoever started a command
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
        with open_private(self.log_folder / f"{name}.log", "ab") as log:
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


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
