"""The command that a report shows: it works, and it says nothing about where the data lie."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from understudy.cli.main import run as run_command
from understudy.data.domain import Domain
from understudy.experiments.reproduce import changed_settings, train_command
from understudy.release.release import load
from understudy.report.report import write_report
from understudy.runs.description import read_description
from understudy.runs.folder import RunFolder

TINY = ["method.frequencies=20", "method.steps=4", "method.batch=20", "method.width=4", "method.latent=4"]


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def test_data_known_by_name_are_named_and_others_are_not():
    domain = Domain(shape=(1, 8, 8), classes=10, nominal_records=1437)
    budget, config = (1.0, 1e-5), {"method": {"steps": 7}, "runtime": {"device": "cuda"}}
    known = words(train_command("dp-merf", budget, domain, config, "digits"))
    expected = "understudy train dp-merf --data digits --epsilon 1 --delta 1e-05 --set method.steps=7 --out runs/again"
    assert known == shlex.split(expected)
    other = words(train_command("dp-merf", budget, domain, config, "patients of ward 7"))
    assert "patients" not in " ".join(other)
    assert other[3:10] == ["--data", "YOUR-DATA", "--records", "1437", "--classes", "10", "--shape"]


def test_hostile_class_names_are_quoted():
    names = ("$(rm -rf /)", "`id`; echo")
    domain = Domain(shape=(3, 8, 8), classes=2, class_names=names, nominal_records=9, value_range=(0.0, 1.0))
    command = words(train_command("dp-merf", None, domain, {}, None))
    assert 'class_names=["$(rm -rf /)", "`id`; echo"]' in command
    assert "value_range=0,1" in command
    assert "--epsilon" not in command


def test_only_settings_that_differ_from_the_defaults_are_named():
    assert changed_settings("dp-merf", {"method": {"steps": 7}, "runtime": {"precision": "fp32"}}) == [
        ("method.steps", 7)
    ]
    assert changed_settings("unknown-method", {"a": {"b": None}}) == [("a.b", None)]


@pytest.mark.slow
def test_the_command_on_the_page_plans_the_same_accesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(0)
    archive = tmp_path / "secret-place.npz"
    np.savez(archive, images=random.integers(0, 256, (40, 8, 8), dtype=np.uint8), labels=np.arange(40) % 3)
    settings = [part for setting in TINY for part in ("--set", setting)]
    declared = ["--records", "40", "--declare", "class_names=a b,c,d"]
    train = ["train", "dp-merf", "--data", str(archive), *declared, "--epsilon", "10", "--delta", "1e-5", *settings]
    assert run_command([*train, "--out", str(tmp_path / "first")]) == 0
    text = write_report([tmp_path / "first"], tmp_path / "report.html").read_text()
    assert "secret-place" not in text

    shown = words(html.unescape(re.search(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)[1]))
    monkeypatch.chdir(tmp_path)
    again = [str(archive) if word == "YOUR-DATA" else word for word in shown[1:]]
    assert run_command(again) == 0
    first, second = load(tmp_path / "first").certificate, load(tmp_path / "runs" / "again").certificate
    assert first.events == second.events
    descriptions = [read_description(RunFolder(tmp_path / place)) for place in ("first", "runs/again")]
    assert descriptions[0].config == descriptions[1].config
    assert descriptions[0].domain == descriptions[1].domain
