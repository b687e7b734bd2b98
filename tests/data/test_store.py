"""A data store: written once, checked as it is read, trained from without being loaded; broken ones are told apart."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from understudy.api import TrainOptions, continue_run
from understudy.cli.data import app
from understudy.data.dataset import ImageDataset
from understudy.data.domain import SourceOptions
from understudy.data.sources import DataOptions, load, write_store
from understudy.data.store import StoredDataset, new_store
from understudy.engines.records import Records, load_all
from understudy.errors import InputError

from ..helpers.data import of_people, tiny_data
from ..helpers.runs import interrupt, tiny_train

CPU = torch.device("cpu")
RUNNER = CliRunner()


def stored(path: Path, data) -> StoredDataset:
    with new_store(path, data.name) as writer:
        writer.finish(data)
    found = load(path)
    assert isinstance(found, StoredDataset)
    return found


# Written and read


@pytest.mark.parametrize("kind", ["labelled", "unlabelled", "rgb"])
def test_a_store_holds_what_was_put_into_it(tmp_path, kind):
    data = tiny_data(kind, records=700)
    found = stored(tmp_path / "store", data)
    assert (found.name, found.domain, len(found)) == (data.name, data.domain, len(data))
    assert np.array_equal(found.in_memory().images, data.images)
    assert (found.labels is None) == (data.labels is None)
    assert np.array_equal(found.labels, data.labels) or data.labels is None


def test_images_are_read_by_range_number_and_truth_value(tmp_path):
    data = tiny_data("rgb", records=1500)
    images = stored(tmp_path / "store", data).images
    numbers = np.array([3, 1499, 3, -2])
    odd = np.arange(1500) % 2 == 1
    for selection in (slice(None), slice(10, 20), slice(1490, 5000), slice(9, 3), slice(0, 99, 7), numbers, odd):
        assert np.array_equal(images[selection], data.images[selection]), selection
    assert np.array_equal(np.asarray(images), data.images)


def test_people_and_clients_are_kept(tmp_path):
    data = of_people((3, 1, 4))
    found = stored(tmp_path / "people", data)
    assert np.array_equal(found.people, data.people)
    assert found.domain.unit == "person"
    np.savez(tmp_path / "x.npz", x=data.images[:, 0], clients=np.array([4, 4, 9, 9, 9, 7, 7, 7]))
    options = SourceOptions(clients=True, nominal_clients=5)
    write_store(tmp_path / "x.npz", tmp_path / "clients", records=8, options=options)
    assert load(tmp_path / "clients").client_ids.tolist() == [0, 0, 2, 2, 2, 1, 1, 1]


def test_pictures_are_stored_as_they_would_be_loaded(tmp_path, write_image):
    for number in range(12):
        write_image(tmp_path / "scans" / "ab"[number % 2] / f"{number}.png", size=(9, 11), value=20 * number)
    options = SourceOptions(class_names=("a", "b"), size=(8, 8))
    write_store(tmp_path / "scans", tmp_path / "store", records=10, options=options)
    found, in_memory = load(tmp_path / "store"), load(tmp_path / "scans", records=10, options=options)
    assert (found.name, found.domain) == (in_memory.name, in_memory.domain)
    assert np.array_equal(found.images[:], in_memory.images)
    assert np.array_equal(found.labels, in_memory.labels)


def test_what_goes_wrong_while_it_is_written_leaves_nothing(tmp_path, write_image):
    write_image(tmp_path / "scans" / "a.png")
    write_image(tmp_path / "scans" / "b.png", size=(8, 9))
    with pytest.raises(InputError, match=r"8x9 grey, but .*a\.png is 8x8 grey"):
        write_store(tmp_path / "scans", tmp_path / "store", records=2)
    assert [path.name for path in tmp_path.iterdir()] == ["scans"]
    (tmp_path / "store").mkdir()
    with pytest.raises(InputError, match="store exists already; choose another folder"):
        write_store("digits", tmp_path / "store")


def test_a_store_is_for_its_owner_alone(tmp_path, capsys):
    before = os.umask(0)
    try:
        stored(tmp_path / "store", tiny_data())
    finally:
        os.umask(before)
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "store").iterdir())
    (tmp_path / "store").chmod(0o755)
    load(tmp_path / "store")
    assert "other users of this machine can look into this store; close it with chmod 700" in capsys.readouterr().err


def test_a_log_line_does_not_tell_what_a_store_holds(tmp_path):
    assert repr(stored(tmp_path / "store", tiny_data())).startswith("ImageDataset('arrays', nominal_records: ")


# What is declared


def test_declared_facts_hold_and_public_numbers_may_be_declared_anew(tmp_path):
    found = stored(tmp_path / "store", tiny_data())
    again = load(tmp_path / "store", records=77, classes=3, options=SourceOptions(size=(8, 8), channels=1))
    assert (found.domain.nominal_records, again.domain.nominal_records) == (tiny_data().domain.nominal_records, 77)
    assert found.fingerprint() == again.fingerprint()
    without = load(tmp_path / "store", options=SourceOptions(unlabelled=True))
    assert without.labels is None
    assert without.domain.classes is None
    assert without.fingerprint() != found.fingerprint()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"classes": 4}, "classes: 4 was declared, but .* is a store, and it was written with 3; leave it out"),
        ({"options": SourceOptions(size=(16, 16))}, "it was written with \\(8, 8\\)"),
        ({"options": SourceOptions(class_names=("a", "b", "c"))}, "class_names: .* a store holds finished records"),
        ({"options": SourceOptions(person="folder:1")}, "person: folder:1 was declared"),
        ({"options": SourceOptions(nominal_people=5)}, "nominal_people: 5 was declared, but .* does not say who"),
        ({"options": SourceOptions(clients=True)}, "clients: True was declared"),
        ({"split": "test"}, "holds one set only"),
    ],
)
def test_what_a_store_cannot_do_is_refused(tmp_path, given, sentence):
    stored(tmp_path / "store", tiny_data())
    with pytest.raises(InputError, match=sentence):
        load(tmp_path / "store", **given)


# Broken stores


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def _flip_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"'fortran_order': False", b"'fortran_order': True "))


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("images.npy", _cut, "images.npy: it has [0-9]+ bytes, but [0-9]+ were stored; copy the store again, or write"),
        ("images.npy", Path.unlink, "images.npy: it cannot be read"),
        ("images.npy", _flip_header, "images.npy: its header is another one"),
        ("labels.npy", _flip_last, "labels.npy: its checksum is another one"),
        ("labels.npy", _cut, "labels.npy: it has"),
        ("blocks.sha256", _flip_last, "blocks.sha256: its checksum is not the one in store.json"),
        ("blocks.sha256", _cut, "blocks.sha256: its checksum"),
        ("blocks.sha256", Path.unlink, "blocks.sha256: it cannot be read"),
        ("store.json", _cut, None),
        ("store.json", lambda path: path.write_text("[]"), "store.json: not the description of a store, or damaged"),
        ("store.json", lambda path: path.write_text("{"), "store.json is not valid JSON"),
    ],
)
def test_a_broken_store_is_refused_before_anything_is_read_from_it(tmp_path, name, damage, sentence):
    stored(tmp_path / "store", tiny_data())
    damage(tmp_path / "store" / name)
    if sentence is None:  # the newline at the end: nothing is lost
        load(tmp_path / "store")
        return
    with pytest.raises(InputError, match=sentence):
        load(tmp_path / "store")


def test_a_declared_fact_that_was_edited_is_noticed(tmp_path):
    stored(tmp_path / "store", tiny_data())
    path = tmp_path / "store" / "store.json"
    written = json.loads(path.read_text())
    written["facts"]["domain"]["nominal_records"] += 1
    path.write_text(json.dumps(written))
    with pytest.raises(InputError, match=r"its checksum is not the one in store\.json"):
        load(tmp_path / "store")


def test_an_image_that_was_changed_is_noticed_when_its_block_is_first_read(tmp_path):
    data = tiny_data(records=3000)  # three blocks of 1024 records
    stored(tmp_path / "store", data)
    _flip_last(tmp_path / "store" / "images.npy")
    found = load(tmp_path / "store")
    assert np.array_equal(found.images[:2048], data.images[:2048])
    for selection in (np.array([2999]), np.array([5, 2050]), slice(2000, 2100), slice(None)):
        with pytest.raises(InputError, match="records 2048 to 2999 are not as they were stored"):
            found.images[selection]
    answer = RUNNER.invoke(app, ["check", str(tmp_path / "store"), "--json"])
    assert answer.exit_code == 1
    assert "records 2048 to 2999 are not as they were stored" in json.loads(answer.stdout)["broken"][0]


def test_two_stores_have_one_fingerprint_exactly_if_they_hold_the_same(tmp_path):
    data, other = tiny_data(), tiny_data(seed=1)
    prints = [stored(tmp_path / str(number), each).fingerprint() for number, each in enumerate((data, data, other))]
    assert prints[0] == prints[1] != prints[2]
    people = of_people((2, 3))
    assert people.people is not None
    swapped = ImageDataset(people.name, people.domain, people.images, people.labels, people=1 - people.people)
    assert stored(tmp_path / "a", people).fingerprint() != stored(tmp_path / "b", swapped).fingerprint()


# Training


def test_records_of_a_store_stay_on_disk_and_are_those_of_memory(tmp_path):
    data = tiny_data("rgb", records=100)
    found = stored(tmp_path / "store", data)
    indices = torch.tensor([7, 100, 7, 0])
    ours, theirs = (Records(each, CPU, torch.float32).gather(indices) for each in (found, data))
    for name in ("images", "labels", "signs", "present"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert not isinstance(load_all(found, CPU)[0], torch.Tensor)
    assert torch.equal(load_all(found, CPU)[0][indices[:1]], torch.from_numpy(data.images[[7]]))


def trained(case: str, data, out: Path) -> list[torch.Tensor]:
    """The weights of a run with a seed, and with the same first weights."""
    torch.manual_seed(5)
    return list(tiny_train(case, data, out, seed=3).generator.state_dict().values())


SLOW = ("gs-wgan", "dp-sinkhorn", "dp-diffusion", "dp-merf with a teacher", "dp-merf with a network as its teacher")


@pytest.mark.parametrize("case", ["dpgan", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_seeded_run_from_a_store_is_the_run_from_memory(tmp_path, case):
    data = tiny_data()
    ours = trained(case, stored(tmp_path / "store", data), tmp_path / "ours")
    theirs = trained(case, data, tmp_path / "theirs")
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_run_is_resumed_on_its_store_and_on_no_other(tmp_path):
    path = tmp_path / "store"
    source = DataOptions(str(path))
    interrupt("dpgan", stored(path, tiny_data()), tmp_path / "run")
    shutil.move(path, tmp_path / "old")
    stored(path, tiny_data(seed=1))
    with pytest.raises(InputError, match="started on other data"):
        continue_run(tmp_path / "run", source, {}, TrainOptions())
    shutil.rmtree(path)
    shutil.move(tmp_path / "old", path)
    assert continue_run(tmp_path / "run", source, {}, TrainOptions()).certificate.headline.epsilon <= 10
