"""Experiments from Python: compared methods and swept settings, heard by whoever listens, drawn by whoever draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from understudy.data.sources import DataOptions
from understudy.errors import InputError
from understudy.experiments.curves import Curve
from understudy.experiments.engine import Entrant, ExperimentOptions, WorkOptions, compare, sweep
from understudy.progress import Audience
from understudy.release.verify import verify

STAMP = "not private: do not publish"
MERF = Entrant(
    "dp-merf",
    {
        "privacy": {"noise_multiplier": 2},  # nothing to calibrate
        "method": {"frequencies": 20, "batch": 20, "width": 4, "steps": 3},
        "runtime": {"device": "cpu"},
    },
)
HP = Entrant("dp-hp", {"privacy": {"noise_multiplier": 2}, "method": {"steps": 3, "batch": 20}})
GAN = Entrant("gan", {"privacy": {"steps": 4}, "method": {"width": 2}})


@pytest.fixture
def options(tmp_path: Path) -> ExperimentOptions:
    """On training and test images of 8x8 pixels in three classes."""
    random, arrays = np.random.default_rng(0), {}
    for split, count in (("train", 600), ("test", 30)):
        arrays[f"x_{split}"] = random.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 3
    np.savez(tmp_path / "ward-7.npz", **arrays)
    source = DataOptions(str(tmp_path / "ward-7.npz"), records=600, classes=3)
    return ExperimentOptions(source, 10, 1e-5, metrics=("logistic_regression",), samples=90)


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def drawn() -> list[Curve]:
    return []


@pytest.fixture
def work(heard: list[str], drawn: list[Curve]) -> WorkOptions:
    return WorkOptions(audience=Audience(say=heard.append), draw=drawn.append)


def test_a_comparison_keeps_what_is_finished_and_more_methods_add_to_it(
    options: ExperimentOptions, work: WorkOptions, heard: list[str], drawn: list[Curve], tmp_path: Path
):
    out = tmp_path / "all"
    first = compare([MERF, HP], out, options, work)
    assert heard == ["1/2: dp-merf", "2/2: dp-hp"]
    assert drawn == [first]
    assert first.stamp == STAMP
    assert json.loads((out / "compare.json").read_text()) == json.loads(json.dumps(first.as_dict()))
    finished = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/release/*")}
    assert compare([MERF, HP], out, options, work) == first
    assert len(heard) == 2, "nothing was left to do"
    more = compare([MERF, GAN], out, options, work)
    assert heard[2:] == ["1/1: gan"]
    assert [point.method for point in more.points] == ["dp-merf", "dp-hp", "gan"]
    assert more.points[2].epsilon is None
    assert "all of them together have none" in more.totals[0].in_words()
    assert finished == {path: path.stat().st_mtime_ns for path in finished}


def test_a_sweep_is_a_curve_and_says_nothing_unless_somebody_listens(
    options: ExperimentOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    curve = sweep(MERF, ["method.steps=2,4"], tmp_path / "sweep", options)
    assert capsys.readouterr() == ("", "")
    assert [point.values["method.steps"] for point in curve.points] == [2, 4]
    assert all(verify(tmp_path / "sweep" / "points" / point.folder).passed for point in curve.points)
    assert curve.totals[0].runs == 2
    assert curve.command is not None
    assert "ward-7" not in curve.command


@pytest.mark.parametrize("entrants", [[], [MERF, MERF]])
def test_a_comparison_needs_methods_each_of_them_once(
    options: ExperimentOptions, tmp_path: Path, entrants: list[Entrant]
):
    with pytest.raises(InputError, match="name each method once"):
        compare(entrants, tmp_path / "all", options)


def test_a_folder_of_another_run_is_no_point_of_a_sweep(options: ExperimentOptions, tmp_path: Path):
    (tmp_path / "sweep" / "points" / "method.steps=2").mkdir(parents=True)
    with pytest.raises(InputError, match="is not of this sweep"):
        sweep(MERF, ["method.steps=2,4"], tmp_path / "sweep", options)
