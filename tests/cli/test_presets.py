"""Presets, and methods without a budget, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..helpers.cases import NOT_PRIVATE
from .calling import Caller

PLAN = ("plan", "dpgan", "--records", 60_000, "--epsilon", 10, "--delta", 1e-5)


def reference(archive: Path, out: Path) -> list[object]:
    """The training of the method that is not private, in a moment."""
    groups = NOT_PRIVATE["gan"].config()
    settings = [f"{group}.{key}={value}" for group, values in groups.items() for key, value in values.items()]
    declared = ["--records", 40, "--classes", 3]
    return ["train", "gan", "--data", archive, "--out", out, *declared, *(f"--set={text}" for text in settings)]


def test_a_plan_follows_a_preset_and_settings_are_laid_over_it(call: Caller):
    plan = call(*PLAN, "--preset", "paper-eps1-adaptive", "--json").json()
    assert (plan["epsilon"], plan["noise_multiplier"], plan["steps"]) == (
        pytest.approx(0.9204, abs=1e-3),
        14.0,
        165_000,
    )
    changed = call(*PLAN, "--preset", "paper-eps1-adaptive", "--set", "privacy.steps=1000", "--json").json()
    assert (changed["noise_multiplier"], changed["steps"]) == (14.0, 1000)
    assert changed["config"]["method"]["schedule"]["threshold"] == 0.7


def test_a_preset_below_a_config_file(call: Caller, tmp_path: Path):
    (tmp_path / "mine.toml").write_text("[method.schedule]\ngrace = 50\n")
    plan = call(*PLAN, "--preset", "paper-eps1-adaptive", "--config", tmp_path / "mine.toml", "--json").json()
    schedule = plan["config"]["method"]["schedule"]
    assert (schedule["grace"], schedule["threshold"]) == (50, 0.7)


def test_an_unknown_preset_is_refused(call: Caller, archive: Path, tmp_path: Path):
    words = "preset: 'large' is unknown for dpgan; choose one of gpu, gpu-eps1, paper-eps1, "
    assert words in call.refused(*PLAN, "--preset", "large")
    data = ["--data", archive, "--records", 40, "--classes", 3, "--epsilon", 10, "--delta", 1e-5]
    assert words in call.refused("train", "dpgan", *data, "--out", tmp_path / "run", "--preset", "large")
    assert not (tmp_path / "run").exists()


def test_methods_are_listed_with_their_presets_and_whether_they_are_private(call: Caller):
    methods = {row["name"]: row for row in call("methods", "--json").json()["methods"]}
    assert methods["gan"]["private"] is False
    assert methods["dpgan"]["private"] is True
    assert "paper-eps10-adaptive" in methods["dpgan"]["presets"]
    text = call("methods").out
    assert "paper-eps10-adaptive" in text
    assert "not private" in text


def test_a_method_without_privacy_is_planned_without_a_budget_and_says_so(call: Caller):
    answer = call("plan", "gan", "--records", 1000)
    assert answer.code == 0
    assert "none: this method is not private" in answer.out
    plan = call("plan", "gan", "--records", 1000, "--json").json()
    assert (plan["epsilon"], plan["delta"], plan["events"]) == (None, None, [])


def test_a_budget_for_it_is_refused_and_half_a_budget_for_any(call: Caller):
    budget = ("--epsilon", 10, "--delta", 1e-5)
    assert "gan is not private, so it keeps no budget" in call.refused("plan", "gan", "--records", 10, *budget)
    assert "--epsilon is missing" in call.refused("plan", "dpgan", "--records", 10, "--delta", 1e-5)
    assert "--epsilon is missing" in call.refused("plan", "gan", "--records", 10, "--delta", 1e-5)
    assert "--epsilon is needed" in call.refused("plan", "dpgan", "--records", 10)


def test_its_release_is_announced_as_not_private_fails_to_verify_and_is_not_copied(
    call: Caller, archive: Path, tmp_path: Path
):
    run = tmp_path / "run"
    answer = call(*reference(archive, run))
    assert answer.code == 0, answer
    assert answer.out.startswith("not private")
    assert "guarantee: none" in call.refused("verify", run, code=1)
    assert "not private" in call.refused("release", run, "--to", tmp_path / "published")
    assert not (tmp_path / "published").exists()
    assert call("sample", run, "-n", 10, "--to", tmp_path / "samples.npz").code == 0


def test_its_json_holds_no_figures_but_the_stamp(call: Caller, archive: Path, tmp_path: Path):
    result = call(*reference(archive, tmp_path / "run"), "--json").json()
    assert (result["epsilon"], result["delta"]) == (None, None)
    assert result["not_private"].startswith("not private")


def test_a_resumed_run_keeps_its_preset(call: Caller, archive: Path, tmp_path: Path):
    call(*reference(archive, tmp_path / "run"))
    again = ["train", "gan", "--data", archive, "--out", tmp_path / "run", "--resume"]
    assert "leave --preset" in call.refused(*again, "--preset", "paper")
    assert call(*again).code == 0
