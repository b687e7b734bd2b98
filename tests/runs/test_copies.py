"""Copied run folders: one copy goes on, and the plan is not spent twice without a word."""

from __future__ import annotations

import json
import shutil

import pytest

from understudy.api import TrainOptions, release_early, resume
from understudy.errors import InputError
from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify
from understudy.runs.copies import MOVED

from ..helpers.data import tiny_data
from ..helpers.runs import interrupt, tiny_train


@pytest.fixture
def interrupted(tmp_path):
    interrupt("gs-wgan", tiny_data(), tmp_path / "run")
    return tmp_path / "run"


def test_a_copy_is_continued_only_if_it_is_declared_to_be_the_only_one(interrupted, tmp_path):
    copy = shutil.copytree(interrupted, tmp_path / "copy")
    before = (copy / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"is a copy, or was restored, .* say so with --moved \(moved=True\)"):
        resume(tiny_data(), copy)
    assert (copy / "ledger.jsonl").read_bytes() == before
    release = resume(tiny_data(), copy, TrainOptions(moved=True))
    assert MOVED in release.certificate.remarks
    assert verify(copy).passed
    resume(tiny_data(), copy)  # it lives here now


def test_of_two_copies_on_one_machine_the_second_is_refused_whatever_is_declared(interrupted, tmp_path):
    copy = shutil.copytree(interrupted, tmp_path / "copy")
    resume(tiny_data(), copy, TrainOptions(moved=True))
    for action in (
        lambda: resume(tiny_data(), interrupted),
        lambda: resume(tiny_data(), interrupted, TrainOptions(moved=True)),
        lambda: release_early(interrupted),
    ):
        with pytest.raises(InputError, match=r"another copy of the run was continued .* go on with the newest copy"):
            action()
    assert not (interrupted / "release").exists()


def test_a_run_whose_copy_was_continued_meanwhile_releases_nothing(tmp_path):
    data, run, copy, reports = tiny_data(), tmp_path / "run", tmp_path / "copy", []

    def copy_and_continue() -> bool:
        if reports and not copy.exists():
            shutil.copytree(run, copy)
            resume(data, copy, TrainOptions(moved=True))
        return False

    with pytest.raises(InputError, match="another copy of the run was continued"):
        tiny_train("gs-wgan", data, run, listener=reports.append, stop_requested=copy_and_continue)
    assert not (run / "release").exists()
    assert verify(copy).passed


def test_a_folder_that_was_renamed_or_mounted_again_is_the_same_folder(interrupted, tmp_path):
    renamed = interrupted.rename(tmp_path / "renamed")
    description = json.loads((renamed / "run.json").read_text())
    release = resume(tiny_data(), renamed)
    assert MOVED not in release.certificate.remarks
    description = json.loads((renamed / "run.json").read_text())
    description["identity"]["device"] += 1  # as after a restart of the machine
    (renamed / "run.json").write_text(json.dumps(description))
    assert MOVED not in resume(tiny_data(), renamed).certificate.remarks


def test_a_folder_that_was_restored_from_an_older_backup_is_refused(interrupted, tmp_path):
    backup = shutil.copytree(interrupted, tmp_path / "backup")
    resume(tiny_data(), interrupted)
    spent = [event.executed for event in Ledger.open(interrupted / "ledger.jsonl").events()]
    shutil.rmtree(interrupted)
    shutil.copytree(backup, interrupted)
    assert [event.executed for event in Ledger.open(interrupted / "ledger.jsonl").events()] != spent
    with pytest.raises(InputError, match=r"spending is unknown|is a copy, or was restored"):
        resume(tiny_data(), interrupted)
    with pytest.raises(InputError, match="spending is unknown"):
        resume(tiny_data(), interrupted, TrainOptions(moved=True))


def test_a_run_from_before_there_were_identities_can_be_continued(interrupted):
    description = json.loads((interrupted / "run.json").read_text())
    del description["identity"]
    (interrupted / "run.json").write_text(json.dumps(description))
    resume(tiny_data(), interrupted)
    assert verify(interrupted).passed


@pytest.mark.parametrize("identity", [{}, [], "here", {"name": "../../elsewhere"}])
def test_a_damaged_identity_is_one_sentence(interrupted, identity):
    description = json.loads((interrupted / "run.json").read_text())
    if isinstance(identity, dict) and identity:
        identity = {**description["identity"], **identity}
    (interrupted / "run.json").write_text(json.dumps({**description, "identity": identity}))
    with pytest.raises(InputError, match="not the description of a run; the file is damaged"):
        resume(tiny_data(), interrupted)


def test_the_state_of_the_machine_that_cannot_be_read_or_written_is_named(interrupted, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"history: .* set XDG_STATE_HOME"):
        resume(tiny_data(), interrupted)
