"""People in the data: who is in a record is declared by place, numbered in memory, and protected by nobody yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset, with_clients
from understudy.data.domain import Domain, SourceOptions, refuse_people, source_options
from understudy.data.partition import Partition
from understudy.data.sources import DataOptions, load
from understudy.errors import InputError

from ..helpers.data import tiny_data
from ..helpers.runs import tiny_train

Write = Callable[..., Path]
IMAGES = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8)


def opened(path: Path, classes: int | None = None, **declared: object) -> ImageDataset:
    return load(path, records=9, classes=classes, options=source_options(nominal_people=5, **declared))


def refused(path: Path, classes: int | None = None, **declared: object) -> str:
    with pytest.raises(InputError) as caught:
        opened(path, classes, **declared)
    return str(caught.value)


def people(data: ImageDataset) -> list[int]:
    assert data.people is not None
    assert data.people.dtype == np.int64
    return data.people.tolist()


# Where they are found


@pytest.mark.parametrize(("person", "first", "second"), [("folder:1", "{p}", "{c}"), ("folder:2", "{c}", "{p}")])
def test_folders_by_person_and_class_in_either_order(
    write_image: Write, tmp_path: Path, person: str, first: str, second: str
) -> None:
    for value, (who, what) in enumerate([("ann", "cat"), ("ann", "dog"), ("bob", "cat")]):
        folder = tmp_path / first.format(p=who, c=what) / second.format(p=who, c=what)
        write_image(folder / f"{value}.png", value=value)
    data = opened(tmp_path, 2, person=person)
    found = dict(zip(data.images[:, 0, 0, 0].tolist(), zip(people(data), data.labels, strict=True), strict=True))  # type: ignore[arg-type]
    assert found == {0: (0, 0), 1: (0, 1), 2: (1, 0)}
    assert people(opened(tmp_path, unlabelled=True, person=person)) in ([0, 0, 1], [0, 1, 0])


def test_a_folder_by_person_alone(write_image: Write, tmp_path: Path) -> None:
    for name in ("p1/a.png", "p1/b.png", "p2/a.png"):
        write_image(tmp_path / name)
    data = opened(tmp_path, person="folder:1")
    assert (people(data), data.labels) == ([0, 0, 1], None)
    assert "classes were declared, but there is no sub-folder per class" in refused(tmp_path, 2, person="folder:1")
    write_image(tmp_path / "loose.png")
    assert "images beside the person folders (loose.png)" in refused(tmp_path, person="folder:1")


def test_names_of_files_say_who_it_is(write_image: Write, tmp_path: Path) -> None:
    for name in ("cat/C1P9_1.png", "cat/C2P8_1.png", "dog/C1P9_2.png"):
        write_image(tmp_path / name)
    assert people(opened(tmp_path, 2, person="name:^(C[0-9]+P[0-9]+)_")) == [0, 1, 0]
    assert people(opened(tmp_path, 2, person="name:^C[0-9]+")) == [0, 1, 0], "without a group the match counts"
    write_image(tmp_path / "dog" / "other.png")
    sentence = refused(tmp_path, 2, person="name:^(C[0-9]+)")
    assert "dog/other.png: person=name:^(C[0-9]+) finds nothing in its name; rename the file" in sentence
    assert people(opened(tmp_path, 2, person="name:^(C[0-9]+)", skip_broken=1)) == [0, 1, 0]


def test_classes_too_may_be_said_by_names_or_a_level(write_image: Write, tmp_path: Path) -> None:
    for name in ("site/ann/cat_1.png", "site/bob/dog_1.png", "site/bob/cat_2.png"):
        write_image(tmp_path / name)
    data = opened(tmp_path, 2, person="folder:2", label="name:^([a-z]+)_")
    assert data.labels is not None
    assert (data.labels.tolist(), people(data)) == ([0, 0, 1], [0, 1, 1])
    data = opened(tmp_path, 1, person="folder:2", label="folder:1")
    assert data.labels is not None
    assert data.labels.tolist() == [0, 0, 0]
    assert "says already who contributed" in refused(tmp_path, 1, person="folder:2", label="folder:2")
    assert "a folder has no columns" in refused(tmp_path, 1, person="folder:2", label="column:x")
    assert "only DICOM files have such elements" in refused(tmp_path, unlabelled=True, person="column:x")


def test_arrays_of_an_archive(tmp_path: Path) -> None:
    who = np.array(["z", "z", "b", "b", "z", "a"])
    np.savez(tmp_path / "a.npz", x_train=IMAGES, y_train=np.zeros(6), patient_train=who)
    np.savez(tmp_path / "b.npz", train_images=IMAGES, train_labels=np.zeros((6, 1)), train_patient=who[:, None])
    for name in ("a.npz", "b.npz"):
        assert people(opened(tmp_path / name, 1, person="column:patient")) == [2, 2, 1, 1, 2, 0]
    assert "no column 'patients' for person=column:patients" in refused(tmp_path / "a.npz", 1, person="column:patients")
    assert "holds arrays; pass person=column:NAME" in refused(tmp_path / "a.npz", 1, person="name:.")


def test_a_folder_of_many_sub_folders_is_first_taken_for_people(write_image: Write, tmp_path: Path) -> None:
    for number in range(60):
        write_image(tmp_path / f"patient{number}" / "1.png")
    with pytest.raises(InputError) as caught:
        load(tmp_path, records=9)
    sentence = str(caught.value)
    assert "60 sub-folders (patient0, patient1, patient10, ...)" in sentence
    assert sentence.index("person=folder:1") < sentence.index("--classes 60")


# What is declared


def test_their_number_is_declared_and_published_and_never_compared() -> None:
    for nominal in (1, 3, 10**6):
        data = from_arrays(IMAGES, people=[0, 0, 7, 7, 7, 9], records=9, options=SourceOptions(nominal_people=nominal))
        assert data.domain.nominal_people == nominal
        assert f"nominal_people: {nominal}" in data.domain.assumed_public()
    with pytest.raises(InputError, match="nominal_people: records are of people, but the number of people was not"):
        from_arrays(IMAGES, people=[0, 0, 7, 7, 7, 9], records=9)
    with pytest.raises(InputError, match="nominal_people: declared, but nothing says whom records are of"):
        from_arrays(IMAGES, records=9, options=SourceOptions(nominal_people=3))


def test_a_domain_without_people_is_written_as_it_always_was() -> None:
    plain = Domain(shape=(1, 8, 8), classes=3, nominal_records=9)
    written = {"shape": [1, 8, 8], "classes": 3, "class_names": None, "value_range": [0.0, 255.0]}
    assert json.loads(plain.model_dump_json()) == {**written, "nominal_records": 9, "nominal_clients": None}
    assert not any("people" in item or "broken" in item for item in plain.assumed_public())
    assert Domain.model_validate(plain.model_dump()) == plain
    of_people = plain.model_copy(update={"nominal_people": 4, "skip_broken": 2})
    assert Domain.model_validate_json(of_people.model_dump_json()) == of_people
    assert of_people.assumed_public()[-2:] == ["nominal_people: 4", "skip_broken: 2"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"person": "patient"}, "person: 'patient' is not valid (write column:NAME, name:REGEX"),
        ({"person": "folder:0"}, "folder:LEVEL with a level from 1 to 8"),
        ({"person": "name:("}, "is no regular expression"),
        ({"person": "column:a", "clients": True}, "person: given together with clients=True"),
        ({"image": "name:a"}, "only column:NAME says where images are"),
        ({"label": "folder:1", "unlabelled": True}, "label: given together with unlabelled=True"),
        ({"window": (40, 0)}, "window: a width of 0; pass (centre, width)"),
        ({"skip_broken": -1}, "skip_broken: -1 is not valid"),
    ],
)
def test_bad_declarations(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        source_options(**values)
    assert sentence in str(caught.value)


def test_declarations_as_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y=np.zeros(6), who=np.array([4, 4, 4, 8, 8, 9]))
    source = DataOptions(str(tmp_path / "a.npz"), 9, 1, None, ("person=column:who", "nominal_people=3"))
    assert people(source.load()) == [0, 0, 0, 1, 1, 2]
    again = DataOptions(str(tmp_path / "a.npz")).completed_by(source.as_dict()).load()
    assert again.fingerprint() == source.load().fingerprint()


@pytest.mark.parametrize(
    "ids",
    [
        ["a", "", "b", "b", "b", "b"],
        ["a", " ", "b", "b", "b", "b"],
        [None, 1, 1, 1, 1, 1],
        [0.5, 1, 1, 1, 1, 1],
        [b"\xff", b"a", b"a", b"a", b"a", b"a"],
        [1, 2],
    ],
)
def test_everybody_has_a_name(ids: list[object]) -> None:
    with pytest.raises(InputError, match="people: "):
        from_arrays(IMAGES, people=ids, records=9, options=SourceOptions(nominal_people=3))


def test_one_person_who_is_written_in_several_ways_is_one_person() -> None:
    composed, decomposed = "Zo\u00eb", "Zoe\u0308"
    for ids in (
        ["7", "7 ", "\t7", " 8", "8", "8"],
        np.array([b"7", b"7 ", b" 7", b" 8", b"8", b"8"]),
        [7, "7", "7 ", 8, "8", b"8"],
        [composed, decomposed, f"{decomposed} ", "z", "z", "z "],
    ):
        data = from_arrays(
            IMAGES, people=np.array(ids, dtype=object), records=9, options=SourceOptions(nominal_people=3)
        )
        assert people(data) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("intruder", ["-1", "other", "01", ""])
def test_one_record_cannot_renumber_the_classes_of_all_others(intruder: str) -> None:
    """Whoever has a name among numbers, or a number that is none, is refused; the others' labels never move."""
    numbers = [str(number) for number in range(5)]
    kept = from_arrays(IMAGES[:5], numbers, records=9, classes=6)
    assert kept.labels is not None
    assert kept.labels.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="is no number from 0 on, but '0' is; correct it, or name all classes"):
        from_arrays(IMAGES, [*numbers, intruder], records=9, classes=6)


