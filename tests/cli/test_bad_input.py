"""Bad input: one clear sentence on stderr and exit code 2, before anything is trained or spent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ..release.building import make_release
from .calling import Caller

BUDGET = ["--epsilon", 10, "--delta", 1e-5]


def train(call: Caller, tmp_path: Path, data: object, *more: object, code: int = 2) -> str:
    """Train in vain; nothing may be left behind that looks like a run."""
    sentence = call.refused("train", "dp-merf", "--data", data, "--out", tmp_path / "run", *more, code=code)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()
    return sentence


def picture(path: Path, size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(path)


def test_missing_path(call: Caller, tmp_path: Path):
    assert "nothing" in train(call, tmp_path, tmp_path / "nothing", *BUDGET, "--records", 10)


def test_empty_folder(call: Caller, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "no PNG or JPEG" in train(call, tmp_path, tmp_path / "empty", *BUDGET, "--records", 10)


def test_corrupt_image(call: Caller, tmp_path: Path):
    picture(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "b.png").write_bytes(b"\x89PNG not at all")
    sentence = train(call, tmp_path, tmp_path / "images", *BUDGET, "--records", 10)
    assert "b.png" in sentence
    assert "`understudy data check` lists all such files" in sentence


def test_mixed_sizes(call: Caller, tmp_path: Path):
    picture(tmp_path / "images" / "a.png")
    picture(tmp_path / "images" / "b.png", (9, 9))
    assert "9x9" in train(call, tmp_path, tmp_path / "images", *BUDGET, "--records", 10)


def test_labels_outside_the_declared_classes(call: Caller, tmp_path: Path, archive: Path):
    assert "classes=2" in train(call, tmp_path, archive, *BUDGET, "--records", 40, "--classes", 2)


def test_nan(call: Caller, tmp_path: Path):
    images = np.zeros((5, 8, 8), dtype=np.float32)
    images[3, 2, 1] = np.nan
    np.savez(tmp_path / "nan.npz", images=images)
    declared = ["--records", 5, "--declare", "value_range=0,1"]
    assert "NaN in record 3" in train(call, tmp_path, tmp_path / "nan.npz", *BUDGET, *declared)


def test_undeclared_data(call: Caller, tmp_path: Path, archive: Path):
    assert "records" in train(call, tmp_path, archive, *BUDGET, "--classes", 3)
    assert "classes" in train(call, tmp_path, archive, *BUDGET, "--records", 40)


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "inf"])
def test_epsilon_that_is_none(call: Caller, tmp_path: Path, archive: Path, epsilon: str):
    assert "epsilon" in train(call, tmp_path, archive, "--epsilon", epsilon, "--delta", 1e-5)
    assert "epsilon" in call.refused("plan", "dp-merf", "--records", 10, "--epsilon", epsilon, "--delta", 1e-5)


@pytest.mark.parametrize("delta", ["0", "1", "1.5", "-1e-5", "nan"])
def test_delta_that_is_none(call: Caller, tmp_path: Path, archive: Path, delta: str):
    assert "delta" in train(call, tmp_path, archive, "--epsilon", 10, "--delta", delta)
    assert "delta" in call.refused("plan", "dp-merf", "--records", 10, "--epsilon", 10, "--delta", delta)


def test_a_budget_is_needed(call: Caller, tmp_path: Path, archive: Path):
    assert "--epsilon is needed to start a run" in train(call, tmp_path, archive)


def test_unknown_method(call: Caller, tmp_path: Path, archive: Path):
    arguments = ["train", "dp-nerf", "--data", archive, "--out", tmp_path / "run", *BUDGET]
    assert "'dp-nerf' is unknown; choose one of " in call.refused(*arguments)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("method.stepps=3", "unknown key 'method.stepps'"),
        ("metod.steps=3", "unknown key 'metod'"),
        ("method.steps=many", "method.steps"),
        ("method.steps", "not of the form"),
        ("method.steps.more=1", "method.steps"),
        ("privacy.noise_multiplier=-1", "privacy.noise_multiplier"),
        ("runtime.device=tpu", "runtime.device"),
    ],
)
def test_unknown_keys_and_values(call: Caller, tmp_path: Path, archive: Path, setting: str, words: str):
    assert words in train(call, tmp_path, archive, *BUDGET, "--set", setting)


def test_unknown_keys_of_a_file(call: Caller, tmp_path: Path, archive: Path):
    (tmp_path / "config.json").write_text('{"method": {"stepps": 1}}')
    assert "stepps" in train(call, tmp_path, archive, *BUDGET, "--config", tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in train(call, tmp_path, archive, *BUDGET, "--config", tmp_path / "config.json")
    assert "none.toml" in train(call, tmp_path, archive, *BUDGET, "--config", tmp_path / "none.toml")
    assert "ends in '.yaml'" in train(call, tmp_path, archive, *BUDGET, "--config", tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ("colour=blue", "colour: there is no such option; known are "),
        ("value_range", "key=value"),
        ("value_range=1,0", "value_range"),
        ("channels=2", "channels"),
        ("window=40", "window: ['40'] has too few values"),
    ],
)
def test_unknown_declarations(call: Caller, tmp_path: Path, archive: Path, declaration: str, words: str):
    assert words in train(call, tmp_path, archive, *BUDGET, "--records", 40, "--classes", 3, "--declare", declaration)


def test_unknown_shapes(call: Caller, tmp_path: Path, archive: Path):
    declared = ["--records", 40, "--classes", 3]
    assert "1x28x28" in train(call, tmp_path, archive, *BUDGET, *declared, "--shape", "large")
    assert "1000x1000" in train(call, tmp_path, archive, *BUDGET, *declared, "--shape", "1000x1000")
    plan = ["plan", "dp-merf", "--records", 10, *BUDGET, "--shape"]
    assert "4 channels" in call.refused(*plan, "4x28x28")
    assert "7x7" in call.refused(*plan, "7x7")
    assert "'0x28x28' is not of the form channels x height x width" in call.refused(*plan, "0x28x28")


def test_people_who_are_not_counted_are_not_planned_as_records(call: Caller):
    plan = ["plan", "dp-merf", "--records", 10, *BUDGET, "--declare", "person=folder:1"]
    assert "nominal_people" in call.refused(*plan)


def test_output_that_cannot_be_written(call: Caller, train_arguments: list[object], tmp_path: Path):
    (tmp_path / "file").write_text("")
    arguments = [tmp_path / "file" / "run" if part == tmp_path / "run" else part for part in train_arguments]
    assert "cannot be written" in call.refused(*arguments)


def test_a_folder_that_holds_something_else_is_no_place_for_a_run(
    call: Caller, train_arguments: list[object], tmp_path: Path
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "scan.png").touch()
    assert "holds other files already; choose another folder" in call.refused(*train_arguments)
    assert [entry.name for entry in (tmp_path / "run").iterdir() if entry.name != "lock"] == ["scan.png"]


def test_a_release_takes_the_place_of_no_other(call: Caller, train_arguments: list[object], tmp_path: Path):
    runs = [tmp_path / "first", tmp_path / "second"]
    for run in runs:
        arguments = list(train_arguments)
        arguments[arguments.index("--out") + 1] = run
        assert call(*arguments).code == 0
    assert call("release", runs[0], "--to", tmp_path / "released").code == 0
    kept = (tmp_path / "released" / "certificate.json").read_bytes()
    assert "holds another release" in call.refused("release", runs[1], "--to", tmp_path / "released")
    assert call("release", runs[0], "--to", tmp_path / "released").code == 0, "the same once more"
    assert (tmp_path / "released" / "certificate.json").read_bytes() == kept


def test_samples_do_not_go_into_a_release(call: Caller, released: Path):
    sentence = call.refused("sample", released, "-n", 3, "--to", released / "x.npz")
    assert "is a release, and one more file would spoil it" in sentence
    assert call("verify", released).code == 0


def test_a_release_without_labels_is_not_scored_as_if_the_data_had_none(call: Caller, tmp_path: Path):
    released = make_release(classes=None).save(tmp_path / "plain")
    sentence = call.refused("evaluate", released, "--data", "digits")
    assert f"labels: the release in {released} has none" in sentence
    assert "`annotate`" in sentence


def test_fewer_nominal_records_than_subsets(call: Caller):
    plan = ["plan", "gs-wgan", "--records", 10, *BUDGET, "--set", "privacy.subsets=1000"]
    assert "subsets: 1000" in call.refused(*plan)


def test_a_budget_that_cannot_be_met_spends_nothing(call: Caller, tmp_path: Path, archive: Path):
    settings = ["--records", 40, "--classes", 3, "--set", "privacy.noise_multiplier=0.1"]
    sentence = train(call, tmp_path, archive, *BUDGET, *settings, code=3)
    assert "only 10 is allowed" in sentence
    assert not (tmp_path / "run").exists()
    plan = call("plan", "dp-merf", "--records", 40, *BUDGET, "--set", "privacy.noise_multiplier=0.1", "--json")
    assert plan.code == 3
    assert plan.json()["affordable"] is False


def test_usage_errors(call: Caller, released: Path):
    assert "No such option" in call.refused("train", "--nonsense")
    assert "No such command" in call.refused("trian")
    assert "--to" in call.refused("sample", released, "-n", 3)
    assert "--count" in call.refused("sample", released, "-n", "many", "--to", "x.npz")
    group = call("data")
    assert "Usage" in group.out + group.err


@pytest.mark.parametrize("command", ["sample", "evaluate", "report", "verify", "release"])
def test_a_release_that_is_not_there(call: Caller, tmp_path: Path, command: str):
    more = {"sample": ["-n", 1, "--to", tmp_path / "x.npz"], "evaluate": ["--data", "digits"]}.get(command, [])
    if command == "report":
        more = ["--to", tmp_path / "report.html"]
    assert "nothing" in call.refused(command, tmp_path / "nothing", *more)


def test_bad_samples(call: Caller, released: Path, tmp_path: Path):
    to = ["--to", tmp_path / "x.npz"]
    assert "found 9" in call.refused("sample", released, "-n", 1, "--labels", "1,9", *to)
    assert "whole numbers" in call.refused("sample", released, "-n", 1, "--labels", "one", *to)
    assert "-3 images" in call.refused("sample", released, "-n", "-3", *to)
    assert ".gif" in call.refused("sample", released, "-n", 1, "--to", tmp_path / "x.gif")
    (tmp_path / "file").write_text("")
    assert "could not be written" in call.refused("sample", released, "-n", 1, "--to", tmp_path / "file" / "x.npz")
    assert "could not be written" in call.refused("sample", released, "-n", 1, "--to", tmp_path / "file" / "pngs")


def test_unknown_metrics(call: Caller, released: Path):
    assert "beauty" in call.refused("evaluate", released, "--data", "digits", "--metrics", "beauty")
    assert "samples: 0 images" in call.refused("evaluate", released, "--data", "digits", "--samples", 0)
