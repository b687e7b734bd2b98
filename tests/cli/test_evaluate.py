"""Evaluation and the demo from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from .calling import Caller

STAMP = "not private: do not publish"


def test_evaluate_keeps_its_figures_with_the_run(call: Caller, train_arguments: list[object], tmp_path: Path):
    random = np.random.default_rng(1)
    np.savez(
        tmp_path / "test.npz", images=random.integers(0, 256, (30, 8, 8), dtype=np.uint8), labels=np.arange(30) % 3
    )
    assert call(*train_arguments).code == 0
    data = ["--data", tmp_path / "data.npz", "--metrics", "logistic_regression"]
    assert "one set only" in call.refused("evaluate", tmp_path / "run", *data)
    command = ["evaluate", tmp_path / "run", *data, "--test-data", tmp_path / "test.npz", "--samples", 60]
    result = call(*command, "--json").json()
    assert result["stamp"] == STAMP
    assert 0 <= result["figures"][0]["accuracy"] <= 1
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()) == result
    answer = call(*command)
    assert STAMP in answer.out
    assert " %" in answer.out
    assert call("report", tmp_path / "run", "--to", tmp_path / "report.html").code == 0
    assert STAMP in (tmp_path / "report.html").read_text()
    call("evaluate", tmp_path / "run" / "release", *command[2:])
    assert not (tmp_path / "run" / "release" / "evaluation.json").exists()


@pytest.mark.slow
def test_the_demo_goes_the_whole_way_twice(call: Caller, tmp_path: Path):
    for _ in range(2):
        answer = call("demo", "--out", tmp_path / "demo")
        assert answer.code == 0, answer.err
        page, verified = answer.out.splitlines()[-2:]
        assert page == f"report: {tmp_path / 'demo' / 'report.html'}"
        assert verified.startswith("epsilon ")
        assert verified.endswith(" verified")
    evaluation = json.loads((tmp_path / "demo" / "run" / "evaluation.json").read_text())
    assert evaluation["cnn_accuracy"] >= 0.7
    certificate = json.loads((tmp_path / "demo" / "run" / "release" / "certificate.json").read_text())
    assert certificate["guarantees"][0]["epsilon"] <= 10