# The unit


def of_people() -> ImageDataset:
    return from_arrays(IMAGES, people=list("zzabba"), records=9, options=SourceOptions(nominal_people=8))


def test_a_person_with_all_records_is_a_unit() -> None:
    data = of_people()
    assert data.unit_of_record("person").tolist() == [2, 2, 0, 1, 1, 0]
    assert data.nominal_units("person") == 8
    assert data.subset(np.array([0, 3])).unit_of_record("person").tolist() == [1, 0]
    with pytest.raises(InputError, match="has no people; load it with person=column:NAME"):
        from_arrays(IMAGES, records=9).unit_of_record("person")


def test_a_partition_keeps_a_person_together(tmp_path: Path) -> None:
    data = of_people()
    partition = Partition.draw(data, 8, unit="person")
    for number in range(3):
        assert len(set(partition.assignment[data.unit_of_record("person") == number].tolist())) == 1
    partition.save(tmp_path / "partition.npz", data)
    assert Partition.load(tmp_path / "partition.npz", data).unit == "person"
    with pytest.raises(InputError, match="only 8 nominal persons are declared"):
        Partition.draw(data, 9, unit="person")


def test_the_fingerprint_sees_people() -> None:
    plain = from_arrays(IMAGES, records=9)
    assert of_people().fingerprint() != plain.fingerprint()


def test_a_method_that_does_not_protect_people_refuses_them() -> None:
    with pytest.raises(
        InputError, match="person: people were declared, but some-method protects single records, not all"
    ):
        refuse_people(of_people().domain, "some-method")
    refuse_people(from_arrays(IMAGES, records=9).domain, "some-method")


# Clients


def test_more_clients_than_are_enrolled_leave_no_run_behind(tmp_path: Path) -> None:
    data = with_clients(tiny_data(), 5)
    domain = data.domain.model_copy(update={"nominal_clients": 4})
    fewer = ImageDataset(data.name, domain, data.images, data.labels, data.client_ids)
    with pytest.raises(InputError, match="the data hold 5 clients, but nominal_clients=4 are enrolled"):
        tiny_train("gs-wgan-federated", fewer, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_images_that_are_only_compared_need_no_clients(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES)
    domain = Domain(shape=(1, 8, 8), nominal_records=9, nominal_clients=4, skip_broken=3)
    source = DataOptions(str(tmp_path / "a.npz"))
    assert source.completed_from(domain, units=False).load().client_ids is None
    with pytest.raises(InputError, match="clients=True, but there is no array writer"):
        source.completed_from(domain).load()
