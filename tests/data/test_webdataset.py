"""WebDataset archives: members of one key are a record; nothing is unpacked, and what is broken is named."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from understudy.data.check import check_source
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Declared, source_options
from understudy.data.sources import load
from understudy.errors import InputError


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (8, 8), value).save(buffer, format="PNG")
    return buffer.getvalue()


def write(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def opened(path: Path, **declared: object) -> ImageDataset:
    classes, split = declared.pop("classes", None), declared.pop("split", "train")
    return load(path, split=split, records=9, classes=classes, options=source_options(**declared))  # type: ignore[arg-type]


def refused(path: Path, **declared: object) -> str:
    with pytest.raises(InputError) as caught:
        opened(path, **declared)
    return str(caught.value)


def column(values: np.ndarray | None) -> list[int]:
    assert values is not None
    return values.tolist()


def test_an_image_and_its_class_are_a_record(tmp_path: Path) -> None:
    members = {"a/1.png": png(1), "a/1.cls": b"1\n", "a/2.cls": b"0", "a/2.seg.png": b"other", "a/2.PNG": png(2)}
    for name, mode in (("x.tar", "w"), ("x.tar.gz", "w:gz"), ("x.tgz", "w:gz")):
        data = opened(write(tmp_path / name, members, mode), classes=2)
        assert data.images[:, 0, 0, 0].tolist() == [1, 2]
        assert column(data.labels) == [1, 0]
    assert opened(tmp_path / "x.tar", unlabelled=True).labels is None


def test_fields_of_the_json_member_say_class_and_person(tmp_path: Path) -> None:
    fields = [{"label": "dog", "patient": "z"}, {"label": "cat", "patient": "a"}]
    members = {}
    for number, content in enumerate(fields):
        members |= {f"{number}.jpg": png(number), f"{number}.json": json.dumps(content).encode()}
    path = write(tmp_path / "x.tar", members)
    data = opened(path, class_names=("dog", "cat"), person="column:patient", nominal_people=3)
    assert (column(data.labels), column(data.people)) == ([0, 1], [1, 0])
    data = opened(path, classes=2, label="column:label", person="name:^(.)", nominal_people=3)
    assert (column(data.labels), column(data.people)) == ([1, 0], [0, 1])


def test_shards_in_a_folder(tmp_path: Path) -> None:
    for name, value in (("train-1.tar", 3), ("train-0.tar", 2), ("test-0.tar", 5)):
        write(tmp_path / name, {"1.png": png(value), "1.cls": b"0"})
    assert opened(tmp_path, classes=1).images[:, 0, 0, 0].tolist() == [2, 3]
    assert opened(tmp_path, classes=1, split="test").images[:, 0, 0, 0].tolist() == [5]
    (tmp_path / "test-0.tar").unlink()
    assert "no file in" in refused(tmp_path, classes=1, split="test")


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"2.cls": b"0"}, "x.tar: 2 has no .png or .jpg; add it, or remove its other members"),
        ({"2.png": b"junk", "2.cls": b"0"}, "x.tar: 2.png: corrupt or not a PNG or JPEG image"),
        ({"2.png": png(2), "2.json": b"{"}, "x.tar: 2.json cannot be read as text"),
        ({"2.png": png(2), "2.json": b"[1]"}, "x.tar: 2.json cannot be read as text"),
        ({"2.png": png(2), "2.cls": b""}, "x.tar: 2.png: no label in 'cls'"),
    ],
)
def test_broken_records_are_named_and_can_be_skipped(tmp_path: Path, members: dict[str, bytes], sentence: str) -> None:
    path = write(tmp_path / "x.tar", {"1.png": png(1), "1.cls": b"0"} | members | {"3.png": png(3), "3.cls": b"0"})
    assert sentence in refused(path, classes=1)
    assert opened(path, classes=1, skip_broken=1).images[:, 0, 0, 0].tolist() == [1, 3]


def test_a_record_without_a_class_beside_others_is_no_silent_loss_of_all_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", {"1.png": png(1), "1.cls": b"0", "2.png": png(2)})
    assert "2.png: has no label, but other records have one" in refused(path, classes=1)


def test_damaged_archives_and_links(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"not an archive" * 100)
    assert "x.tar: not a readable tar archive" in refused(tmp_path / "x.tar")
    with tarfile.open(tmp_path / "y.tar", "w") as archive:
        link = tarfile.TarInfo("1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert "no PNG or JPEG file in it" in refused(tmp_path / "y.tar")


@pytest.mark.parametrize(
    "spoil", [lambda tar: tar[:1024], lambda tar: tar[:1100], lambda tar: tar[:1030] + b"!" + tar[1031:]]
)
def test_what_follows_a_damaged_header_is_not_lost_silently(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    """Two members of a block each; the header of the second begins at 1,024."""
    whole = write(tmp_path / "x.tar", {"1.png": png(1), "2.png": png(2)})
    assert len(opened(whole)) == 2
    whole.write_bytes(spoil(whole.read_bytes()))
    assert "x.tar: not a readable tar archive" in refused(whole)


def test_a_check_names_every_damaged_archive_and_training_none_of_them_as_skipped(tmp_path: Path) -> None:
    whole = write(tmp_path / "b.tar", {"1.png": png(1), "1.cls": b"0"})
    for name in ("a.tar", "c.tar"):
        (tmp_path / name).write_bytes(whole.read_bytes()[:540])
    found = check_source(tmp_path, "train", Declared(options=source_options(skip_broken=5)))
    assert [sentence.split(":")[0] for sentence in found.damaged] == [str(tmp_path / "a.tar"), str(tmp_path / "c.tar")]
    assert (found.readable, found.broken) == (1, [])
    assert "a.tar: not a readable tar archive" in refused(tmp_path, classes=1, skip_broken=5)


def test_a_colon_in_a_folder_does_not_merge_people(tmp_path: Path) -> None:
    members = {"anna: 1/x.png": png(1), "bob: 1/y.png": png(2), "anna: 1/z.png": png(3)}
    data = opened(write(tmp_path / "x.tar", members), person="folder:1", nominal_people=4)
    assert column(data.people) == [0, 1, 0]


def test_a_member_that_comes_twice_hides_nobody(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for value in (1, 2):
            entry = tarfile.TarInfo("same.png")
            entry.size = len(png(value))
            archive.addfile(entry, io.BytesIO(png(value)))
    for skipped in (0, 5):
        assert "same.png comes twice" in refused(tmp_path / "x.tar", skip_broken=skipped)
