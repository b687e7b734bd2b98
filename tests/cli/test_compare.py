"""``understudy compare``: comparisons that finish, continue, grow, run side by side, or are refused before spending."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from understudy.cli.main import INTERRUPTED
from understudy.errors import CheckError, InterruptedRun
from understudy.experiments import worker
from understudy.experiments.points import Task
from understudy.privacy import accounting
from understudy.privacy.ledger import Ledger
from understudy.progress import Audience
from understudy.release.verify import verify
from understudy.runs.description import read_description
from understudy.runs.folder import RunFolder

from .calling import Caller

STAMP = "not private: do not publish"
TINY = (
    "dp-merf:privacy.noise_multiplier=2",  # nothing to calibrate
    "dp-hp:privacy.noise_multiplier=2",
    "dp-merf:method.frequencies=20",
    "dp-merf:method.batch=20",
    "dp-merf:method.width=4",
    "dp-merf:method.steps=3",
    "dp-hp:method.steps=3",
    "dp-hp:method.batch=20",
    "gan:method.width=2",
    "gan:privacy.steps=4",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Training and test images of 8x8 pixels in three classes."""
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
    declared = ["--records", 600, "--classes", 3, "--epsilon", 10, "--device", "cpu"]
    measured = ["--metrics", "logistic_regression", "--samples", 90]
    return ["compare", "--data", data, *declared, *measured, "--out", tmp_path / "all"]


def tiny(*methods: str) -> list[object]:
    """The methods, with settings that make them quick; a setting is for a method that is there."""
    texts = [text for text in TINY if ":" not in text or text.split(":")[0] in methods]
    return ["--methods", ",".join(methods), *(part for text in texts for part in ("--set", text))]


def test_methods_are_trained_certified_scored_and_shown_side_by_side(
    call: Caller, arguments: list[object], tmp_path: Path
):
    answer = call(*arguments, *tiny("dp-merf", "dp-hp"), "--json")
    assert answer.code == 0, answer.err
    result, folder = answer.json(), tmp_path / "all"
    assert [row["method"] for row in result["rows"]] == ["dp-merf", "dp-hp"]
    assert result["stamp"] == STAMP
    events = []
    for row in result["rows"]:
        assert verify(folder / "runs" / row["folder"]).passed
        assert 0 <= row["figures"]["logistic_regression"] <= 1
        events += Ledger.open(folder / "runs" / row["folder"] / "ledger.jsonl").events()
    (total,) = result["totals"]
    assert total["runs"] == 2
    assert total["epsilon"] == accounting.certified_epsilon(events, 1e-5)
    assert total["epsilon"] > max(row["epsilon"] for row in result["rows"]), "runs on the same data add up"
    assert json.loads((folder / "compare.json").read_text()) == {key: result[key] for key in result if key != "out"}
    page = (folder / "compare.html").read_text()
    for words in (STAMP, "Side by side", "add up", "dp-merf", "dp-hp"):
        assert words in page
    for text in (page, (folder / "compare.json").read_text(), (folder / "comparison.json").read_text()):
        assert "ward-7.npz" not in text
        assert "secret" not in text


@pytest.mark.slow
def test_a_copied_comparison_goes_on_only_if_it_is_declared_to_be_moved(
    call: Caller, arguments: list[object], tmp_path: Path
):
    assert call(*arguments, *tiny("dp-merf", "dp-hp")).code == 0
    copy = shutil.copytree(tmp_path / "all", tmp_path / "copy")
    shutil.rmtree(copy / "runs" / "dp-hp" / "release")
    elsewhere = [*arguments[:-1], copy, *tiny("dp-merf", "dp-hp")]
    refused = call(*elsewhere)
    assert refused.code == 2
    assert "--moved" in refused.err
    accepted = call(*elsewhere, "--moved")
    assert accepted.code == 0, accepted.err
    assert verify(copy / "runs" / "dp-hp").passed


