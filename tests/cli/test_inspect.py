"""``understudy inspect``: releases in, findings in words and a page out; bad input is one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.api import TrainOptions, train
from understudy.data.dataset import ImageDataset
from understudy.data.sources import load
from understudy.privacy.budget import Budget

from ..helpers.runs import own_state_folder
from ..release.building import make_release
from .calling import Caller

QUICK = {"steps": 300, "batch": 200, "frequencies": 500, "learning_rate": 0.003}
THOROUGH = {"steps": 800}


def train_version(folder: Path, name: str, settings: dict[str, float]) -> Path:
    """A generator at epsilon 10 of the digits as they are, or with three in ten of them turned or inverted."""
    data = load("digits")
    chosen, images = np.random.default_rng(0).random(len(data)) < 0.3, data.images.copy()
    if name == "turned":
        images[chosen] = np.rot90(images[chosen], 1, (2, 3))
    elif name == "inverted":
        images[chosen] = 255 - images[chosen]
    version = ImageDataset("digits", data.domain, images, data.labels)
    options = TrainOptions(config={"method": settings, "runtime": {"device": "cpu"}})
    train("dp-merf", version, Budget(10, 1e-5), folder / name, options)
    return folder / name


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("releases")
    with own_state_folder(folder):
        for name in ("clean", "again", "turned"):
            train_version(folder, name, QUICK)
    return folder


@pytest.mark.slow
def test_turned_images_are_found_in_a_private_release(call: Caller, releases: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    answer = call("inspect", releases / "turned", releases / "clean", "--to", page, "--json")
    assert answer.code == 0
    assert answer.json()["private"] is True
    check_found(answer.json(), "rotated-90")
    assert page.read_text().count("data:image/png") > 40


@pytest.mark.slow
@pytest.mark.parametrize(("name", "found"), [("turned", "rotated-90"), ("inverted", "inverted")])
def test_a_generator_that_was_trained_to_the_end_shows_the_fault_with_and_without_reference(
    call: Caller, tmp_path: Path, name: str, found: str
):
    normal, suspect = (train_version(tmp_path, each, THOROUGH) for each in ("clean", name))
    check_found(call("inspect", suspect, normal, "--to", tmp_path / "page.html", "--json").json(), found)
    alone = call("inspect", suspect, "--to", tmp_path / "page.html", "--json").json()
    assert [finding["name"] for finding in alone["findings"]] == [found]


def check_found(result: dict[str, Any], name: str) -> None:
    (finding,) = [each for each in result["findings"] if each["name"] == name]
    assert 0.08 < finding["bound"] < finding["estimate"] < 0.5


@pytest.mark.slow
def test_nothing_is_found_in_two_private_releases_of_the_same_data(call: Caller, releases: Path, tmp_path: Path):
    answer = call("inspect", releases / "again", releases / "clean", "--to", tmp_path / "page.html", "--check")
    assert answer.code == 0, answer
    assert answer.out.startswith("Nothing was found")
    alone = call("inspect", releases / "again", "--to", tmp_path / "page.html", "--check")
    assert alone.code == 0, alone


@pytest.mark.slow
def test_check_turns_a_finding_into_exit_code_1(call: Caller, releases: Path, tmp_path: Path):
    arguments = ("inspect", releases / "turned", releases / "clean", "--to", tmp_path / "page.html")
    answer = call(*arguments, "--check")
    assert answer.code == 1
    assert "turned by 90 degrees to the left" in answer.out
    assert re.search(r"(one finding|\d+ findings) about", answer.err)
    assert call(*arguments).code == 0


@pytest.mark.slow
def test_real_data_stamp_the_page(call: Caller, releases: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    answer = call("inspect", releases / "turned", "--real", "digits", "--to", page, "--json")
    assert answer.code == 0
    assert answer.json()["private"] is False
    assert "rotated-90" in {each["name"] for each in answer.json()["findings"]}
    assert "not private: do not publish" in page.read_text()


@pytest.mark.slow
def test_nothing_is_written_unasked(call: Caller, releases: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = call("inspect", releases / "turned", releases / "clean")
    assert answer.code == 0
    assert "turned by 90 degrees" in answer.out
    assert "post-processing" in answer.out
    assert (
        call("inspect", releases / "turned", "--real", "digits").out.rstrip().endswith("(not private: do not publish)")
    )
    assert call("inspect", releases / "turned", "--json").json()["page"] is None
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_no_judge_a_check_does_not_pass(call: Caller, released: Path, tmp_path: Path):
    """Real classes that are nothing but noise cannot be told apart, so a release beside them proves nothing."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (400, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(400) % 4)
    answer = call("inspect", released, "--real", tmp_path / "noise.npz", "--check", "--samples", 100)
    assert answer.code == 1, answer
    assert "Nothing was found" not in answer.out
    assert "Nothing can be said about the classes" in answer.out
    assert "guessing gives 25 %" in answer.out


def test_bad_input_is_one_sentence(call: Caller, released: Path, tmp_path: Path):
    to = ("--to", tmp_path / "page.html")
    assert "leave one of them out" in call.refused("inspect", released, released, "--real", "digits", *to)
    assert "too few" in call.refused("inspect", released, "--samples", 10, *to)
    assert "does not exist" in call.refused("inspect", tmp_path / "nowhere", *to)
    assert "is a folder" in call.refused("inspect", released, "--to", tmp_path)
    other = make_release(classes=3).save(tmp_path / "other")
    assert "4 classes and other has 3 classes" in call.refused("inspect", released, other, *to)
    colour = make_release(channels=3).save(tmp_path / "colour")
    assert "compare two of one shape" in call.refused("inspect", released, colour, *to)
    (released / "generator.safetensors").write_bytes(b"broken")
    assert "not those that its certificate names" in call.refused("inspect", released, *to)
    assert not (tmp_path / "page.html").exists()


def test_a_generator_without_privacy_is_not_inspected_as_if_it_were(call: Caller, tmp_path: Path):
    fields = {"not_private": "not private: trained without clipping or noise; do not publish"}
    release = make_release(guarantees=[], events=[], **fields)
    folder = release.save(tmp_path / "open", without_guarantee=True)
    assert "is not private" in call.refused("inspect", folder, "--to", tmp_path / "page.html")
