"""Runs a command that must not outlive whoever started it: Flower's processes know nothing of ours.

A SuperNode or SuperLink that is left over goes on: it holds the port or the place of its client, so that neither can be
started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from understudy.processes import parent_lives, worker_command

_LOOK_EVERY = 0.5  # seconds
_STOP_SECONDS = 15.0


def leashed(command: Sequence[str]) -> list[str]:
    """The command that runs ``command`` in the group of a leash; to be started in a session of its own."""
    return [*worker_command(__name__), *command]


def main(command: Sequence[str]) -> int:
    """Run a command; its exit code, or the end of its whole group as soon as the parent is gone."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # the group gets it: the leash ends when its command has
    running = subprocess.Popen(command)
    while (code := _ended(running, _LOOK_EVERY)) is None and parent_lives():
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
    sys.exit(main(sys.argv[2:]))
