"""Fixtures of the data tests: a cache of its own for every test, and small sets made on the spot."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the data sets of the machine it runs on."""
    monkeypatch.delenv("UNDERSTUDY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("understudy.data.catalog._DEBIAN", tmp_path / "debian")
    return tmp_path / "cache" / "understudy"


def idx_bytes(array: np.ndarray, kind: int = 0x08) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def write_mnist_folder() -> Callable[..., Path]:
    """Writes the four IDX files of a tiny MNIST look-alike."""

    def write(folder: Path, *, compressed: bool = True, train: int = 6, test: int = 3) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(0)
        for prefix, count in (("train", train), ("t10k", test)):
            images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            labels = (np.arange(count) % 10).astype(np.uint8)
            for name, array in (("images-idx3", images), ("labels-idx1", labels)):
                content = idx_bytes(array)
                path = folder / f"{prefix}-{name}-ubyte{'.gz' if compressed else ''}"
                path.write_bytes(gzip.compress(content) if compressed else content)
        return folder

    return write


@pytest.fixture
def write_image() -> Callable[..., Path]:
    """Writes one picture of a given mode and size."""

    def write(path: Path, *, mode: str = "L", size: tuple[int, int] = (8, 8), value: int = 100) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", size[::-1], value).convert(mode).save(path)
        return path

    return write


@pytest.fixture
def write_femnist() -> Callable[..., Path]:
    """Writes a FEMNIST archive with the given number of images for each writer."""

    def write(path: Path, counts: tuple[int, ...] = (25, 12, 3)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        writers = np.repeat(np.arange(len(counts)), counts)
        labels = np.arange(len(writers)) % 62
        images = np.full((len(writers), 28, 28), 255, dtype=np.uint8)
        images[:, 14, 14] = np.arange(len(writers)) % 256
        np.savez(path, x=images, y=labels, writer=writers)
        return path

    return write
