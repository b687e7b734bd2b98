"""Samples as npz, PNG folder and parquet."""

from __future__ import annotations

import errno
import os
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from understudy.errors import InputError
from understudy.release import export as module
from understudy.release.export import class_folders, export


@pytest.fixture(params=["grey", "rgb"])
def images(request: pytest.FixtureRequest) -> np.ndarray:
    shape = (12, 8, 9) if request.param == "grey" else (12, 8, 9, 3)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


LABELS = np.arange(12, dtype=np.int64) % 3


def test_npz_holds_the_arrays(images: np.ndarray, tmp_path: Path):
    with np.load(export(images, LABELS, tmp_path / "new" / "out.npz"), allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["images"], images)
        np.testing.assert_array_equal(archive["labels"], LABELS)
    with np.load(export(images, None, tmp_path / "plain.npz")) as archive:
        assert archive.files == ["images"]


def test_a_folder_holds_a_png_for_each_image(images: np.ndarray, tmp_path: Path):
    place = export(images, LABELS, tmp_path / "pngs")
    assert sorted(path.name for path in place.iterdir()) == ["0", "1", "2"]
    for number, label in enumerate(LABELS):
        np.testing.assert_array_equal(np.asarray(Image.open(place / str(label) / f"{number:05d}.png")), images[number])
    flat = export(images, None, tmp_path / "flat")
    assert len(list(flat.glob("*.png"))) == 12


def test_parquet_holds_png_bytes_and_labels(images: np.ndarray, tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(export(images, LABELS, tmp_path / "out.parquet"))
    assert table["label"].to_pylist() == LABELS.tolist()
    for number, content in enumerate(table["image"].to_pylist()):
        np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(content))), images[number])
    assert parquet.read_table(export(images, None, tmp_path / "plain.parquet")).column_names == ["image"]


def test_parquet_without_pyarrow_names_the_extra(images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pip install 'understudy\[parquet\]'"):
        export(images, LABELS, tmp_path / "out.parquet")


@pytest.mark.parametrize(
    "name", ["../../etc", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "\0", "  ", "con:1", "x" * 300]
)
def test_class_names_cannot_leave_the_folder(tmp_path: Path, name: str):
    images = np.zeros((2, 8, 8), dtype=np.uint8)
    place = export(images, np.array([0, 1]), tmp_path / "out" / "pngs", class_names=(name, "fine"))
    files = list((tmp_path / "out").rglob("*.png"))
    assert len(files) == 2
    assert all(path.parent.parent == place for path in files)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_class_folders_are_unique():
    names = class_folders([0, 1, 2, 3], ["cat", "Cat", "a/b", "a_b"])
    assert names == {0: "cat", 1: "1-Cat", 2: "2-a_b", 3: "a_b"}


def test_bad_destinations_are_one_sentence(tmp_path: Path):
    images = np.zeros((2, 8, 8), dtype=np.uint8)
    with pytest.raises(InputError, match=r"\.zip"):
        export(images, None, tmp_path / "out.zip")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(InputError, match="other files"):
        export(images, None, tmp_path / "full")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        export(images, None, tmp_path / "folder.npz")
    with pytest.raises(InputError, match="could not be written"):
        export(images, None, tmp_path / "full" / "mine" / "out.npz")
    with pytest.raises(InputError, match="1 for 2 images"):
        export(images, np.array([0]), tmp_path / "out.npz")


@pytest.mark.parametrize("name", ["out.npz", "pngs"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    def fail(*_: object, **__: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "_png", fail)
    monkeypatch.setattr(module.np, "savez_compressed", fail)
    with pytest.raises(InputError, match="No space left"):
        export(np.zeros((2, 8, 8), dtype=np.uint8), None, tmp_path / name)
    assert list(tmp_path.iterdir()) == []
