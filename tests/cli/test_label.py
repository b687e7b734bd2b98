"""``understudy label``: names for images of one's own, as a table or with the images; bad input is one sentence."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from understudy.models.annotator import named_by
from understudy.models.generator import TeacherModelConfig
from understudy.models.teacher import Teacher
from understudy.release.release import Release, build_release, load

from ..helpers.data import tiny_data
from ..helpers.runs import own_state_folder, tiny_train
from ..release.building import make_release
from .calling import Caller


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a teacher, to be read only."""
    home = tmp_path_factory.mktemp("taught")
    with own_state_folder(home):
        tiny_train("dp-merf with a teacher", tiny_data(), home / "run")
    return home / "run"


@pytest.fixture
def images() -> np.ndarray:
    return tiny_data(seed=3, records=5).images[:, 0]


@pytest.fixture
def archive(images: np.ndarray, tmp_path: Path) -> Path:
    np.savez(tmp_path / "images.npz", images=images)
    return tmp_path / "images.npz"


@pytest.fixture
def folder(images: np.ndarray, tmp_path: Path) -> Path:
    """The same images as files, in folders of which nothing may be concluded, in another order than their numbers."""
    places = ("b/second.png", "a/first.png", "c/deep/third.png", "a/zero.png", "last.png")
    for place, image in zip(places, images, strict=True):
        path = tmp_path / "pictures" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path / "pictures"


