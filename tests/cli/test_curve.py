"""``understudy curve``: sweeps that finish, continue, grow, are collected, and are refused before anything is spent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from understudy.cli.main import INTERRUPTED
from understudy.errors import InputError, InterruptedRun
from understudy.evaluate import releases
from understudy.experiments import worker
from understudy.experiments.points import Task
from understudy.progress import Audience
from understudy.release.verify import verify
from understudy.runs.folder import RunFolder

from ..helpers.runs import open_to_others
from .calling import Answer, Caller

STAMP = "not private: do not publish"
TINY = ("method.frequencies=20", "method.batch=20", "method.width=4", "method.latent=4")
TEN = ("--epsilon", 10, "--set", "privacy.noise_multiplier=2")  # nothing to calibrate
SET = [part for setting in TINY for part in ("--set", setting)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Training and test images of 8x8 pixels in three classes; enough of them that no class drowns in noise."""
    random, path = np.random.default_rng(0), tmp_path / "secret" / "ward-7.npz"
    path.parent.mkdir()
    arrays = {}
    for split, count in (("train", 600), ("test", 30)):
        arrays[f"x_{split}"] = random.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 3
    np.savez(path, **arrays)
    return path


@pytest.fixture
def arguments(data: Path, tmp_path: Path) -> list[object]:
    declared = ["--records", 600, "--classes", 3, "--delta", 1e-5]
    measured = ["--metrics", "logistic_regression", "--samples", 90]
    return ["curve", "dp-merf", "--data", data, *declared, *measured, *SET, "--out", tmp_path / "sweep"]


def counted(folder: Path) -> list[int]:
    """How many runs on the data each point knew of when it was started: a point that is run again counts again."""
    runs = sorted(folder.glob("points/*/run.json"))
    return sorted(json.loads(path.read_text())["runs_on_this_data"] for path in runs)


def test_a_sweep_ends_with_certified_points_pictures_and_their_price(
    call: Caller, arguments: list[object], tmp_path: Path
):
    answer = call(*arguments, "--over", "epsilon=1,10", "--over", "method.steps=2,4", "--json")
    assert answer.code == 0, answer.err
    result = answer.json()
    assert [point["values"] for point in result["points"]] == [
        {"epsilon": epsilon, "method.steps": steps} for epsilon in (1, 10) for steps in (2, 4)
    ]
    assert result["stamp"] == STAMP
    (total,) = result["totals"]
    assert total["runs"] == 4
    assert 10 < total["epsilon"] < 22
    folder = tmp_path / "sweep"
    for point in result["points"]:
        place = folder / "points" / point["folder"]
        assert verify(place).passed
        assert json.loads((place / "run.json").read_text())["budget"]["epsilon"] == point["values"]["epsilon"]
        assert point["epsilon"] <= point["values"]["epsilon"]
        assert point["seconds"] == RunFolder(place).seconds()[-1] > 0
        assert open_to_others(place / "private") == []
    assert counted(folder) == [1, 2, 3, 4]
    assert json.loads((folder / "curve.json").read_text()) == {key: result[key] for key in result if key != "out"}
    assert (folder / "curve-logistic-regression.svg").read_text().count("<path") > 10
    assert (folder / "curve-logistic-regression.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "curve.html").read_text()
    assert STAMP in page
    assert "add up" in page
    for text in (page, (folder / "curve.json").read_text()):
        assert "ward-7.npz" not in text
        assert "secret" not in text


def test_the_same_command_keeps_what_is_finished_and_more_values_add_points(
    call: Caller, arguments: list[object], tmp_path: Path
):
    sweep = [*arguments, *TEN]
    first = call(*sweep, "--over", "method.steps=2,4")
    assert first.code == 0, first.err
    assert "4 " in first.out
    assert STAMP in first.out
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("points/*/release/*")}
    again = call(*sweep, "--over", "method.steps=2,4")
    assert again.code == 0
    assert "point" not in again.err
    more = call(*sweep, "--over", "method.steps=6", "--json").json()
    assert [point["values"]["method.steps"] for point in more["points"]] == [2, 4, 6]
    assert "method.steps=2,4,6" in more["command"]
    assert finished == {path: path.stat().st_mtime_ns for path in finished}
    assert counted(tmp_path / "sweep") == [1, 2, 3]


