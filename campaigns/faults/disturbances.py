"""What goes wrong inside a process that ``launcher.py`` started, and what is written down about it.

``die_at``: it kills itself with SIGKILL right before (2n - 1) or right after (2n) it makes something durable for the
n-th time. ``full_at``: the disk is full from the n-th such time on. ``file_limit``: no file grows beyond so many bytes.
``memory_at``: the graphics card is out of memory at the n-th step, gradient or noisy value. ``clock_back_at``: from the
n-th look at it, every clock is ten years behind. ``stop_after``: it gets SIGTERM when it has reported so many steps.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import torch

from understudy.privacy import mechanisms
from understudy.privacy import mechanisms as vote_mechanisms
from understudy.privacy.randomness import streams as randomness
from understudy.release import release
from understudy.runs import run

_DURABLE = ("fsync", "replace", "rename")
_TEN_YEARS = 3652 * 24 * 3600.0


def record_use(folder: Path) -> None:
    """Write down what leaves a mechanism and what noise is drawn, the moment it happens.

    ``used`` has a line for each value that was handed out: the executions it cost and its hash. ``noise`` has the hash
    of each block of noise.
    """

    def wrap(kind: type, name: str, file: str, line: Callable[[torch.Tensor], str]) -> None:
        original = getattr(kind, name)

        def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
            result = original(self, *arguments, **options)
            value = getattr(result, "value_dp", result)
            digest = hashlib.sha256(value.numpy().tobytes()).hexdigest()
            with (folder / file).open("ab", buffering=0) as stream:
                stream.write(f"{line(value)}{digest}\n".encode())
            return result

        setattr(kind, name, wrapped)

    wrap(mechanisms.GaussianSum, "release", "used", lambda value: "1 ")
    wrap(mechanisms.GaussianSum, "release_once", "used", lambda value: "1 ")
    wrap(mechanisms.GaussianAnswers, "answer", "used", lambda value: f"{len(value)} ")
    wrap(mechanisms.GaussianBlocks, "answer", "used", lambda value: "1 ")
    wrap(vote_mechanisms.VoteMechanism, "release", "used", lambda value: f"{len(value)} ")
    wrap(randomness.NoiseStream, "draw", "noise", lambda value: "")


def disturb(request: dict[str, Any]) -> None:
    """Arrange for what the request asks."""
    _at_durable_calls(request.get("die_at"), request.get("full_at"))
    if request.get("memory_at") is not None:
        _out_of_memory(request["memory_at"])
    if request.get("clock_back_at") is not None:
        _turn_clocks_back(request["clock_back_at"])
    if request.get("stop_after") is not None:
        _stop_after(request["stop_after"])
    if request.get("file_limit") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], request["file_limit"]))


def _at_durable_calls(die_at: int | None, full_at: int | None) -> None:
    """Count the calls that make something durable or visible; die right before or after one, or let all fail from one.

    What is written between two such calls may or may not be on disk after a crash; dying after the first and before the
    second tries both.
    """
    done = 0

    def wrap(name: str) -> None:
        original = getattr(os, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if die_at == 2 * done - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if full_at is not None and done >= full_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            result = original(*arguments, **options)
            if die_at == 2 * done:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, wrapped)

    for name in _DURABLE:
        wrap(name)


def _out_of_memory(at: int) -> None:
    """The noise of a value that was paid for, a gradient, or a step of an optimiser finds no memory."""
    done = 0

    def wrap(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == at:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            return original(*arguments, **options)

        setattr(kind, name, wrapped)

    wrap(mechanisms.GaussianMechanism, "_noisy")
    wrap(torch.Tensor, "backward")
    wrap(torch.optim.Adam, "step")


def _stop_after(reports: int) -> None:
    original, done = run.Run.report, 0

    def wrapped(self: Any, step: int, **values: float) -> None:
        nonlocal done
        original(self, step, **values)
        done += 1
        if done == reports:
            os.kill(os.getpid(), signal.SIGTERM)

    run.Run.report = wrapped  # type: ignore[method-assign]


def _turn_clocks_back(at: int) -> None:
    looks = 0

    def lag() -> float:
        nonlocal looks
        looks += 1
        return _TEN_YEARS if looks >= at else 0.0

    def wrap(original: Callable[[], float]) -> Callable[[], float]:
        return lambda: original() - lag()

    class Clock(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> datetime:
            return datetime.now(zone) - timedelta(seconds=lag())

    time.time, time.monotonic = wrap(time.time), wrap(time.monotonic)
    release.datetime = Clock  # type: ignore[misc]
