"""Runs of benchmarks that go on at once: each costs its own result alone, and together they share the machine."""

from __future__ import annotations

import importlib
import math
import time
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("record")


def script(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    return [str(folder / name)]


def test_one_run_that_fails_costs_its_own_result_alone(record: ModuleType, tmp_path: Path):
    good = "import json, os; print('noise'); print(json.dumps({'threads': os.environ['OMP_NUM_THREADS']}))"
    commands = [script(tmp_path, "bad.py", "raise SystemExit(3)"), script(tmp_path, "good.py", good)]
    results = record.at_once(commands, 2, math.inf, {"OMP_NUM_THREADS": "1"})
    assert list(results) == [{"threads": "1"}]


def test_runs_at_once_share_the_processors(record: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = script(tmp_path, "told.py", "import os; print(os.environ['OMP_NUM_THREADS'])")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(record.os, "cpu_count", lambda: 4)
    assert [*record.at_once([told], 2, math.inf, {}), *record.at_once([told], 9, math.inf, {})] == [2, 1]


def test_no_run_is_begun_once_the_time_is_over(record: ModuleType, tmp_path: Path):
    commands = [script(tmp_path, "good.py", "print('{}')")]
    assert list(record.at_once(commands, 2, time.time() - 1, {})) == []