def test_a_copied_sweep_goes_on_only_if_it_is_declared_to_be_moved(
    call: Caller, arguments: list[object], tmp_path: Path
):
    over = [*TEN, "--over", "method.steps=2,4"]
    assert call(*arguments, *over).code == 0
    copy = shutil.copytree(tmp_path / "sweep", tmp_path / "copy")
    half_run = next(copy.glob("points/*"))
    shutil.rmtree(half_run / "release")
    refused = call(*arguments[:-1], copy, *over)
    assert refused.code == 2
    assert "--moved" in refused.err
    accepted = call(*arguments[:-1], copy, *over, "--moved")
    assert accepted.code == 0, accepted.err
    assert verify(half_run).passed


@pytest.mark.slow
def test_repeats_are_runs_of_their_own(call: Caller, arguments: list[object], tmp_path: Path):
    sweep = [*arguments, "--set", "method.steps=2", "--over", "epsilon=10", "--repeats", 3, "--json"]
    result = call(*sweep).json()
    assert [point["repeat"] for point in result["points"]] == [1, 2, 3]
    assert result["totals"][0]["runs"] == 3
    assert counted(tmp_path / "sweep") == [1, 2, 3]


def test_an_interrupted_sweep_says_how_to_continue(
    call: Caller, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sweep = [*arguments, *TEN, "--over", "method.steps=2,4"]
    train = worker.bring_to_end

    def interrupted(task: Task, audience: Audience) -> None:
        if task.point.values["method.steps"] == 4:
            raise InterruptedRun("run: interrupted")
        train(task, audience)

    monkeypatch.setattr(worker, "bring_to_end", interrupted)
    answer: Answer = call(*sweep)
    assert answer.code == INTERRUPTED
    assert "point 2 of 2; run the same command again" in answer.err
    assert not (tmp_path / "sweep" / "curve.json").exists()
    monkeypatch.undo()
    assert call(*sweep).code == 0
    assert len(json.loads((tmp_path / "sweep" / "curve.json").read_text())["points"]) == 2


def test_a_point_that_cannot_be_scored_is_named_and_the_others_are_drawn(
    call: Caller, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    measure = releases.evaluate_release

    def fails(folder: Path, *more: object) -> object:
        if folder.name == "method.steps=2":
            raise InputError("labels: class 1 is missing")
        return measure(folder, *more)

    monkeypatch.setattr(releases, "evaluate_release", fails)
    answer = call(*arguments, *TEN, "--over", "method.steps=2,4")
    assert answer.code == 1
    assert "broke down: method.steps=2" in answer.err
    curve = json.loads((tmp_path / "sweep" / "curve.json").read_text())
    assert [point["values"]["method.steps"] for point in curve["points"]] == [4]
    assert curve["problems"] == {"method.steps=2": "labels: class 1 is missing"}
    assert curve["totals"][0]["runs"] == 2, "what it spent counts"


def test_finished_runs_are_collected(call: Caller, arguments: list[object], tmp_path: Path):
    sweep = [*arguments, *TEN, "--over", "method.steps=2,4"]
    assert call(*sweep).code == 0
    runs = sorted((tmp_path / "sweep" / "points").iterdir())
    collect = ["curve", "--collect", *runs, "--out", tmp_path / "collected"]
    result = call(*collect, "--over", "method.steps", "--json").json()
    assert [point["values"]["method.steps"] for point in result["points"]] == [2, 4]
    assert result["metrics"] == ["logistic_regression"]
    assert result["totals"][0]["runs"] == 2
    assert (tmp_path / "collected" / "curve.html").exists()
    assert call(*collect).code == 0, "without a key it is drawn against epsilon"
    assert "no figure for fid" in call.refused(*collect, "--metrics", "fid")
    assert "pass the key 'method.steps'" in call.refused(*collect, "--over", "method.steps=2")
    assert "no setting 'method.stepps'" in call.refused(*collect, "--over", "method.stepps")
    assert "named twice" in call.refused(*collect, runs[0])
    assert "has no place there" in call.refused(*collect, "--epsilon", 3)
    assert "not the folder of a run" in call.refused("curve", "--collect", tmp_path, "--out", tmp_path / "x")


@pytest.mark.slow
def test_a_report_shows_curves_beside_runs(call: Caller, arguments: list[object], tmp_path: Path):
    assert call(*arguments, *TEN, "--over", "method.steps=2,4").code == 0
    runs = sorted((tmp_path / "sweep" / "points").iterdir())
    report = ["report", tmp_path / "sweep", runs[0], "--to", tmp_path / "report.html"]
    assert call(*report).code == 0
    text = (tmp_path / "report.html").read_text()
    assert "Privacy against utility" in text
    assert "What an attacker can gain" in text
    assert "is a curve" in call.refused(*report, "--public")


def refused(call: Caller, tmp_path: Path, *arguments: object, code: int = 2) -> str:
    """Refused, and nothing was spent or written."""
    sentence = call.refused(*arguments, code=code)
    assert not list(tmp_path.glob("sweep/points/*"))
    return sentence


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--epsilon", 1], "nothing to vary"),
        (["--over", "method.steps=2"], "--epsilon"),
        (["--epsilon", 1, "--over", "method.stepps=2,3"], "unknown key 'method.stepps'"),
        (["--epsilon", 1, "--over", "queries=2,3"], "'queries' is unknown; pass epsilon, delta or a setting"),
        (["--epsilon", 1, "--over", "method.steps=2,many"], "method.steps"),
        (["--over", "epsilon=1,-1"], "-1"),
        (["--epsilon", 1, "--over", "method.steps"], "not of the form"),
        (["--epsilon", 1, "--over", "method.steps=2", "--metrics", "beauty"], "beauty"),
        (["--epsilon", 1, "--over", "method.steps=2", "--metrics", "fid"], "2049"),
        (["--epsilon", 1, "--over", "method.steps=2", "--repeats", 0], "pass 1 or more"),
        (["--epsilon", 1, "--over", "method.steps=2", "--test-data", "nothing-here"], "nothing-here"),
    ],
)
def test_bad_sweeps_spend_nothing(
    call: Caller, arguments: list[object], tmp_path: Path, more: list[object], words: str
):
    assert words in refused(call, tmp_path, *arguments, *more)


