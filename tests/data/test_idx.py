from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from understudy.data.domain import SourceOptions
from understudy.data.idx import read_idx
from understudy.data.sources import load
from understudy.errors import InputError

IMAGES = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)


def idx(array: np.ndarray, kind: int = 0x08) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_folder_with_mnist_names(write_mnist_folder: Callable[..., Path], tmp_path: Path, compressed: bool) -> None:
    folder = write_mnist_folder(tmp_path / "set", compressed=compressed)
    train = load(folder, records=6, classes=10)
    assert train.images.shape == (6, 1, 28, 28)
    assert train.labels is not None
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(load(folder, split="test", records=3, classes=10)) == 3
    assert load(folder, records=6, options=SourceOptions(unlabelled=True)).labels is None


def test_a_missing_split(write_mnist_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = write_mnist_folder(tmp_path / "set")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match="IDX files of the test split are missing"):
        load(folder, split="test", records=3, classes=10)


def test_one_file_with_its_labels_beside_it(tmp_path: Path) -> None:
    (tmp_path / "my-images-idx3-ubyte").write_bytes(idx(IMAGES))
    assert load(tmp_path / "my-images-idx3-ubyte", records=3).labels is None
    (tmp_path / "my-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([2, 0, 1], dtype=np.uint8))))
    data = load(tmp_path / "my-images-idx3-ubyte", records=3, classes=3)
    assert data.labels is not None
    assert data.labels.tolist() == [2, 0, 1]
    assert load(tmp_path / "my-images-idx3-ubyte", records=3, options=SourceOptions(unlabelled=True)).labels is None


def test_colour(tmp_path: Path) -> None:
    (tmp_path / "colour.idx").write_bytes(idx(np.zeros((2, 16, 16, 3), dtype=np.uint8)))
    assert load(tmp_path / "colour.idx", records=2).domain.shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (idx(IMAGES)[:-1], "holds only 2351 of the 2352 bytes its header says"),
        (idx(IMAGES) + b"!", "holds more than the 2352 bytes its header says"),
        (gzip.compress(idx(IMAGES))[:-20], "cannot be read as an IDX file"),
        (idx(IMAGES)[:7], "cannot be read as an IDX file"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**16, 2**16), "at most 8589934592 are read"),
        (idx(IMAGES, kind=0x0D), "IDX type 0x0d; only unsigned bytes"),
        (b"hello world", "not an IDX file"),
        (b"", "not an IDX file"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_idx(tmp_path / "x")
    assert sentence in str(caught.value)


def test_a_gzip_bomb_stops_at_the_size_its_header_promises(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(idx(IMAGES) + bytes(50_000_000)))
    with pytest.raises(InputError, match="holds more than"):
        read_idx(tmp_path / "x")


def test_what_is_not_an_image_file(tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(idx(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(InputError, match="1-dimensional data, not images"):
        load(tmp_path / "labels", records=4)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=r"notes.txt: not a known kind of file; pass a folder of images, a .csv"):
        load(tmp_path / "notes.txt", records=4)
    (tmp_path / "x-images-idx3-ubyte").write_bytes(idx(IMAGES))
    with pytest.raises(InputError, match="does not say who contributed what"):
        load(tmp_path / "x-images-idx3-ubyte", records=4, options=SourceOptions(clients=True, nominal_clients=2))
