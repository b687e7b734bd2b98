"""Workers that work in this process: what they would say, without the seconds that a process takes to start."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest


class WorkerHere:
    """Stands for ``understudy.processes.Worker``: runs the module's ``main`` at once, on the same task."""

    started: list[str] = []  # noqa: RUF012 (emptied by ``workers_here``)

    def __init__(self, module: str, task: bytes, threads: int, number: int) -> None:
        self.started.append(module)
        program, self.messages = import_module(module), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(program, "send", self.messages.append)
            patch.setattr(program, "end_with_parent", lambda: None)
            patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(task)))
            assert program.main() == 0
        self.messages.reverse()

    def hear(self) -> bytes:
        return self.messages.pop()

    def end(self) -> None:
        assert not self.messages, "all that it said was asked for"


@pytest.fixture
def workers_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on workers work here; the modules that were started."""
    WorkerHere.started.clear()
    monkeypatch.setattr("understudy.processes.Worker", WorkerHere)
    return WorkerHere.started
