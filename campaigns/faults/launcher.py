"""Runs ``understudy`` commands in processes of their own, forked from one that has imported everything already.

A request is one JSON object a line: ``{"arguments": [...], "folder": ..., "state": ..., ...}`` starts a command and is
answered by ``{"pid": ...}``; ``{"wait": pid}`` is answered by ``{"code": ...}``, negative for a signal. What else a
request may ask for is in ``disturbances.py``.

The folder gets ``stdout``, ``stderr``, ``used`` and ``noise``; ``state`` is the user's state folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it on first use
from disturbances import disturb, record_use  # beside this script

from understudy.cli import main
from understudy.methods.critics import gs_wgan  # noqa: F401
from understudy.methods.teachers import teaching  # noqa: F401
from understudy.privacy.accounting import pld  # noqa: F401
from understudy.release import model_card  # noqa: F401


def _run(request: dict[str, Any]) -> int:
    folder = Path(request["folder"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    if request.get("state") is not None:
        os.environ["XDG_STATE_HOME"] = request["state"]
    record_use(folder)
    disturb(request)
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
