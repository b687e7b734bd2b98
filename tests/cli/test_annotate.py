"""``understudy annotate``: from a generator without labels to labelled images; bad input is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ..release.building import make_release
from .calling import Caller

SETTINGS = {
    "teacher": ("privacy.steps=4", "privacy.noise_multiplier=1.5", "method.teacher.directions=2"),
    "network": (
        "method.kind=network",
        "privacy.batch=8",
        "privacy.steps=4",
        "method.width=2",
        "privacy.noise_multiplier=1.5",
    ),
}


@pytest.fixture(params=["teacher", pytest.param("network", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the annotator is; few images are drawn to look for classes that a tiny one hardly ever names."""
    monkeypatch.setattr("understudy.models.annotator._DRAWS", 60)
    monkeypatch.setattr("understudy.methods.annotation._COUNTED", 600)
    return str(request.param)


@pytest.fixture
def unlabelled(tmp_path: Path) -> Path:
    return make_release(classes=None).save(tmp_path / "unlabelled")


@pytest.fixture
def arguments(unlabelled: Path, archive: Path, tmp_path: Path) -> list[object]:
    declared = ["--records", 40, "--classes", 3]
    return ["annotate", unlabelled, "--data", archive, "--out", tmp_path / "run", *declared]


def settings_of(kind: str) -> list[str]:
    return [part for setting in SETTINGS[kind] for part in ("--set", setting)]


def test_annotate_then_verify_sample_and_label(
    call: Caller, arguments: list[object], unlabelled: Path, tmp_path: Path, kind: str
):
    run = tmp_path / "run"
    answer = call(*arguments, *settings_of(kind), "--epsilon", 12, "--delta", 1e-5, "--json")
    assert answer.code == 0, answer
    assert 4.4 < answer.json()["epsilon"] <= 12
    assert call("verify", run).code == 0
    config = json.loads((run / "release" / "config.json").read_text())
    assert config["method_config"]["annotator"]["method"]["kind"] == kind
    assert call("sample", run, "-n", 30, "--labels", "0,2", "--to", tmp_path / "drawn.npz").code == 0
    assert set(np.load(tmp_path / "drawn.npz")["labels"]) <= {0, 2}
    assert call("sample", unlabelled, "-n", 20, "--to", tmp_path / "plain.npz").code == 0
    labelled = call("annotate", run, "--images", tmp_path / "plain.npz", "--to", tmp_path / "named.npz")
    assert labelled.code == 0, labelled
    assert "20 labelled images" in labelled.out
    assert np.load(tmp_path / "named.npz")["labels"].shape == (20,)
    assert call("report", run, "--to", tmp_path / "report.html").code == 0


def test_the_budget_is_that_of_both(call: Caller, arguments: list[object]):
    sentence = call.refused(*arguments, "--epsilon", 4, "--delta", 1e-5, code=3)
    assert "the generator alone costs epsilon 4.37" in sentence


def test_bad_input_is_one_sentence(call: Caller, arguments: list[object], unlabelled: Path, released: Path, tmp_path):
    assert "--epsilon is missing" in call.refused(*arguments)
    assert "pass both or neither" in call.refused(*arguments, "--images", "x.npz")
    assert "are needed to train an annotator" in call.refused("annotate", unlabelled)
    assert "--out is needed" in call.refused("annotate", unlabelled, "--data", "digits")
    labelled = [released if part == unlabelled else part for part in arguments]
    assert "draws 4 classes by itself" in call.refused(*labelled, "--epsilon", 12, "--delta", 1e-5)
    np.savez(tmp_path / "plain.npz", images=np.zeros((3, 8, 8), dtype=np.uint8))
    to = ("--images", tmp_path / "plain.npz", "--to", tmp_path / "named.npz")
    assert "holds no classifier" in call.refused("annotate", unlabelled, *to)
    assert "run" in call.refused(*arguments, "--resume")
