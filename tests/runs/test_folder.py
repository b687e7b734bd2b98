"""The folder of a run: its private part is its owner's alone, whatever the umask, and its public part tells no time."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from understudy.api import resume
from understudy.errors import InputError
from understudy.runs.folder import RunFolder

from ..helpers.data import tiny_data
from ..helpers.runs import interrupt, open_to_others, read_lines, tiny_train

UMASKS = pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)


@contextmanager
def umask_of(mask: int):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def open_up(folder: Path) -> None:
    """The permissions that earlier versions left, under the umask of most machines."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@UMASKS
def test_the_private_folder_is_its_owners_alone_whatever_the_umask(umask, tmp_path):
    with umask_of(umask):
        tiny_train("dpgan", tiny_data(), tmp_path / "run")
    private = tmp_path / "run" / "private"
    found = {path.name: mode(path) for path in private.rglob("*") if path.is_file()}
    for name in ("data.sha256", "diagnostics.jsonl", "timings.jsonl", "embedding.safetensors", "0000000004.png"):
        assert name in found
    assert set(found.values()) == {0o600}
    assert mode(private) == mode(private / "samples") == 0o700
    assert mode(tmp_path / "run" / "release" / "certificate.json") == 0o666 & ~umask, "what may be shown is as usual"


def test_nobody_could_read_a_private_file_at_any_moment(tmp_path, monkeypatch):
    """Modes are those of creation: with nothing that mends them afterwards they are the same."""
    monkeypatch.setattr("os.chmod", lambda *arguments, **options: None)
    monkeypatch.setattr("os.fchmod", lambda *arguments: None)
    with umask_of(0):
        tiny_train("dpgan", tiny_data(), tmp_path / "run")
    assert open_to_others(tmp_path / "run" / "private") == []


def test_resuming_closes_what_an_earlier_version_left_open(tmp_path):
    interrupt("dpgan", tiny_data(), tmp_path / "run")
    private, elsewhere = tmp_path / "run" / "private", tmp_path / "elsewhere"
    elsewhere.write_text("of somebody else")
    elsewhere.chmod(0o644)
    (private / "link").symlink_to(elsewhere)
    open_up(private)
    elsewhere.chmod(0o644)
    assert private / "samples" in open_to_others(private)
    resume(tiny_data(), tmp_path / "run")
    assert open_to_others(private) == []
    assert mode(elsewhere) == 0o644, "a link is not followed"


def test_a_private_folder_that_cannot_be_closed_is_one_sentence(tmp_path, monkeypatch):
    RunFolder(tmp_path).make_private("run")
    open_up(tmp_path / "private")

    def refuse(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.chmod", refuse)
    sentence = (
        f"run: {tmp_path / 'private'} is open to other users, and that cannot be changed (Operation not permitted)"
    )
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}; .*chown"):
        RunFolder(tmp_path).make_private("run")


# Times


def test_how_long_a_run_worked_is_kept_among_its_private_files_alone(tmp_path):
    tiny_train("dp-merf", tiny_data(), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    shown = read_lines(run.progress)
    assert all("seconds" not in line for line in shown)
    assert [line["step"] for line in read_lines(run.timings)] == [line["step"] for line in shown]
    assert run.seconds() == [line["seconds"] for line in read_lines(run.timings)] == sorted(run.seconds())
    assert run.seconds()[-1] > 0


def test_the_times_of_an_earlier_run_are_read_where_they_stood_and_leave_the_public_file_on_resume(tmp_path):
    interrupt("dp-merf", tiny_data(), tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    (first,) = read_lines(run.progress)
    run.timings.unlink()
    run.progress.write_text(json.dumps({"step": 1, "seconds": 70.5, "loss": 3.0}) + '\n{"step": 2, "seconds": 71.2')
    assert run.seconds() == [70.5]
    resume(tiny_data(), tmp_path / "run")
    assert "seconds" not in run.progress.read_text()
    assert read_lines(run.progress)[0] == {"step": 1, "loss": 3.0}
    assert [line["step"] for line in read_lines(run.progress)] == [first["step"], 2, 3, 4]
    assert run.seconds()[0] == 70.5
    assert 70.5 < run.seconds()[-1] < 170
    assert mode(run.timings) == 0o600


def test_a_kill_between_the_two_files_counts_no_time_twice(tmp_path):
    run = RunFolder(tmp_path)
    run.make_private("run")
    run.progress.write_text('{"step": 1, "seconds": 70.5}\n')
    run.timings.write_text('{"step": 1, "seconds": 70.5}\n')
    run.separate_timings()
    assert run.seconds() == [70.5]
    assert read_lines(run.progress) == [{"step": 1}]


def test_strange_times_are_passed_over(tmp_path):
    run = RunFolder(tmp_path)
    assert run.seconds() == []
    run.make_private("run")
    run.timings.write_text('5\n{"seconds": "1"}\n{"seconds": true}\n{"seconds": NaN}\n{"seconds": 2}\n{"sec')
    assert run.seconds() == [2.0]
