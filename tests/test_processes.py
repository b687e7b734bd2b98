"""Processes of the package's own."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from understudy.processes import THREAD_VARIABLES, worker_environment

_STARTS_ONE = """
import subprocess, sys, time
from understudy.processes import worker_command, worker_environment
process = subprocess.Popen(worker_command(sys.argv[1]), env=worker_environment(1))
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "module",
    [
        "understudy.evaluate.parallel",
        "understudy.experiments.worker",
        pytest.param("understudy.evaluate.spread", marks=pytest.mark.slow),
        pytest.param("understudy.release.sampling", marks=pytest.mark.slow),
    ],
)
def test_a_worker_does_not_outlive_the_process_that_started_it(module: str):
    """The worker waits for its task on a pipe that this test keeps open, so only the death of its parent can end it.

    It holds the pipe of its words, too: that comes to its end when the last process that has it is gone.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _STARTS_ONE, module], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
        assert select.select([parent.stdout], [], [], 60)[0], "the worker lives on"
        assert parent.stdout.read() == b""


def test_a_worker_has_the_threads_it_was_given_and_this_package():
    environment = worker_environment(3)
    assert [environment[name] for name in THREAD_VARIABLES] == ["3"] * len(THREAD_VARIABLES)
    command = [sys.executable, "-P", "-c", "import understudy; print(understudy.__file__)"]
    found = subprocess.run(command, env=environment, cwd=os.sep, capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith(os.path.join("understudy", "__init__.py"))
