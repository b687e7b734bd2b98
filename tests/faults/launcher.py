"""Runs ``understudy`` commands in processes of their own, forked from one that has imported everything already.

A request is one JSON object a line: ``{"arguments": [...], "folder": ..., "die_at": n, "full_at": n, "file_limit":
bytes}`` starts a command and is answered by ``{"pid": ...}``; ``{"wait": pid}`` is answered by ``{"code": ...}``,
negative for a signal.

The folder gets ``stdout``, ``stderr`` and ``used``: a line for every sanitized value that a mechanism handed out, with
the number of executions and the hash of the value. With ``die_at`` the process kills itself with SIGKILL right before
(2n - 1) or right after (2n) it makes something durable for the n-th time; with ``full_at`` the disk is full from the
n-th time on.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it on first use

from understudy.cli import main
from understudy.methods import dp_merf, gs_wgan  # noqa: F401
from understudy.privacy import mechanisms, vote_mechanisms
from understudy.privacy.accounting import fourier, pld  # noqa: F401
from understudy.release import grid, model_card  # noqa: F401
from understudy.training import critic_panel, generator_player, mean_embedding, teaching  # noqa: F401


def _record_use(path: Path) -> None:
    """Write down what leaves a mechanism, the moment it does; what was computed but not handed out does not count."""

    def wrap(kind: type, name: str, executions: Any) -> None:
        original = getattr(kind, name)

        def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
            result = original(self, *arguments, **options)
            value = getattr(result, "value_dp", result)
            digest = hashlib.sha256(value.numpy().tobytes()).hexdigest()
            with path.open("ab", buffering=0) as file:
                file.write(f"{executions(value)} {digest}\n".encode())
            return result

        setattr(kind, name, wrapped)

    wrap(mechanisms.GaussianSum, "release", lambda value: 1)
    wrap(mechanisms.GaussianSum, "release_once", lambda value: 1)
    wrap(mechanisms.GaussianAnswers, "answer", len)
    wrap(mechanisms.GaussianBlocks, "answer", lambda value: 1)
    wrap(vote_mechanisms.VoteMechanism, "release", len)


def _disturb(die_at: int | None, full_at: int | None) -> None:
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

    for name in ("fsync", "replace", "rename"):
        wrap(name)


def _run(request: dict[str, Any]) -> int:
    folder = Path(request["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    _record_use(folder / "used")
    _disturb(request.get("die_at"), request.get("full_at"))
    if request.get("file_limit") is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], request["file_limit"]))
    sys.argv = ["understudy", *request["arguments"]]
    code = main.run(request["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _answer(request: dict[str, Any]) -> dict[str, int]:
    if "wait" in request:
        _, status = os.waitpid(request["wait"], 0)
        return {"code": os.waitstatus_to_exitcode(status)}
    pid = os.fork()
    if pid == 0:
        try:
            code = _run(request)
        except BaseException as error:
            import traceback

            traceback.print_exception(error)
            code = 99
        os._exit(code)
    return {"pid": pid}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)
