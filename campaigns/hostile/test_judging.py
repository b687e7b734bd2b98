"""The judge of hostile cases can say no: a crash, a hang, memory and a bad sentence are findings."""

from __future__ import annotations

import time

import pytest

from understudy.errors import InputError

from . import judging
from .targets import Target


class _Raw(InputError):
    def __str__(self) -> str:
        return self.args[0]


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda content, folder: {}["missing"], "KeyError"),
        (lambda content, folder: _raise(RecursionError("deep")), "RecursionError"),
        (lambda content, folder: time.sleep(5), "took more than"),
        (lambda content, folder: None, "kB of memory"),
        (lambda content, folder: _raise(_Raw("two\nlines")), "not one printable line"),
        (lambda content, folder: _raise(_Raw("x" * 5000)), "a sentence of 5000 characters"),
    ],
)
def test_a_finding_is_seen(read, problem, monkeypatch):
    monkeypatch.setattr(judging, "LIMIT_SECONDS", 1.0)
    monkeypatch.setattr(judging, "LIMIT_KILOBYTES", 10_000)
    if "memory" in problem:
        peaks = [0, 200_000]  # the peak of a test process depends on what ran in it before
        monkeypatch.setattr(judging, "_peak_kilobytes", lambda: peaks.pop(0))
    verdict, found = judging.judge(Target("test", list, (), 1, read), b"")
    assert verdict == "finding"
    assert problem in found


def test_what_is_in_order_is_none():
    assert judging.judge(Target("test", list, (), 1, lambda content, folder: None), b"") == ("accepted", None)
    refuse = Target("test", list, (), 1, lambda content, folder: _raise(InputError("no; do something else")))
    assert judging.judge(refuse, b"") == ("refused", None)
