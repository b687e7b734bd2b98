"""Progress of a run and of an evaluation: bars on a terminal, lines in a file, and no figure without its stamp."""

from __future__ import annotations

import io
import sys

import pytest

from understudy import progress as scoring
from understudy.evaluate.downstream import DownstreamResult
from understudy.evaluate.parallel import DownstreamProgress
from understudy.progress import show_progress, show_scoring
from understudy.runs.run import Progress

RESULT = DownstreamResult("lda", 0.8765, 12.34, 100, 100, 50, "settings")
PROGRESS = DownstreamProgress(1, 13, RESULT, "real data")


class Clock:
    """Stands in for the module ``time``."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_one_line_for_each_classifier_and_few_for_counted_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr(scoring, "time", clock)
    with show_scoring() as listeners:
        listeners.classifiers(PROGRESS)
        clock.now += 6
        listeners.counts("images", 3, 10)  # too soon for a line
        clock.now += 6
        listeners.counts("images", 6, 10)
        clock.now += 20
        listeners.counts("pages", 1, 3)  # the first that is heard of them
    captured = capsys.readouterr()
    lines = ["  1/13  lda trained on real data in 12.3 s", "6/10 images  about 8 seconds left"]
    lines += ["1/3 pages  about 40 seconds left"]
    assert captured.err.splitlines() == lines
    assert captured.out == ""


def test_a_terminal_gets_bars_and_no_accuracy(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    clock = Clock()
    monkeypatch.setattr(scoring, "time", clock)
    with show_scoring() as listeners:
        clock.now += 5
        listeners.counts("images", 5, 15)
        listeners.classifiers(PROGRESS)
    shown = terminal.getvalue()
    parts = ("5/15", "images  about 10 seconds left", "1/13", "classifiers trained on real data")
    for part in (*parts, "lda trained on real data in 12.3 s"):
        assert part in shown
    assert "87" not in shown


def test_lines_of_a_run_say_how_long_the_rest_will_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr(scoring, "time", clock)
    with show_progress() as listen:
        for step, seconds in ((0, 5.0), (100, 65.0), (900, 545.0), (1000, 605.0)):
            clock.now += 20
            listen(Progress(step, 1000, {}, seconds))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 0/1000  "
    assert lines[1].endswith("about 9 minutes left")
    assert lines[2].endswith("about 60 seconds left")
    assert "left" not in lines[3]


def test_what_is_prepared_shows_its_own_time_left_and_slows_no_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr(scoring, "time", clock)
    with show_progress() as listen:
        for share, seconds in ((0.05, 10.0), (0.1, 20.0), (0.9, 180.0)):
            clock.now += 20
            listen(Progress(0, 600, {"teacher_features": share}, seconds, "teacher_features"))
        for step, seconds in ((306, 210.0), (312, 216.0)):
            clock.now += 20
            listen(Progress(step, 600, {}, seconds))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "step 0/600  teacher features 10 %  about 3 minutes left"
    assert lines[2] == "step 0/600  teacher features 90 %  about 20 seconds left"
    assert "left" not in lines[3]  # how fast steps are is not known yet
    assert lines[4] == "step 312/600  1 steps/s  about 5 minutes left"


def test_a_terminal_shows_the_time_left_of_what_is_prepared(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    with show_progress() as listen:
        for share in (0.25, 0.5):
            listen(Progress(0, 600, {"warmed_up": share}, 40 * share, "warmed_up"))
    assert "warmed up 50 %  about 20 seconds left" in terminal.getvalue()


def test_a_terminal_shows_the_time_left_of_a_run(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_progress() as listen:
        listen(Progress(10, 100, {"loss": 0.5}, 1.0))
    assert "10/100" in terminal.getvalue()
    assert "left" in terminal.getvalue()
