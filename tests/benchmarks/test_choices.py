"""What ``auto`` knows is measured so that a cut costs little, and the table says truly where each run was made."""

from __future__ import annotations

import importlib
import json
import math
import time
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUICK = {"candidate": "dp-merf quick", "dataset": "mnist", "records": 5000, "classes": 10, "shape": [1, 28, 28]}
ROW = {**QUICK, "epsilon": 3, "cnn_accuracy": 0.8, "train_seconds": 90.0, "cpu_seconds": 60.0}


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("choices")


def script(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    return [str(folder / name)]


def test_one_run_that_fails_costs_its_own_result_alone(choices: ModuleType, tmp_path: Path):
    good = "import json, os; print('noise'); print(json.dumps({'threads': os.environ['OMP_NUM_THREADS']}))"
    commands = [script(tmp_path, "bad.py", "raise SystemExit(3)"), script(tmp_path, "good.py", good)]
    results = choices.at_once(commands, 2, math.inf, {"OMP_NUM_THREADS": "1"})
    assert list(results) == [{"threads": "1"}]


def test_runs_at_once_share_the_processors(choices: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = script(tmp_path, "told.py", "import os; print(os.environ['OMP_NUM_THREADS'])")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(choices.os, "cpu_count", lambda: 4)
    assert [*choices.at_once([told], 2, math.inf, {}), *choices.at_once([told], 9, math.inf, {})] == [2, 1]


def test_no_run_is_begun_once_the_time_is_over(choices: ModuleType, tmp_path: Path):
    commands = [script(tmp_path, "good.py", "print('{}')")]
    assert list(choices.at_once(commands, 2, time.time() - 1, {})) == []


def test_each_run_of_the_table_names_its_own_machine_and_old_ones_that_of_their_file(
    choices: ModuleType, tmp_path: Path
):
    rows = [ROW, {**ROW, "device": "another", "epsilon": 10}]
    (tmp_path / "choices-cpu.json").write_text(json.dumps({"device": "the first", "real": {}, "rows": rows}))
    own = {run["device"]: run for run in choices.table(tmp_path)["runs"] if run["device"] in ("the first", "another")}
    assert {device: run["epsilon"] for device, run in own.items()} == {"the first": 3, "another": 10}
    assert (own["another"]["chance"], own["another"]["seconds"], own["another"]["channels"]) == (0.1135, 60.0, 1)
