"""``understudy report`` from the command line: real data only where they are asked for, and none of them in public."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .calling import Caller

STAMP = "not private: do not publish"


def test_real_records_are_shown_only_when_the_data_are_named(call: Caller, released: Path, tmp_path: Path):
    random = np.random.default_rng(0)
    images = {f"x_{split}": random.integers(0, 256, (50, 8, 8), dtype=np.uint8) for split in ("train", "test")}
    np.savez(tmp_path / "data.npz", **images, y_train=np.arange(50) % 4, y_test=np.arange(50) % 4)
    to = ["--to", tmp_path / "report.html"]
    assert call("report", released, *to).code == 0
    assert "Nearest neighbours" not in (tmp_path / "report.html").read_text()
    answer = call("report", released, *to, "--data", tmp_path / "data.npz")
    assert answer.code == 0, answer.err
    text = (tmp_path / "report.html").read_text()
    assert "Nearest neighbours" in text
    assert "held-out real" in text
    assert STAMP in text
    assert "leave one of them out" in call.refused("report", released, *to, "--data", "digits", "--public")


def test_data_without_a_held_out_part_do_without_the_comparison(call: Caller, released: Path, tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(50) % 4)
    arguments = ["report", released, "--to", tmp_path / "report.html", "--data", tmp_path / "data.npz"]
    assert call(*arguments, "--json").json() == {"report": str(tmp_path / "report.html")}
    text = (tmp_path / "report.html").read_text()
    assert "median distance, generated" in text
    assert "held-out real" not in text


def test_bad_input_is_one_sentence_and_writes_nothing(call: Caller, released: Path, tmp_path: Path):
    to = ["--to", tmp_path / "report.html"]
    assert "nothing-here" in call.refused("report", released, *to, "--data", tmp_path / "nothing-here")
    (tmp_path / "plain").mkdir()
    assert "holds no release" in call.refused("report", tmp_path / "plain", *to, "--data", "digits")
    (tmp_path / "plain" / "curve.json").write_text("{}")
    assert "is not a curve" in call.refused("report", tmp_path / "plain", *to)
    assert not (tmp_path / "report.html").exists()
