"""Evaluation and the demo from the command line."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from understudy.evaluate.cnn import CnnConfig
from understudy.evaluate.resnet import ResnetConfig

from .calling import Caller

STAMP = "not private: do not publish"


def test_evaluate_keeps_its_figures_with_the_run(call: Caller, train_arguments: list[object], tmp_path: Path):
    random = np.random.default_rng(1)
    np.savez(
        tmp_path / "test.npz", images=random.integers(0, 256, (30, 8, 8), dtype=np.uint8), labels=np.arange(30) % 3
    )
    assert call(*train_arguments).code == 0
    data = ["--data", tmp_path / "data.npz", "--metrics", "logistic_regression"]
    assert "--test-data PATH" in call.refused("evaluate", tmp_path / "run", *data)
    command = ["evaluate", tmp_path / "run", *data, "--test-data", tmp_path / "test.npz", "--samples", 60]
    result = call(*command, "--json").json()
    assert result["stamp"] == STAMP
    assert 0 <= result["figures"][0]["accuracy"] <= 1
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()) == result
    assert call(*command, "--temperature", 0.5, "--json").json()["temperature"] == 0.5
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()) == result, "that of the release as it is"
    answer = call(*command)
    assert STAMP in answer.out
    assert " %" in answer.out
    assert call("report", tmp_path / "run", "--to", tmp_path / "report.html").code == 0
    assert STAMP in (tmp_path / "report.html").read_text()
    call("evaluate", tmp_path / "run" / "release", *command[2:])
    assert not (tmp_path / "run" / "release" / "evaluation.json").exists()


@pytest.mark.slow
def test_several_processes_draw_and_score_as_one_does(call: Caller, train_arguments: list[object], tmp_path: Path):
    assert call(*train_arguments).code == 0
    data = ["--data", tmp_path / "data.npz", "--test-data", tmp_path / "data.npz", "--metrics", "lda,gaussian_nb"]
    answer = call("evaluate", tmp_path / "run", *data, "--samples", 60, "--processes", 2, "--json")
    assert answer.code == 0, answer.err
    assert [figure["name"] for figure in answer.json()["figures"]] == ["lda", "gaussian_nb"]
    assert answer.json()["samples"] == 60


def test_colour_is_scored_by_two_networks_whose_sizes_are_stated(
    call: Caller, train_arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = "understudy.evaluate.evaluation"
    monkeypatch.setattr(f"{place}.ResnetConfig", partial(ResnetConfig, widths=(8, 8, 8, 8), epochs=1, minimum_steps=2))
    monkeypatch.setattr(f"{place}.CnnConfig", partial(CnnConfig, epochs=1, minimum_steps=2))
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(40) % 3)
    assert call(*train_arguments).code == 0
    data = ["--data", tmp_path / "data.npz", "--test-data", tmp_path / "data.npz", "--no-cache"]
    answer = call("evaluate", tmp_path / "run", *data, "--samples", 60)
    assert answer.code == 0, answer.err
    assert re.search(r"^cnn .* guessing .*, 52,\d+ parameters\)$", answer.out, re.MULTILINE)
    assert re.search(r"^resnet .* guessing .*, \d,\d+ parameters\)$", answer.out, re.MULTILINE)
    kept = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert kept["resnet_accuracy"] == kept["figures"][1]["value"]


@pytest.mark.slow
def test_downstream_shows_every_classifier_and_says_what_is_kept_where(
    call: Caller, train_arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random = np.random.default_rng(1)
    np.savez(
        tmp_path / "test.npz", images=random.integers(0, 256, (30, 8, 8), dtype=np.uint8), labels=np.arange(30) % 3
    )
    assert call(*train_arguments).code == 0
    data = ["--data", tmp_path / "data.npz", "--test-data", tmp_path / "test.npz", "--samples", 60]
    command = ["evaluate", tmp_path / "run", *data, "--metrics", "downstream", "--fast", "--to", tmp_path / "out.json"]
    answer = call(*command)
    assert answer.code == 0, answer.err
    assert "xgboost" in answer.out
    assert "calibrated_accuracy" in answer.out
    assert "fast: the CNN ran 5 epochs instead of 15" in answer.out
    assert answer.out.rstrip().endswith(f"({STAMP})")
    assert "13/13  xgboost trained on samples in" in answer.err
    assert "13/13  xgboost trained on real data in" in answer.err
    assert str(tmp_path / "cache" / "understudy" / "private") in answer.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert len(result["figures"]) == 15
    again = call(*command, "--json")
    assert again.json()["figures"][0]["real_accuracy"] == result["figures"][0]["real_accuracy"]
    assert "real data" not in again.err


def test_bad_choices_of_an_evaluation_are_refused(call: Caller, train_arguments: list[object], tmp_path: Path):
    assert call(*train_arguments).code == 0
    command = ["evaluate", tmp_path / "run", "--data", tmp_path / "data.npz", "--test-data", tmp_path / "data.npz"]
    assert "metrics: 'svm' is unknown" in call.refused(*command, "--metrics", "svm")
    assert "workers: 0" in call.refused(*command, "--workers", 0)
    assert "processes: 0; pass a number from 1 to 1024" in call.refused(*command, "--processes", 0)
    assert "at least 2049" in call.refused(*command, "--metrics", "fid", "--no-cache")
    few = ["--metrics", "fid", "--no-cache", "--allow-few"]
    assert "weights: " in call.refused(*command, *few, "--weights", tmp_path / "absent.pt")
    assert "to: " in call.refused(*command, "--to", tmp_path / "data.npz" / "out.json")
    assert not (tmp_path / "run" / "evaluation.json").exists()


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