def test_a_point_over_its_budget_refuses_the_whole_sweep(call: Caller, arguments: list[object], tmp_path: Path):
    over = ["--epsilon", 5, "--over", "privacy.noise_multiplier=10,0.1"]
    assert "the point privacy.noise_multiplier=0.1" in refused(call, tmp_path, *arguments, *over, code=3)


def test_more_bad_input(call: Caller, arguments: list[object], data: Path, tmp_path: Path):
    over = [*TEN, "--over", "method.steps=2"]
    out = ["--out", tmp_path / "sweep"]
    assert "--data is needed" in call.refused("curve", "dp-merf", *over, *out)
    assert "2 methods" in call.refused("curve", "dp-merf", "gs-wgan", "--data", data, *over, *out)
    assert "'dp-nerf' is unknown" in call.refused("curve", "dp-nerf", "--data", data, *over, *out)
    assert call(*arguments, *over).code == 0
    other = [60 if part == 90 else part for part in arguments]
    assert "holds a sweep with samples 90, not 60" in call.refused(*other, *over)
    assert "with config" in call.refused(*arguments, *over, "--set", "method.learning_rate=0.5")
    with np.load(data) as archive:
        changed = dict(archive)
    changed["x_train"] = changed["x_train"][::-1]
    np.savez(data, **changed)
    assert "other data of the same name" in call.refused(*arguments, *TEN, "--over", "method.steps=4")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.json").write_text("{}")
    taken = [tmp_path / "taken" if part == tmp_path / "sweep" else part for part in arguments]
    assert "holds other files" in call.refused(*taken, *over)


def test_data_without_labels_are_refused_before_anything_is_spent(call: Caller, tmp_path: Path):
    np.savez(tmp_path / "plain.npz", x_train=np.zeros((20, 8, 8), np.uint8), x_test=np.zeros((20, 8, 8), np.uint8))
    sweep = ["curve", "dp-merf", "--data", tmp_path / "plain.npz", "--records", 20, "--declare", "unlabelled=true"]
    over = ["--epsilon", 1, "--delta", 1e-5, "--over", "method.steps=2", "--out", tmp_path / "sweep"]
    assert "an evaluation needs them" in refused(call, tmp_path, *sweep, *over)
