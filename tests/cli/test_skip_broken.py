"""``--skip-broken N``: every command that reads images leaves out up to a public number of broken files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from PIL import Image

from understudy.cli.main import app

from .calling import Caller
from .conftest import TINY

BUDGET = ("--epsilon", 1000, "--delta", 1e-5)  # so that noise leaves no class without samples


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Twelve images of two classes, and two files that are none."""
    random = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / "cells" / ("ill", "well")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(place / f"{number}.png")
    for name in ("ill/b1.png", "well/b2.png"):
        (tmp_path / "cells" / name).write_text("no image")
    return tmp_path / "cells"


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    if isinstance(group, click.Group):
        for name, inner in group.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield " ".join(path), {option for parameter in group.params for option in parameter.opts}


def test_whatever_takes_declarations_takes_it():
    found = dict(commands(typer.main.get_command(app)))
    declaring = {name for name, options in found.items() if "--declare" in options}
    assert {"train", "plan", "evaluate", "data check", "report", "federated client"} <= declaring
    assert declaring == {name for name, options in found.items() if "--skip-broken" in options}


def test_a_run_trains_plans_and_is_evaluated_without_the_broken_files(call: Caller, cells: Path, tmp_path: Path):
    settings = [f"--set={setting}" for setting in TINY]
    declared = ["--data", cells, "--records", 12, "--declare", "class_names=ill,well"]
    training = ["train", "dp-merf", *declared, *BUDGET, *settings, "--out", tmp_path / "run"]
    assert "b1.png: corrupt" in call.refused(*training)
    assert "more than skip_broken=1 (--skip-broken 1) are broken" in call.refused(*training, "--skip-broken", 1)
    assert not (tmp_path / "run").exists()
    answer = call(*training, "--skip-broken", 3)
    assert answer.code == 0, answer.err
    assert "skip_broken: 2 of at most 3 broken files left out" in answer.err
    certificate = json.loads((tmp_path / "run" / "release" / "certificate.json").read_text())
    assert "skip_broken: 3" in certificate["assumed_public"]
    plan = call("plan", "dp-merf", "--records", 12, *BUDGET, "--set", "privacy.noise_multiplier=1", "--skip-broken", 3)
    assert re.search(r"^assumed public +skip_broken: 3$", plan.out, re.MULTILINE), "as the certificate will state it"
    scoring = ["evaluate", tmp_path / "run", "--data", cells, "--test-data", cells, "--metrics", "gaussian_nb"]
    assert "b1.png: corrupt" in call.refused(*scoring)
    scored = call(*scoring, "--skip-broken", 2, "--samples", 40, "--no-cache", "--no-reference", "--json").json()
    assert scored["figures"][0]["tested_on"] == 12


def test_a_check_fails_beyond_the_number(call: Caller, cells: Path):
    for allowed, code in ((0, 1), (1, 1), (2, 0)):
        answer = call("data", "check", cells, "--skip-broken", allowed)
        assert answer.code == code
        assert answer.out.count("\nbroken: ") == 2, "all of them are listed either way"
    (cells / "damaged.npz").write_bytes(b"no archive")
    (cells / "damaged.tar").write_bytes(b"no archive")
    for name in ("damaged.npz", "damaged.tar"):
        assert call("data", "check", cells / name, "--skip-broken", 9).code == 1


def test_it_is_said_once_and_is_a_number(call: Caller, cells: Path):
    words = ("data", "check", cells, "--declare", "skip_broken=5")
    assert call(*words).code == 0, "the declaration by its name means the same"
    sentence = call.refused(*words, "--skip-broken", 2)
    assert "--skip-broken 2 and --declare skip_broken=5 were given; pass one of them" in sentence
    assert "skip_broken: -1 is not valid" in call.refused("data", "check", cells, "--skip-broken", -1)
    assert call("data", "check", cells, "--skip-broken", "few").code == 2
