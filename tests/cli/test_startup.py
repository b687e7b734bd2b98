"""The command line starts quickly and loads nothing heavy before it needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_CHILD = """
import json, sys, time
from understudy.cli.main import run
code = run(sys.argv[1:])
sys.stdout.flush()
print(json.dumps({"code": code, "torch": "torch" in sys.modules}), file=sys.stderr)
"""

PLANS = [
    ["plan", "dp-merf", "--records", "60000", "--epsilon", "10", "--delta", "1e-5"],
    ["plan", "dp-merf", "--records", "60000", "--epsilon", "1", "--delta", "1e-5", "--json"],
    ["plan", "gs-wgan", "--records", "60000", "--epsilon", "10", "--delta", "1e-5"],
]


def start(arguments: list[str]) -> tuple[dict[str, object], str]:
    child = subprocess.run([sys.executable, "-c", _CHILD, *arguments], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stderr.splitlines()[-1]), child.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["methods"], ["train", "--help"], ["data", "--help"], *PLANS]
)
def test_no_torch(arguments: list[str]):
    facts, _ = start(arguments)
    assert facts == {"code": 0, "torch": False}


def test_help_names_every_command():
    _, text = start(["--help"])
    commands = ["train", "sample", "evaluate", "curve", "report", "plan", "verify", "data", "methods", "release"]
    for command in ["demo", *commands]:
        assert command in text


def test_the_installed_command_answers():
    script = os.path.join(os.path.dirname(sys.executable), "understudy")
    child = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0
    assert child.stdout.startswith("understudy ")
    child = subprocess.run([script, "verify", "nothing-here"], capture_output=True, text=True, timeout=60)
    assert child.returncode == 2
    assert child.stderr.startswith("understudy: release: nothing-here does not exist")
