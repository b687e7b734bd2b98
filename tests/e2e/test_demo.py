"""``understudy demo`` as a newcomer runs it: within three minutes, to a verified release that is good for something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("understudy"))


@pytest.mark.slow
def test_the_demo_ends_with_a_report_and_a_verified_epsilon(tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    result = subprocess.run(
        [COMMAND, "demo", "--out", "demo"], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=280
    )
    assert result.returncode == 0, result.stderr
    *_, page, last = result.stdout.splitlines()
    assert page == "report: demo/report.html"
    assert last.startswith("epsilon ")
    assert last.endswith(" verified")
    assert (tmp_path / "demo" / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")

    again = subprocess.run(
        [COMMAND, "demo", "--out", "demo", "--json"], capture_output=True, text=True, cwd=tmp_path, timeout=280
    )
    facts = json.loads(again.stdout)
    assert facts["passed"]
    assert facts["claimed_epsilon"] <= 10
    assert facts["accuracy"] >= 0.70
