"""Processes of the package's own: how they are started, and that none of them outlives the one that started it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LOOK_EVERY = 0.5  # seconds


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


def parent_lives() -> bool:
    """Whether the one that started this process by ``worker_command`` is still there."""
    return os.getppid() == int(sys.argv[1])


def _watch() -> None:
    while parent_lives():
        time.sleep(_LOOK_EVERY)
    os.kill(os.getpid(), signal.SIGKILL)
