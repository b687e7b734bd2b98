"""A tiny generator with a certificate made by hand, as an object and as a saved folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy.release.release import Release

from .building import make_release


@pytest.fixture
def release() -> Release:
    return make_release()


@pytest.fixture
def folder(release: Release, tmp_path: Path) -> Path:
    return release.save(tmp_path / "released")
