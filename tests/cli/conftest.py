"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ..release.building import make_release
from .calling import Caller

TINY = ("method.frequencies=20", "method.steps=8", "method.batch=20", "method.width=4", "method.latent=4")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    return make_release().save(tmp_path / "released")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Forty images of 8x8 pixels in three classes."""
    random = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    np.savez(path, images=random.integers(0, 256, (40, 8, 8), dtype=np.uint8), labels=np.arange(40) % 3)
    return path


@pytest.fixture
def train_arguments(archive: Path, tmp_path: Path) -> list[object]:
    """A training that takes a moment."""
    settings = [part for setting in TINY for part in ("--set", setting)]
    budget = ["--epsilon", 10, "--delta", 1e-5]
    declared = ["--records", 40, "--classes", 3]
    return ["train", "dp-merf", "--data", archive, "--out", tmp_path / "run", *budget, *declared, *settings]
