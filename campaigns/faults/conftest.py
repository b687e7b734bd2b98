"""A launcher of real ``understudy`` processes, shared by the tests of one worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.cases import BUDGET, case_of
from tests.helpers.data import tiny_data


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit code (negative for a signal) and what it printed."""

    code: int
    stdout: str
    stderr: str

    def sentence(self) -> str:
        """What it says on stderr besides progress: one line, and never a traceback."""
        assert "Traceback" not in self.stderr, self.stderr
        said = [line for line in self.stderr.splitlines() if line.startswith("understudy: ")]
        assert len(said) == 1, self.stderr
        return said[0]


class Launcher:
    """Starts commands through ``launcher.py`` and waits for them; a command's files are in ``folder``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("launcher.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )
        assert self._read() == {"ready": True}

    def start(self, arguments: list[str], folder: Path, **request: Any) -> int:
        """Start a command; returns its process id."""
        folder.mkdir(exist_ok=True)
        return self._ask({"arguments": arguments, "folder": str(folder), **request})["pid"]

    def wait(self, pid: int, folder: Path) -> Outcome:
        """Wait for a command that was started with this folder."""
        code = self._ask({"wait": pid})["code"]
        return Outcome(code, (folder / "stdout").read_text(), (folder / "stderr").read_text())

    def run(self, arguments: list[str], folder: Path, **request: Any) -> Outcome:
        """Start a command and wait for it."""
        return self.wait(self.start(arguments, folder, **request), folder)

    def close(self) -> None:
        """End the launcher; its commands have been waited for."""
        assert self._process.stdin is not None
        with self._process:
            self._process.stdin.close()
            assert self._process.wait(timeout=30) == 0

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """One launcher for all tests of a worker; its commands share a state folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        process = Launcher()
    yield process
    process.close()


@dataclass(frozen=True)
class Attempt:
    """One run folder, the command that trains in it, and the files of the commands that were tried on it."""

    launcher: Launcher
    home: Path
    command: list[str]

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.home / "run"

    @property
    def files(self) -> Path:
        """What the launcher writes."""
        return self.home / "files"

    def start(self, **request: Any) -> int:
        """Start training."""
        return self.launcher.start(self.command, self.files, **request)

    def wait(self, pid: int) -> Outcome:
        """Wait for training that was started."""
        return self.launcher.wait(pid, self.files)

    def train(self, **request: Any) -> Outcome:
        """Train, and wait."""
        return self.wait(self.start(**request))

    def start_or_resume(self) -> int:
        """What a user does after a crash: resume, or start again where not even the description was written."""
        if not (self.run / "run.json").exists():
            return self.start()
        without_config = self.command[: self.command.index("--config")]
        return self.launcher.start([*without_config, "--resume"], self.files)

    def carry_on(self) -> Outcome:
        """Start or resume, and wait."""
        return self.wait(self.start_or_resume())

    def kill(self, pid: int) -> None:
        """SIGKILL, which nothing can catch."""
        os.kill(pid, signal.SIGKILL)

    def used(self) -> int:
        """Executions whose sanitized value was handed out; the same value read again counts once."""
        lines = (self.files / "used").read_text().split("\n") if (self.files / "used").exists() else []
        return sum(int(line.split()[0]) for line in set(lines) if line)


@pytest.fixture
def attempt(launcher: Launcher, tmp_path: Path) -> Callable[..., Attempt]:
    """``attempt(case, name, **changes)``: a run folder for tiny data, and the command line that trains in it."""

    def make(case: str, name: str = "attempt", **changes: Any) -> Attempt:
        home = tmp_path / name
        home.mkdir()
        data = tiny_data()
        np.savez(home / "data.npz", images=data.images[:, 0], labels=data.labels)
        (home / "config.json").write_text(json.dumps(case_of(case).config(**changes)))
        command = ["train", case_of(case).name, "--data", str(home / "data.npz"), "--records", "40", "--classes", "3"]
        command += ["--epsilon", str(BUDGET.epsilon), "--delta", str(BUDGET.delta), "--out", str(home / "run")]
        return Attempt(launcher, home, [*command, "--config", str(home / "config.json")])

    return make
