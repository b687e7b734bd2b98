"""Workers that work in this process: what they would say, without the seconds that a process takes to start."""

from __future__ import annotations

from importlib import import_module

import pytest


class WorkerHere:
    """Stands for ``understudy.processes.Worker``: asks the module for its answers at once, on the same task."""

    started: list[str] = []  # noqa: RUF012 (emptied by ``workers_here``)

    def __init__(self, module: str, task: bytes, threads: int, number: int) -> None:
        self.started.append(module)
        self.messages = list(import_module(module).answers(task))[::-1]

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
