"""A row that is trained again: its own command, its own randomness, and what was found before stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "repeat.py"
QUICK = "--set method.steps=2 --set method.frequencies=20 --metrics cnn --samples 300 --device cpu"
ROW = "dp-merf-digits-eps10"


def test_each_run_of_a_row_is_added_to_its_file(tmp_path: Path):
    command = f"python benchmarks/headline.py dp-merf digits --epsilon 10 {QUICK}"
    (tmp_path / f"{ROW}.json").write_text(json.dumps({"command": command}))
    before = {"row": ROW, "command": command, "repeats": [{"cnn_accuracy": 0.5}]}
    (tmp_path / f"repeats-{ROW}.json").write_text(json.dumps(before))
    words = [ROW, "--times", "1", "--results", tmp_path, "--commit", "0123abc"]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / f"repeats-{ROW}.json").read_text())
    first, second = found["repeats"]
    assert (found["command"], first) == (command, {"cnn_accuracy": 0.5})
    assert 9.9 < second["epsilon"] <= 10
    assert (second["commit"], 0 <= second["cnn_accuracy"] <= 1) == ("0123abc", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{ROW}.json", f"repeats-{ROW}.json"]