@pytest.mark.slow
def test_side_by_side_in_processes_of_their_own(
    call: Caller, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.argv", ["understudy", "compare", "--methods", "dp-merf,dp-hp"])
    answer = call(*arguments, *tiny("dp-merf", "dp-hp"), "--jobs", 2, "--json")
    assert answer.code == 0, answer.err
    assert len(answer.json()["rows"]) == 2
    for name in ("dp-merf", "dp-hp"):
        assert verify(tmp_path / "all" / "runs" / name).passed
        command = read_description(RunFolder(tmp_path / "all" / "runs" / name)).command
        assert command == "understudy compare --methods dp-merf,dp-hp", "as where nothing runs side by side"
        assert "Traceback" not in (tmp_path / "all" / "runs" / f"{name}.log").read_text()


def test_a_method_that_breaks_down_is_named_and_the_others_are_shown(
    call: Caller, arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    train = worker.bring_to_end

    def breaks(task: Task, audience: Audience) -> None:
        if task.name == "dp-hp":
            raise CheckError("votes: no consensus")
        train(task, audience)

    monkeypatch.setattr(worker, "bring_to_end", breaks)
    answer = call(*arguments, *tiny("dp-hp", "dp-merf"))
    assert answer.code == 1
    assert "broke down: dp-hp: votes: no consensus" in answer.err
    result = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert [row["method"] for row in result["rows"]] == ["dp-merf"]
    assert result["problems"] == {"dp-hp": "votes: no consensus"}


@pytest.mark.slow
def test_an_interrupted_comparison_says_how_to_continue(
    call: Caller, arguments: list[object], monkeypatch: pytest.MonkeyPatch
):
    train = worker.bring_to_end

    def stops(task: Task, audience: Audience) -> None:
        if task.name == "dp-hp":
            raise InterruptedRun("run: interrupted")
        train(task, audience)

    monkeypatch.setattr(worker, "bring_to_end", stops)
    answer = call(*arguments, *tiny("dp-merf", "dp-hp"))
    assert answer.code == INTERRUPTED
    assert "interrupted at dp-hp; run the same command again" in answer.err
    monkeypatch.undo()
    again = call(*arguments, *tiny("dp-merf", "dp-hp"))
    assert again.code == 0
    assert "1/1: dp-hp" in again.err
    assert "add up" in again.out
    assert STAMP in again.out


@pytest.mark.parametrize(
    ("more", "words", "code"),
    [
        (["--methods", "dp-merf"], "pass at least two", 2),
        (["--methods", "dp-merf,dp-merf"], "named twice", 2),
        (["--methods", "dp-merf,magic"], "'magic' is unknown", 2),
        (["--methods", "dp-merf,dp-hp", "--set", "gan:method.width=2"], "which is not compared", 2),
        (["--methods", "dp-merf,dp-hp", "--set", "dp-hp:method.stepps=2"], "unknown key 'method.stepps'", 2),
        (["--methods", "dp-merf,dp-hp", "--preset", "gpu"], "not METHOD:NAME", 2),
        (["--methods", "dp-merf,dp-hp", "--preset", "dp-hp:gold"], "preset", 2),
        (["--methods", "dp-merf,dp-hp", "--jobs", 0], "pass 1 or more", 2),
        (["--methods", "dp-merf,dp-hp", "--metrics", "beauty"], "beauty", 2),
        (["--methods", "dp-merf,dp-hp", "--test-data", "nothing-here"], "nothing-here", 2),
        (["--methods", "dp-merf,dp-hp", "--set", "dp-hp:privacy.noise_multiplier=0.1"], "dp-hp costs epsilon", 3),
    ],
)
def test_bad_comparisons_spend_nothing(
    call: Caller, arguments: list[object], tmp_path: Path, more: list[object], words: str, code: int
):
    assert words in call.refused(*arguments, *more, code=code)
    assert not list(tmp_path.glob("all/runs/*"))


@pytest.mark.slow
def test_a_budget_is_needed_and_other_settings_need_another_folder(
    call: Caller, arguments: list[object], tmp_path: Path
):
    without = [part for part in arguments if part not in ("--epsilon", 10)]
    assert "--epsilon" in call.refused(*without, "--methods", "dp-merf,dp-hp")
    assert call(*arguments, *tiny("dp-merf", "dp-hp")).code == 0
    other = call.refused(*arguments, *tiny("dp-merf", "dp-hp"), "--set", "dp-hp:method.steps=9")
    assert "holds dp-hp with config" in other
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x.json").write_text("{}")
    taken = [tmp_path / "taken" if part == tmp_path / "all" else part for part in arguments]
    assert "holds other files" in call.refused(*taken, *tiny("dp-merf", "dp-hp"))


@pytest.mark.parametrize("methods", ["{}", '{"dp-merf": 3}', '{"dp-merf": {"epsilon": 10}}', "[1]"])
def test_a_damaged_description_is_refused_in_one_sentence(
    call: Caller, arguments: list[object], tmp_path: Path, methods: str
):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "comparison.json").write_text(f'{{"methods": {methods}}}')
    assert "not the description of a comparison" in call.refused(*arguments, *tiny("dp-merf", "dp-hp"))


def test_a_folder_of_another_run_is_refused_before_any_method_spends(
    call: Caller, arguments: list[object], tmp_path: Path
):
    """It would be taken for a method of the comparison, whatever it was trained with."""
    (tmp_path / "all" / "runs" / "dp-hp").mkdir(parents=True)
    assert "runs/dp-hp is not of this comparison" in call.refused(*arguments, *tiny("dp-merf", "dp-hp"))
    assert not (tmp_path / "all" / "runs" / "dp-merf").exists()
