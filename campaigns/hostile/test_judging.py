"""The judge of hostile cases can say no: a crash, a hang, memory and a bad sentence are findings."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from typing import Any

import pytest

from understudy.errors import InputError

from . import certificates, judging
from .targets import TARGETS, Target


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


# Of forged certificates


def _good() -> dict[str, Any]:
    """The certificate of a federation of four."""
    return json.loads(next(each for each in certificates.certificates() if b'"gs-wgan-federated"' in each))


def _first(part: str, **fields: Any) -> Any:
    return lambda document: document[part][0].update(fields)


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (lambda document: document.pop("config_sha256"), "another config_sha256"),
        (lambda document: document.update(method="another"), "another method"),
        (lambda document: document.update(not_covered=[]), "less in not_covered"),
        (_first("events", noise_multiplier=1000.0), "other events"),
        (_first("events", count=1), "other numbers of events"),
        (lambda document: document["events"].pop(), "other events"),
        (lambda document: document["guarantees"].pop(), "other viewers"),
        (lambda document: document["guarantees"].reverse(), "other viewers"),
        (_first("guarantees", epsilon=0.1), "a smaller epsilon at no larger delta"),
        (_first("guarantees", epsilon=0.1, delta=2e-5), "an epsilon below what the larger delta buys"),
        (_first("guarantees", delta=0.5), "a delta above one over the units"),
        (_first("guarantees", epsilon="1"), "numbers that are none"),
    ],
)
def test_a_false_verdict_would_be_noticed(forge, why):
    document = _good()
    forge(document)
    assert certificates.false_of(_good(), json.dumps(document).encode()) == why


def test_a_certificate_that_two_readers_read_differently_would_be_noticed():
    text = json.dumps(_good()).replace('"epsilon": ', '"epsilon": 0.1, "epsilon": ', 1)
    assert certificates.false_of(_good(), text.encode()) == "two readers see two certificates"


def test_what_promises_no_more_than_the_good_certificate_is_not_false():
    document = _good()
    assert certificates.false_of(_good(), json.dumps(document).encode()) is None
    document["guarantees"][0]["epsilon"] += 1
    document["remarks"], document["runs_on_this_data"] = ["as it were"], 7
    assert certificates.false_of(_good(), json.dumps(document).encode()) is None


def test_forgeries_are_of_every_kind():
    """Integers beyond 64 bits, subnormal numbers, keys that occur twice, dropped fields."""
    written = [TARGETS["certificate"].case(number) for number in range(300)]
    assert any(re.search(rb"\d{30}", case) for case in written)
    assert any(b"5e-324" in case for case in written)
    assert any(b'"config_sha256"' not in case for case in written)
    twice = [case for case in written if case.startswith(b"{") and _occurs_twice(case)]
    assert len(twice) > 5


def _occurs_twice(case: bytes) -> bool:
    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    found: list[bool] = []
    with suppress(ValueError, RecursionError):
        json.loads(case, object_pairs_hook=hook)
    return any(found)
