"""``understudy data account`` and ``--account``, as the owner of some data uses them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from understudy.runs.accounts import accounts_folder, read_account

from .conftest import TINY


@pytest.fixture
def arguments(train_arguments):
    return [*train_arguments, "--set", "privacy.noise_multiplier=0.6"]  # epsilon 8.3, and nothing to calibrate


@pytest.fixture
def opened(call):
    assert call("data", "account", "cells", "--epsilon", 12, "--delta", 1e-5, "--unit", "record").code == 0


def test_an_account_is_opened_shown_and_listed(call):
    assert "no account is open here" in call("data", "accounts").out
    told = call("data", "account", "cells", "--epsilon", 10, "--delta", 1e-5, "--unit", "record")
    assert told.code == 0
    assert "cells: epsilon 10 at delta 1e-05 for all runs together (unit record, add-remove, filter renyi" in told.out
    assert "taken by 0 runs: epsilon 0" in told.out
    assert call("data", "account", "cells").out == told.out
    assert call("data", "account", "people", "--epsilon", 3, "--delta", 1e-6, "--unit", "person", "--json").json() == {
        "name": "people", "opened": read_account("people").opened, "epsilon": 3.0, "delta": 1e-6, "unit": "person",
        "adjacency": "add-remove", "filter": "renyi", "order": 8.9, "total_epsilon": 0.0, "total_delta": 0.0,
        "room_epsilon": 3.0, "runs": [],
    }  # fmt: skip
    listed = call("data", "accounts", "--json").json()
    assert [row["name"] for row in listed["accounts"]] == ["cells", "people"]
    assert call("data", "accounts").out.count("left: one more run of about epsilon") == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cells"], "account: cells is not open here"),
        (["cells", "--epsilon", 10], "budget: --delta is missing"),
        (["cells", "--epsilon", -1, "--delta", 1e-5], "epsilon: -1.0 is not a positive finite number"),
        (["a b", "--epsilon", 10, "--delta", 1e-5], "account: 'a b' is no name"),
        (["cells", "--epsilon", 10, "--delta", 1e-5, "--unit", "pixel"], "--unit: 'pixel' is unknown"),
        (["cells", "--filter", "sum"], "account: --filter is set when one is opened"),
    ],
)
def test_bad_input_is_one_sentence(call, arguments, sentence):
    assert sentence in call.refused("data", "account", *arguments)


def test_a_run_is_charged_and_the_next_refused_with_exit_code_3(call, opened, arguments, tmp_path):
    first = call(*arguments, "--account", "cells")
    assert first.code == 0, first.err
    assert "account cells: this run alone at epsilon " in first.out
    place = arguments[arguments.index("--out") + 1]
    again = [str(tmp_path / "second") if part == place else part for part in arguments]
    sentence = call.refused(*again, "--account", "cells", code=3)
    assert "1 more run would bring cells to epsilon" in sentence
    assert "but it allows 12 at 1e-05, and 1 run took" in sentence
    assert not (tmp_path / "second").exists()
    assert str(place) in call("data", "account", "cells").out
    stated = json.loads((place / "release" / "certificate.json").read_text())
    assert (stated["schema"], stated["account"]["name"], stated["account"]["runs"]) == (3, "cells", 1)
    assert "account cells" in (place / "release" / "README.md").read_text()
    past = call(*again, "--json")
    assert past.code == 0
    assert "warning: account: these data went through cells before, which does not count this run" in past.err
    assert "account" not in past.json()


@pytest.mark.slow
def test_a_resumed_run_keeps_its_account(call, opened, arguments):
    assert call(*arguments, "--account", "cells").code == 0
    resumed = [*arguments, "--resume"]
    fixed = ("--set", "--epsilon", "--delta")
    kept = [
        part
        for position, part in enumerate(resumed)
        if part not in fixed and (position == 0 or resumed[position - 1] not in fixed)
    ]
    assert "account: other was asked for, but the run in" in call.refused(*kept, "--account", "other")
    assert call(*kept).code == 0
    assert call(*kept, "--account", "cells", "--json").json()["account"]["runs"] == 1


def test_labelling_needs_no_account(call, released, archive, tmp_path):
    arguments = ("--images", archive, "--to", tmp_path / "labels.csv", "--account", "cells")
    assert "labelling images costs nothing" in call.refused("annotate", released, *arguments)


def test_a_damaged_account_is_listed_as_such_and_the_others_are_shown(call, opened):
    assert call("data", "account", "other", "--epsilon", 1, "--delta", 1e-6).code == 0
    (accounts_folder() / "other.json").write_text("{}")
    listed = call("data", "accounts")
    assert listed.code == 1
    assert "cells: epsilon 12" in listed.out
    assert "other.json" in listed.err
    assert "restore the file" in listed.err


@pytest.mark.slow
def test_a_run_from_before_the_account_is_added_once_and_by_the_filter(call, arguments, tmp_path):
    assert call(*arguments).code == 0
    place = tmp_path / "run"
    certificate = (place / "release" / "certificate.json").read_bytes()
    opened = ("data", "account", "late", "--epsilon", 12, "--delta", 1e-5)
    added = call(*opened, "--add", place, "--json")
    assert added.code == 0, added.err
    assert [run["folder"] for run in added.json()["runs"]] == [str(place)]
    assert added.json()["total_epsilon"] > json.loads(certificate)["guarantees"][0]["epsilon"]  # by the filter alone
    assert call("data", "account", "late", "--add", place, "--json").json() == added.json()
    assert (place / "release" / "certificate.json").read_bytes() == certificate
    assert call("data", "account", "small", "--epsilon", 5, "--delta", 1e-5).code == 0
    assert "would bring small to epsilon" in call.refused("data", "account", "small", "--add", place, code=3)
    assert "there is none in" in call.refused("data", "account", "small", "--add", tmp_path / "nowhere")
    assert read_account("late").entries[0].charge.alone is None


@pytest.fixture
def sweep(tmp_path):
    """A sweep on enough images that no class drowns in noise, whatever is drawn."""
    random, path = np.random.default_rng(0), tmp_path / "data.npz"
    arrays = {}
    for split, count in (("train", 600), ("test", 30)):
        arrays[f"x_{split}"] = random.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 3
    np.savez(path, **arrays)
    declared = [
        "--records",
        60,
        "--classes",
        3,
        "--epsilon",
        10,
        "--delta",
        1e-5,
        "--set",
        "privacy.noise_multiplier=2",
    ]
    measured = ["--metrics", "logistic_regression", "--samples", 90]
    settings = [part for setting in TINY for part in ("--set", setting)]
    return ["curve", "dp-merf", "--data", path, *declared, *measured, *settings, "--out", tmp_path / "sweep"]


@pytest.mark.slow
def test_a_sweep_that_does_not_fit_as_a_whole_spends_nothing(call, sweep, tmp_path):
    assert call("data", "account", "points", "--epsilon", 3.5, "--delta", 1e-5, "--filter", "gaussian").code == 0
    over = [*sweep, "--over", "method.steps=2,3,4,5", "--account", "points"]
    assert "4 more runs would bring points to epsilon" in call.refused(*over, code=3)
    assert read_account("points").entries == ()
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_every_point_of_a_sweep_is_charged_once_and_the_account_is_kept(call, sweep):
    assert call("data", "account", "points", "--epsilon", 3.5, "--delta", 1e-5, "--filter", "gaussian").code == 0
    done = call(*sweep, "--over", "method.steps=2,3", "--account", "points")
    assert done.code == 0, done.err
    assert len(read_account("points").entries) == 2
    assert call(*sweep, "--over", "method.steps=2,3", "--account", "points").code == 0
    assert len(read_account("points").entries) == 2
    assert 'with account "points", not null' in call.refused(*sweep, "--over", "method.steps=2,3,4")
    assert "would bring points" in call.refused(*sweep, "--over", "method.steps=2,3,4,5", "--account", "points", code=3)


@pytest.mark.slow
def test_a_comparison_is_charged_to_its_account(call, sweep, tmp_path):
    assert call("data", "account", "methods", "--epsilon", 20, "--delta", 1e-5).code == 0
    asked = ["compare", "--methods", "dp-merf,dp-hp", *sweep[2:-2], "--out", tmp_path / "comparison"]
    asked = [part if part != "method.frequencies=20" else "dp-merf:method.frequencies=20" for part in asked]
    done = call(*asked, "--account", "methods")
    assert done.code == 0, done.err
    assert sorted(entry.method for entry in read_account("methods").entries) == ["dp-hp", "dp-merf"]
    assert 'account "methods", not null' in call.refused(*asked)
