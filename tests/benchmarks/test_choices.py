"""What ``auto`` knows is measured so that a cut costs little, and the table says truly where each run was made."""

from __future__ import annotations

import importlib
import json
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


def test_each_run_of_the_table_names_its_own_machine_and_old_ones_that_of_their_file(
    choices: ModuleType, tmp_path: Path
):
    rows = [ROW, {**ROW, "device": "another", "epsilon": 10}]
    (tmp_path / "choices-cpu.json").write_text(json.dumps({"device": "the first", "real": {}, "rows": rows}))
    own = {run["device"]: run for run in choices.table(tmp_path)["runs"] if run["device"] in ("the first", "another")}
    assert {device: run["epsilon"] for device, run in own.items()} == {"the first": 3, "another": 10}
    assert (own["another"]["chance"], own["another"]["seconds"], own["another"]["channels"]) == (0.1135, 60.0, 1)
