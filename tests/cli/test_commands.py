"""Each command on a good day: what it prints, what it writes, and that ``--json`` is one object."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from understudy.cli.main import main

from ..helpers.workers import workers_here  # noqa: F401 (a fixture)
from ..release.building import edit_json
from .calling import Caller

PLAN = ["plan", "dp-merf", "--records", 60000, "--epsilon", 10, "--delta", 1e-5]


def test_no_arguments_show_the_help(call: Caller):
    answer = call()
    assert answer.code == 0
    assert "Usage" in answer.out


def test_main_exits_with_the_code(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["verify", "nothing-here"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("understudy: ")


def test_methods(call: Caller):
    assert "dp-merf" in call("methods").out
    assert "dp-merf" in [method["name"] for method in call("methods", "--json").json()["methods"]]


def test_plan(call: Caller):
    answer = call(*PLAN)
    assert answer.code == 0
    for words in ("noise multiplier", "epsilon", "steps", "memory", "time", "nominal_records: 60000"):
        assert words in answer.out
    plan = call(*PLAN, "--json", "--classes", 0, "--shape", "3x32x32").json()
    assert plan["epsilon"] <= 10
    assert plan["noise_multiplier"] > 0
    assert "shape: 3x32x32" in plan["assumed_public"]
    assert "classes: unlabelled" in plan["assumed_public"]
    assert plan["events"][0]["mechanism"] == "gaussian"


def test_a_plan_with_hardly_any_noise_is_more_than_can_be_accounted(call: Caller):
    hopeless = ["plan", "gs-wgan", "--records", 60000, "--epsilon", 1e9, "--delta", 1e-5]
    hopeless += ["--set", "privacy.noise_multiplier=0.001"]
    answer = call(*hopeless)
    assert answer.code == 3
    assert "more than can be accounted of 1e+09" in answer.out
    found = call(*hopeless, "--json").json()
    assert (found["epsilon"], found["affordable"]) == (None, False)


def test_a_delta_that_may_expose_a_record_is_remarked(call: Caller):
    plan = ["plan", "dp-merf", "--records", 1000, "--epsilon", 10, "--delta"]
    (remark,) = call(*plan, 1e-3, "--json").json()["remarks"]
    assert remark.startswith("delta: 0.001 times 1000 records is 1 or more")
    assert call(*plan, 9e-4, "--json").json()["remarks"] == []


def test_a_plan_with_data_is_that_of_training_with_the_same_words(call: Caller, archive: Path):
    words = ["--data", archive, "--records", 40, "--classes", 3, "--epsilon", 10, "--delta", 1e-5]
    words += ["--declare", "class_names=a,b,c", "--device", "cpu"]
    plan = call("plan", "dp-merf", *words, "--json").json()
    assert "shape: 1x8x8" in plan["assumed_public"], "as found in the data"
    assert "class names: a, b, c" in plan["assumed_public"]
    assert [sentence.partition(":")[0] for sentence in plan["warnings"]] == ["records"]
    assert "warning" in call("plan", "dp-merf", *words).out
    named = call("plan", "dp-merf", "--data", "digits", "--epsilon", 10, "--delta", 1e-5, "--json").json()
    assert "nominal_records: 1437" in named["assumed_public"]


def test_a_plan_without_data_takes_the_same_declarations(call: Caller):
    plan = call(*PLAN, "--declare", "class_names=cat,dog", "--shape", "3x48x48", "--json").json()
    assert "classes: 2" in plan["assumed_public"]
    assert "class names: cat, dog" in plan["assumed_public"]
    assert plan["warnings"][0].startswith("images: 3x48x48 is more than dp-merf was measured on (3x32x32)")
    assert "classes: unlabelled" in call(*PLAN, "--declare", "unlabelled=true", "--json").json()["assumed_public"]
    assert "records: the number of records was not declared" in call.refused("plan", *PLAN[1:2], *PLAN[4:])


def test_plan_with_settings(call: Caller, tmp_path: Path):
    (tmp_path / "config.toml").write_text("[method]\nsteps = 7\n")
    plan = call(*PLAN, "--config", tmp_path / "config.toml", "--set", "method.batch=11", "--json").json()
    assert plan["steps"] == 7
    assert plan["config"]["method"]["batch"] == 11


def test_sample_in_every_format(call: Caller, released: Path, tmp_path: Path):
    answer = call("sample", released, "-n", 9, "--labels", "1,3", "--to", tmp_path / "out.npz", "--seed", 4)
    assert answer.code == 0
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["images"].shape == (9, 8, 8)
        assert set(archive["labels"]) <= {1, 3}
    report = call("sample", released, "-n", 5, "--to", tmp_path / "pngs", "--json").json()
    assert report["count"] == 5
    assert len(list((tmp_path / "pngs").rglob("*.png"))) == 5
    assert call("sample", released, "-n", 5, "--to", tmp_path / "out.parquet").code == 0
    assert call("sample", released, "-n", 5, "--temperature", 0.5, "--to", tmp_path / "typical.npz").code == 0
    refused = call.refused("sample", released, "-n", 5, "--temperature", 2, "--to", tmp_path / "wild.npz")
    assert "temperature: 2 was asked for; pass more than 0 and at most 1" in refused


def test_sample_in_several_processes(call: Caller, released: Path, tmp_path: Path, workers_here: list[str]):  # noqa: F811
    for number in (1, 2):
        command = ["sample", released, "-n", 9, "--labels", "1,3", "--to", tmp_path / f"{number}.npz", "--seed", 4]
        assert call(*command, "--processes", number).code == 0
    assert len(workers_here) == 3
    with np.load(tmp_path / "1.npz") as one, np.load(tmp_path / "2.npz") as two:
        assert np.array_equal(one["images"], two["images"])
        assert np.array_equal(one["labels"], two["labels"])
        assert set(one["labels"]) == {1, 3}
    refused = call.refused("sample", released, "-n", 5, "--processes", 0, "--to", tmp_path / "none.npz")
    assert "processes: 0; pass a number from 1 to 1024" in refused
    assert not (tmp_path / "none.npz").exists()


def test_verify_ends_with_the_line(call: Caller, released: Path):
    answer = call("verify", released)
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == "epsilon 4.3772 (delta 1e-05) verified"
    assert "not proven" in answer.out
    assert call("verify", released, "--json").json()["passed"] is True


def test_verify_fails_with_exit_code_one(call: Caller, released: Path):
    edit_json(released / "certificate.json", lambda certificate: certificate["guarantees"][0].update(epsilon=1.0))
    sentence = call.refused("verify", released, code=1)
    assert "is refused: guarantee 1: pld" in sentence
    answer = call("verify", released, "--json")
    assert answer.code == 1
    assert answer.json()["passed"] is False
    assert "verified" not in call("verify", released).out.splitlines()[-1]


def test_report(call: Caller, released: Path, tmp_path: Path):
    answer = call("report", released, released, "--to", tmp_path / "report.html", "--json")
    assert answer.json() == {"report": str(tmp_path / "report.html")}
    assert "2 generators compared" in (tmp_path / "report.html").read_text()


def test_an_unexpected_system_error_is_one_sentence(call: Caller, released: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/file")

    monkeypatch.setattr("understudy.release.release.load", fail)
    assert "/some/file: No space left" in call.refused("sample", released, "-n", 1, "--to", "out.npz")


def test_an_interrupt_is_one_sentence(call: Caller, released: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("understudy.release.release.load", fail)
    call.refused("sample", released, "-n", 1, "--to", "out.npz", code=130)
