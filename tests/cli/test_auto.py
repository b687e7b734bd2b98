"""Without a method: what is asked for, what is said, and what run and certificate are called; and ``--time``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from understudy import progress
from understudy.forecast import seconds_of
from understudy.methods import choice

from .calling import Caller

QUICK = {"method": {"frequencies": 50, "steps": 4, "batch": 10, "width": 4}}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Colour pictures of mixed sizes in two folders."""
    random = np.random.default_rng(0)
    for name in ("healthy", "sick"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for number in range(6):
            pixels = random.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "scans" / name / f"{number}.png")
    return tmp_path / "scans"


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of one candidate that is trained in a moment."""
    run = {"candidate": "quick", "dataset": "public", "device": "cpu", "records": 2000, "classes": 2, "pixels": 784}
    run |= {"epsilon": 3.0, "accuracy": 0.8, "chance": 0.5, "real": 0.9, "seconds": 1.0}
    table = {"candidates": {"quick": {"method": "dp-merf", "preset": None, "config": QUICK}}, "runs": [run]}
    (tmp_path / "table.json").write_text(json.dumps(table))
    known = choice.read_knowledge(tmp_path / "table.json")
    monkeypatch.setattr(choice, "read_knowledge", lambda: known)


@pytest.mark.usefixtures("small_table")
def test_from_a_folder_to_a_verified_release_without_a_method(call: Caller, pictures: Path, tmp_path: Path):
    facts = ["--data", pictures, "--records", 2000, "--classes", 2, "--epsilon", 3, "--device", "cpu"]
    answer = call("train", *facts, "--out", tmp_path / "run", "--json")
    assert answer.json()["method"] == "dp-merf"
    said = answer.err.splitlines()
    assert any(line.startswith("auto chooses dp-merf for images of 32x32 in colour: ") for line in said)
    assert any(line.startswith("pictures are brought to 32x32 in colour") for line in said)
    assert any(line.startswith("delta: 1e-05, a tenth of one over the declared 2,000 records") for line in said)
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (described["method"], described["budget"]["delta"]) == ("dp-merf", 1e-5)
    assert described["domain"]["shape"] == [3, 32, 32]
    assert json.loads((tmp_path / "run" / "release" / "certificate.json").read_text())["method"] == "dp-merf"
    assert call("verify", tmp_path / "run").code == 0
    assert "dpgan was asked for" in call.refused("train", "dpgan", *facts, "--out", tmp_path / "run", "--resume")
    again = call("train", "auto", "--data", pictures, "--out", tmp_path / "run", "--resume", "--json")
    assert again.json()["method"] == "dp-merf"


def test_where_size_or_classes_are_missing_the_error_shows_what_is_there(call: Caller, pictures: Path, tmp_path: Path):
    train = ["train", "--data", pictures, "--epsilon", 3, "--out", tmp_path / "run"]
    both = call.refused(*train)
    assert "records (--records N) and of classes (--classes N" in both
    assert "holds 12 images in 2 sub-folders (healthy, sick)" in both
    assert "becomes public" in both
    assert "classes: " in call.refused(*train, "--records", 10)
    assert "holds 12 images. What" in call.refused(*train, "--classes", 2)
    assert "records (--records N)" in call.refused("train", "dp-merf", *train[1:], "--classes", 2)
    assert "holds 12 images in 2 sub-folders" in call.refused("plan", "--data", pictures, "--epsilon", 3)


def test_what_auto_cannot_take_is_refused_before_anything_is_read(call: Caller, tmp_path: Path):
    train = ["train", "--data", "digits", "--out", tmp_path / "run"]
    assert "--epsilon is needed to choose a method" in call.refused(*train)
    assert "--epsilon is missing" in call.refused(*train, "--delta", 1e-5)
    assert "auto chooses preset and settings too" in call.refused(*train, "--epsilon", 3, "--set", "method.steps=1")
    assert "'soon' is no time to wait" in call.refused(*train, "--epsilon", 3, "--time", "soon")
    assert "leave --time out" in call.refused("train", "dp-merf", *train[1:], "--epsilon", 3, "--time", "20m")
    compare = [
        "compare",
        "--methods",
        "auto,dp-merf",
        "--data",
        "digits",
        "--epsilon",
        1,
        "--out",
        tmp_path / "compared",
    ]
    assert "'auto' is unknown" in call.refused(*compare)


@pytest.mark.usefixtures("small_table")
def test_plan_without_a_method_shows_candidates_and_the_choice(call: Caller, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    facts = ["--records", 2000, "--classes", 2, "--epsilon", 3, "--device", "cpu"]
    answer = call("plan", *facts)
    assert "1/1 candidates planned" in answer.err
    head, row, *_ = answer.out.splitlines()
    assert head.split()[0] == "candidate"
    assert row.split()[:4] == ["->", "quick", "75", "%"]
    result = call("plan", "auto", *facts, "--json").json()
    assert result["chosen"]["method"] == "dp-merf"
    assert result["plan"]["delta"] == 1e-5
    assert [each["candidate"] for each in result["candidates"]] == ["quick"]
    assert "leave --time out" in call.refused("plan", "dp-merf", *facts, "--time", "1h")
    few = call("plan", "--records", 400, "--classes", 2, "--epsilon", 3, "--delta", 0.01, "--device", "cpu").out
    assert "warning: delta: 0.01 times 400 records" in few
    assert "warning: records: 400 are declared; below 500" in few


def test_plan_lists_what_there_is_time_for_before_what_takes_too_long(call: Caller, tmp_path: Path, monkeypatch):
    slow = {"method": "dp-merf", "preset": None, "config": {"method": {"steps": 10**7}}}
    table = {"candidates": {"quick": {"method": "dp-merf", "preset": None, "config": QUICK}, "slow": slow}, "runs": []}
    run = {"dataset": "public", "device": "cpu", "records": 2000, "classes": 2, "pixels": 784, "epsilon": 3.0}
    run |= {"chance": 0.5, "real": 0.9, "seconds": 1.0}
    table["runs"] = [run | {"candidate": "quick", "accuracy": 0.8}, run | {"candidate": "slow", "accuracy": 0.85}]
    (tmp_path / "table.json").write_text(json.dumps(table))
    known = choice.read_knowledge(tmp_path / "table.json")
    monkeypatch.setattr(choice, "read_knowledge", lambda: known)
    answer = call("plan", "--records", 2000, "--classes", 2, "--epsilon", 3, "--time", "1h", "--device", "cpu")
    rows = answer.out.splitlines()[1:3]
    assert rows[0].startswith("->  quick")
    assert rows[1].split()[0] == "slow"
    assert "(too long)" in rows[1]


def test_a_named_method_has_the_usual_delta_too(call: Caller):
    told = call("plan", "dp-merf", "--records", 60_000, "--epsilon", 3).out
    assert "delta: 1.6e-06, a tenth of one over the declared 60,000 records" in told
    assert call("plan", "dp-merf", "--records", 60_000, "--epsilon", 3, "--json").json()["delta"] == 1.6e-6


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("2H", 7200)])
def test_times_are_read_as_people_write_them(text: str, seconds: float):
    assert seconds_of(text) == seconds
