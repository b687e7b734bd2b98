"""Processes of the package's own: how they are started, and that none of them outlives the one that started it.

A worker is a module of ours and watches its parent itself. A foreign command knows nothing of us, so it is run on a
leash: this module, run as a program, between the parent and the command.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LOOK_EVERY = 0.5  # seconds
_STOP_SECONDS = 15.0


def worker_command(module: str) -> list[str]:
    """What runs a module of this package with this interpreter; the module calls ``end_with_parent``."""
    return [sys.executable, "-P", "-m", module, str(os.getpid())]


def worker_environment(threads: int) -> dict[str, str]:
    """This environment, this package, and so many threads."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait leave the core to others
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def end_with_parent() -> None:
    """From now on this process, started by ``worker_command``, dies when its parent does, however that ends.

    Privacy: a worker holds private records; nobody would know of one that is left over.
    """
    threading.Thread(target=_watch, daemon=True).start()


def leashed(command: Sequence[str]) -> list[str]:
    """The command that runs a foreign ``command`` on a leash; to be started in a session of its own."""
    return [*worker_command(__name__), *command]


def _watch() -> None:
    while _parent_lives():
        time.sleep(_LOOK_EVERY)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent_lives() -> bool:
    """Whether the one that started this process by ``worker_command`` is still there."""
    return os.getppid() == int(sys.argv[1])


def _run_leashed(command: Sequence[str]) -> int:
    """Run a command; its exit code, or the end of its whole group as soon as the parent is gone."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # the group gets it: the leash ends when its command has
    running = subprocess.Popen(command)
    while (code := _ended(running, _LOOK_EVERY)) is None and _parent_lives():
        pass
    if code is None:
        os.killpg(0, signal.SIGTERM)
        _ended(running, _STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)
    return 128 - code if code is not None and code < 0 else code or 0


def _ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a process that ends within so many seconds."""
    ends = time.monotonic() + seconds
    while (code := process.poll()) is None and time.monotonic() < ends:
        time.sleep(0.05)
    return code


if __name__ == "__main__":
    sys.exit(_run_leashed(sys.argv[2:]))
