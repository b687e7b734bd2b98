"""Progress of an evaluation: bars on a terminal, lines in a file, and no figure without its stamp."""

from __future__ import annotations

import io
import sys

import pytest

from understudy import progress as scoring
from understudy.evaluate.downstream import DownstreamResult
from understudy.evaluate.parallel import DownstreamProgress
from understudy.progress import show_scoring

RESULT = DownstreamResult("lda", 0.8765, 12.34, 100, 100, 50, "settings")
PROGRESS = DownstreamProgress(1, 13, RESULT, "real data")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_one_line_for_each_classifier_and_few_for_counted_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with show_scoring() as listeners:
        listeners.classifiers(PROGRESS)
        listeners.counts("images", 5, 10)  # too soon for a line
        monkeypatch.setattr(scoring, "_SECONDS_BETWEEN_LINES", 0.0)
        listeners.counts("images", 6, 10)
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["  1/13  lda trained on real data in 12.3 s", "6/10 images"]
    assert captured.out == ""


def test_a_terminal_gets_bars_and_no_accuracy(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_scoring() as listeners:
        listeners.counts("images", 5, 10)
        listeners.classifiers(PROGRESS)
    shown = terminal.getvalue()
    for part in ("5/10", "images", "1/13", "classifiers trained on real data", "lda trained on real data in 12.3 s"):
        assert part in shown
    assert "87" not in shown
