"""Fixtures for all tests: every test has a state and cache folder of its own."""

import pytest


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
