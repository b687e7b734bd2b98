"""Damaged run folders: what can be made good is made good, and what would hide spending is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.helpers.cases import each_method
from tests.helpers.data import tiny_data
from tests.helpers.runs import interrupt, read_lines, tiny_train

from understudy.api import release_early, resume
from understudy.data.dataset import ImageDataset
from understudy.errors import InputError
from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify

METHODS = each_method()


@pytest.fixture(params=METHODS)
def interrupted(request, tmp_path):
    interrupt(request.param, tiny_data(), tmp_path / "run")
    return tmp_path / "run"


def _checkpoints(run):
    return sorted((run / "private").glob("checkpoint-*.safetensors"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keep", [0, 5, 500, -1])
def test_a_truncated_newest_checkpoint_is_passed_over_for_the_one_before(method, keep, tmp_path):
    data, run, reports = tiny_data(), tmp_path / "run", []
    options = {"listener": reports.append, "stop_requested": lambda: sum(report.step > 0 for report in reports) > 2}
    with pytest.raises(Exception, match="interrupted after step 3"):
        tiny_train(method, data, run, runtime={"checkpoint_seconds": 1e-9}, **options)
    older, newest = _checkpoints(run)
    newest.write_bytes(newest.read_bytes()[:keep])
    assert "released early after step 2" in release_early(run).certificate.stopped_because
    resume(data, run)
    assert verify(run).passed
    events = Ledger.open(run / "ledger.jsonl").events()
    assert all(event.executed <= event.planned for event in events), "what is done again is paid again"
    steps = [line["step"] for line in read_lines(run / "progress.jsonl")]
    assert steps[:3] == [1, 2, 3]
    assert steps[3:] in ([3, 4], [3]), "again from the older checkpoint, for as long as the plan pays for it"
    assert older.exists() or len(_checkpoints(run)) == 2


def test_a_run_whose_checkpoints_are_all_damaged_says_so(interrupted):
    for path in _checkpoints(interrupted):
        path.write_bytes(b"")
    for action in (lambda: resume(tiny_data(), interrupted), lambda: release_early(interrupted)):
        with pytest.raises(InputError, match=r"checkpoint: none of the 1 in .* can be read; start a new run"):
            action()


def test_a_torn_last_line_of_the_ledger_is_cut_off_and_the_run_goes_on(interrupted):
    with (interrupted / "ledger.jsonl").open("ab") as file:
        file.write(b'{"number":7,"kind":"reserve","purpose":"never acted up')
    resume(tiny_data(), interrupted)
    assert verify(interrupted).passed
    assert all(line["kind"] in ("plan", "reserve", "note") for line in read_lines(interrupted / "ledger.jsonl"))


@pytest.mark.parametrize("line", [0, 1])
def test_a_ledger_that_is_damaged_inside_stops_the_run(interrupted, line):
    lines = (interrupted / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"planned":', b'"Planned":').replace(b'"count":', b'"Count":')
    (interrupted / "ledger.jsonl").write_bytes(b"".join(lines))
    for action in (lambda: resume(tiny_data(), interrupted), lambda: release_early(interrupted)):
        with pytest.raises(InputError, match=f"damaged at line {line + 1}; its spending is unknown"):
            action()
    assert not (interrupted / "release").exists()


def test_a_ledger_that_is_gone_stops_the_run(interrupted):
    (interrupted / "ledger.jsonl").unlink()
    with pytest.raises(InputError, match=r"ledger: .* cannot be read"):
        resume(tiny_data(), interrupted)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_ledger_that_lost_whole_lines_is_older_than_the_checkpoint_and_stops_the_run(interrupted, kept):
    """A whole ledger from an older copy of the folder has valid checksums; the checkpoint knows that it was longer."""
    lines = (interrupted / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    assert lines[kept + 1 :], "more is lost than the note of the interruption"
    (interrupted / "ledger.jsonl").write_bytes(b"".join(lines[:kept]))
    for action in (lambda: resume(tiny_data(), interrupted), lambda: release_early(interrupted)):
        with pytest.raises(InputError, match="spending is unknown"):
            action()
    assert not (interrupted / "release").exists()


def test_a_run_is_not_resumed_on_other_data(interrupted):
    other = tiny_data()
    images = other.images.copy()
    images[0, 0, 0, 0] ^= 1
    changed = ImageDataset(other.name, other.domain, images, other.labels)
    fewer = other.subset(np.arange(39))
    before = (interrupted / "ledger.jsonl").read_bytes()
    for data in (changed, fewer, tiny_data("unlabelled"), tiny_data(nominal=41)):
        with pytest.raises(InputError, match=r"was started on other data \(arrays\); resume it with the same data"):
            resume(data, interrupted)
    assert (interrupted / "ledger.jsonl").read_bytes() == before


def test_a_description_that_asks_for_less_noise_than_the_ledger_holds_is_refused(interrupted):
    """Events follow from what the ledger recorded; editing the config cannot make a run cheaper or bolder."""
    description = json.loads((interrupted / "run.json").read_text())
    description["config"]["privacy"]["noise_multiplier"] = 9.0
    (interrupted / "run.json").write_text(json.dumps(description))
    with pytest.raises(InputError, match="was recorded with another mechanism; start a new run for the new one"):
        resume(tiny_data(), interrupted)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"method": "dp-merf"}', '{"surprise": 1}'])
def test_a_damaged_description_is_one_sentence(interrupted, content):
    (interrupted / "run.json").write_text(content)
    for action in (lambda: resume(tiny_data(), interrupted), lambda: release_early(interrupted)):
        with pytest.raises(InputError, match=r"run: .*run\.json is not (valid JSON|the description of a run)"):
            action()
