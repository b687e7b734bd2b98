"""How many runs touched a data set: counted for each data set, by all processes, and never silently forgotten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from understudy.errors import InputError
from understudy.runs.description import count_run

from ..helpers.data import tiny_data


def _file() -> Path:
    return Path(os.environ["XDG_STATE_HOME"]) / "understudy" / "runs-by-data.json"


def test_runs_are_counted_for_each_data_set_as_it_was_declared():
    assert [count_run(tiny_data()) for _ in range(3)] == [1, 2, 3]
    assert count_run(tiny_data("unlabelled")) == 1
    assert count_run(tiny_data(nominal=41)) == 1
    assert count_run(tiny_data()) == 4


def test_one_record_more_or_less_is_counted_as_the_same_data():
    """A certificate states the count, so it must not tell whether a record changed since the last release."""
    assert [count_run(tiny_data(records=records)) for records in (40, 41, 39)] == [1, 2, 3]
    assert count_run(tiny_data(seed=1)) == 4


def test_the_count_is_kept_under_public_facts_only():
    count_run(tiny_data())
    ((key, count),) = json.loads(_file().read_text()).items()
    assert count == 1
    assert key == "arrays; " + "; ".join(tiny_data().domain.assumed_public())


_COUNTER = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from tests.helpers.data import tiny_data
    from understudy.runs.description import count_run

    for _ in range(25):
        count_run(tiny_data())
"""


def test_processes_that_count_at_once_lose_none():
    root = str(Path(__file__).parents[2])
    counters = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(_COUNTER), root]) for _ in range(2)]
    assert [counter.wait(timeout=60) for counter in counters] == [0, 0]
    assert count_run(tiny_data()) == 51


def test_a_count_that_cannot_be_written_keeps_the_old_one(monkeypatch):
    count_run(tiny_data())
    count_run(tiny_data())

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(InputError, match="No space left on device"):
            count_run(tiny_data())
    assert count_run(tiny_data()) == 3


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"x": "many"}', "3"])
def test_a_damaged_count_is_refused_and_not_taken_for_none(content):
    """A certificate would understate the runs; whoever owns the file decides what to do with it."""
    count_run(tiny_data())
    _file().write_text(content)
    with pytest.raises(InputError, match=r"history: .*runs-by-data\.json is damaged"):
        count_run(tiny_data())
    assert _file().read_text() == content


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="set XDG_STATE_HOME to a folder that can"):
        count_run(tiny_data())