def even_handed(class_names: tuple[str, ...] | None = None) -> Release:
    """A release whose teacher, though it has learnt nothing, names what is drawn, and finds every class among it."""
    made, config = make_release(class_names=class_names), TeacherModelConfig(directions=2)
    teacher = Teacher((1, 8, 8), 4, config).requires_grad_(False)
    teacher.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    drawn = torch.from_numpy(made.sample(200, seed=0)[0])[:, None] / 255
    teacher.head.bias -= teacher(drawn).mean(dim=0)
    kept = ("guarantees", "events", "assumed_public", "randomness", "runs_on_this_data", "not_covered")
    fields = {name: value for name, value in json.loads(made.certificate.to_json()).items() if name in kept}
    generator = named_by(teacher, made.generator, config)
    generator.config = generator.config.model_copy(update={"names": True})
    return build_release("dp-merf", generator, made.domain, made.method_config, fields)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_images_of_an_archive_are_named_by_their_numbers(call: Caller, taught: Path, archive: Path, images, tmp_path):
    answer = call("label", taught, "--images", archive, "--to", tmp_path / "labels.csv")
    assert answer.code == 0, answer
    assert answer.out == f"5 labelled images in {tmp_path / 'labels.csv'}\n"
    rows, likely = table(tmp_path / "labels.csv"), load(taught).probabilities(images)
    assert list(rows[0]) == ["image", "label", "name", "probability"]
    assert [row["image"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [int(row["label"]) for row in rows] == likely.argmax(axis=1).tolist()
    assert [row["name"] for row in rows] == [row["label"] for row in rows]
    assert [float(row["probability"]) for row in rows] == pytest.approx(likely.max(axis=1).tolist(), abs=1e-4)


def test_images_of_a_folder_are_named_by_their_places(call: Caller, taught: Path, folder: Path, tmp_path: Path):
    """Each line says what the classifier says of that very file."""
    answer = call("label", taught, "--images", folder, "--to", tmp_path / "labels.csv", "--json")
    assert answer.json() == {"path": str(tmp_path / "labels.csv"), "count": 5}
    rows = table(tmp_path / "labels.csv")
    assert {row["image"] for row in rows} == {
        "b/second.png",
        "a/first.png",
        "c/deep/third.png",
        "a/zero.png",
        "last.png",
    }
    for row in rows:
        image = np.asarray(Image.open(folder / row["image"]))
        (label,) = load(taught).label(image[None])
        assert int(row["label"]) == label, row


def test_names_of_classes_are_those_of_the_release(call: Caller, archive: Path, tmp_path: Path):
    names = ("cat", "dog", "owl", "yak")
    even_handed(class_names=names).save(tmp_path / "release")
    assert call("label", tmp_path / "release", "--images", archive, "--to", tmp_path / "labels.csv").code == 0
    for row in table(tmp_path / "labels.csv"):
        assert row["name"] == names[int(row["label"])]


def test_labels_may_come_with_the_images(call: Caller, taught: Path, archive: Path, images, tmp_path: Path):
    assert call("label", taught, "--images", archive, "--to", tmp_path / "named.npz").code == 0
    named = np.load(tmp_path / "named.npz")
    assert np.array_equal(named["images"], images)
    assert np.array_equal(named["labels"], load(taught).label(images))
    assert call("label", taught, "--images", archive, "--to", tmp_path / "named").code == 0
    assert len(list((tmp_path / "named").rglob("*.png"))) == 5


def test_images_of_another_size_are_brought_to_that_of_the_release(call: Caller, taught: Path, tmp_path: Path):
    np.savez(tmp_path / "large.npz", images=np.zeros((3, 16, 16), dtype=np.uint8))
    answer = call("label", taught, "--images", tmp_path / "large.npz", "--to", tmp_path / "labels.csv")
    assert answer.code == 0, answer
    assert len(table(tmp_path / "labels.csv")) == 3


def test_annotate_with_a_labelled_release_is_the_same(call: Caller, taught: Path, archive: Path, tmp_path: Path):
    assert call("label", taught, "--images", archive, "--to", tmp_path / "one.csv").code == 0
    answer = call("annotate", taught, "--images", archive, "--to", tmp_path / "two.csv")
    assert answer.code == 0, answer
    assert "5 labelled images" in answer.out
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_sample_keeps_what_both_agree_on(call: Caller, released: Path, tmp_path: Path):
    named = even_handed().save(tmp_path / "named")
    assert call("sample", named, "-n", 20, "--to", tmp_path / "drawn.npz", "--seed", 1).code == 0
    drawn = np.load(tmp_path / "drawn.npz")
    assert np.array_equal(drawn["labels"], load(named).label(drawn["images"]))
    assert call("sample", named, "-n", 20, "--to", tmp_path / "agreed.npz", "--agree").code == 0
    assert np.load(tmp_path / "agreed.npz")["images"].shape == (20, 8, 8)
    sentence = call.refused("sample", released, "-n", 5, "--to", tmp_path / "x.npz", "--agree")
    assert "nobody to agree with; leave it out" in sentence


def test_an_evaluation_tells_how_often_the_classifier_is_right(call: Caller, tmp_path: Path):
    release = even_handed()
    release.save(tmp_path / "release")
    for name, seed in (("data", 4), ("test", 5)):
        np.savez(tmp_path / f"{name}.npz", images=tiny_data(seed=seed).images[:, 0], labels=np.arange(40) % 4)
    given = ["--data", tmp_path / "data.npz", "--test-data", tmp_path / "test.npz", "--samples", 400]
    answer = call("evaluate", tmp_path / "release", *given, "--metrics", "logistic_regression", "--json")
    assert answer.code == 0, answer.err
    expected = (release.label(tiny_data(seed=5).images[:, 0]) == np.arange(40) % 4).mean()
    assert answer.json()["classifier_accuracy"] == pytest.approx(float(expected), abs=1e-6)


def test_bad_input_is_one_sentence(call: Caller, taught: Path, archive: Path, released: Path, tmp_path: Path):
    (tmp_path / "there.csv").mkdir()
    (tmp_path / "text.csv").write_text("no picture")
    np.savez(tmp_path / "colour.npz", images=np.zeros((2, 8, 8, 3), dtype=np.uint8))
    to = ("--to", tmp_path / "labels.csv")
    assert "holds no classifier; train with --set" in call.refused("label", released, "--images", archive, *to)
    assert "holds no classifier" in call.refused("annotate", released, "--images", archive, *to)
    assert "is a folder" in call.refused("label", taught, "--images", archive, "--to", tmp_path / "there.csv")
    assert "nowhere.npz" in call.refused("label", taught, "--images", tmp_path / "nowhere.npz", *to)
    assert "text.csv" in call.refused("label", taught, "--images", tmp_path / "text.csv", *to)
    call.refused("label", tmp_path, "--images", archive, *to)
    assert ".txt" in call.refused("label", taught, "--images", archive, "--to", tmp_path / "labels.txt")
    assert not (tmp_path / "labels.csv").exists()


def test_a_release_without_labels_names_nothing(call: Caller, archive: Path, tmp_path: Path):
    plain = make_release(classes=None).save(tmp_path / "plain")
    assert "understudy annotate" in call.refused("label", plain, "--images", archive, "--to", tmp_path / "labels.csv")


def test_who_waits_for_names_hears_how_many_images_are_done(taught, monkeypatch):
    release = load(taught / "release")
    release.generator.config = release.generator.config.model_copy(update={"names": True})
    monkeypatch.setattr("understudy.models.annotator._DRAWS", 4)
    monkeypatch.setattr("understudy.models.annotator._NAMED", 6)
    drawn: list[int] = []
    images, _ = release.sample(10, watch=drawn.append)
    assert drawn == [4, 6, 10]  # so many at a time, of six that were drawn together
    named: list[int] = []
    release.probabilities(images, named.append)
    assert named == [4, 8, 10]
    alone: list[int] = []
    release.generator.base.sample(torch.zeros(3, dtype=torch.long), torch.Generator(), watch=alone.append)
    assert alone == [3]
