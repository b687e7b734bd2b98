"""Runs the command line in this process and collects what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from understudy.cli.main import run


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; anything else there is a failure."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


class Caller:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Answer:
        self._capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    def refused(self, *arguments: object, code: int = 2) -> str:
        """The one sentence with which a command is refused."""
        answer = self(*arguments)
        assert answer.code == code, answer
        assert answer.err.startswith("understudy: "), answer.err
        assert answer.err.count("\n") == 1, answer.err
        assert "Traceback" not in answer.err
        return answer.err
