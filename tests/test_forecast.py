"""What is said before a run spends anything: time, warnings, and a question before a long run on a processor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import understudy as us
from understudy.data.domain import declare_domain
from understudy.errors import InputError
from understudy.forecast import Consent, announce, duration, warnings
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.plan import Plan, remarked

from .helpers.data import tiny_data


def planned(settings: Mapping[str, Any] | None = None, delta: float = 1e-5, **declared: object) -> Plan:
    facts = {"shape": (1, 28, 28), "classes": 10, "nominal_records": 60_000} | declared
    method = get_method("dp-merf")
    config = configure(method, {"method": settings or {}, "runtime": {"device": "cpu"}})
    return remarked(method.plan(config, declare_domain(**facts), Budget(10, delta)))


def said(plan: Plan, consent: Consent | None = None) -> list[str]:
    sentences: list[str] = []
    announce(plan, consent or Consent(at_terminal=lambda: False), sentences.append)
    return sentences


LONG = {"steps": 2_000_000}


def test_a_usual_plan_is_announced_without_a_warning_or_a_question():
    (sentence,) = said(planned({"steps": 1000}))
    assert sentence.startswith("dp-merf: 1,000 steps, roughly ")
    assert sentence.endswith(" on this CPU")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"nominal_records": 499}, "records: 499 are declared; below 500"),
        ({"nominal_people": 200}, "people: 200 are declared; below 500"),
        ({"classes": 101}, "classes: 101 share 60,000 records; above 100"),
        ({"shape": (3, 48, 48)}, "images: 3x48x48 is more than dp-merf was measured on (3x32x32)"),
        ({"delta": 1e-3, "nominal_records": 1000}, "delta: 0.001 times 1000 records is 1 or more"),
    ],
)
def test_what_speaks_against_a_run_is_said_before_it_begins(declared: dict[str, Any], words: str):
    plan = planned(**declared)
    assert any(sentence.startswith(f"warning: {words}") for sentence in said(plan, Consent(agreed=True)))


def test_at_the_limits_nothing_is_warned_of():
    assert warnings(planned(nominal_records=500, classes=100)) == ()


def test_what_is_not_private_is_not_warned_of_few_records():
    method = get_method("gan")
    domain = declare_domain(shape=(1, 8, 8), classes=2, nominal_records=40)
    assert warnings(method.plan(configure(method, {}), domain, us.Budget(1, 1e-5))) == ()


@pytest.mark.parametrize("answer", ["y", "YES "])
def test_a_long_run_is_begun_after_a_yes_at_a_terminal(answer: str, capsys: pytest.CaptureFixture[str]):
    sentences = said(planned(LONG), Consent(at_terminal=lambda: True, answer=lambda: answer))
    assert sentences[0] == f"dp-merf: 2,000,000 steps, roughly {duration(planned(LONG).seconds)} on this CPU"
    assert capsys.readouterr().err == "Begin? [y/N] "


@pytest.mark.parametrize("answer", ["", "n", "perhaps"])
def test_anything_else_begins_nothing(answer: str):
    with pytest.raises(InputError, match="not begun, and nothing was spent"):
        said(planned(LONG), Consent(at_terminal=lambda: True, answer=lambda: answer))


def test_an_input_that_ends_is_no_yes():
    def ends() -> str:
        raise EOFError

    with pytest.raises(InputError, match="not begun"):
        said(planned(LONG), Consent(at_terminal=lambda: True, answer=ends))


def test_without_a_terminal_a_long_run_is_refused_at_once_and_a_yes_beforehand_asks_nothing():
    heard: list[str] = []
    with pytest.raises(InputError, match=r"would take about .* hours on this CPU; pass --yes"):
        announce(planned(LONG), Consent(at_terminal=lambda: False), heard.append)
    assert heard == [], "one sentence, which is the refusal"
    assert len(said(planned(LONG), Consent(agreed=True, at_terminal=lambda: False))) == 1


def test_python_never_asks(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("understudy.forecast.LONG_SECONDS", 0.0)
    tiny = {"frequencies": 20, "steps": 4, "batch": 20, "width": 4, "latent": 4}
    options = us.TrainOptions(config={"method": tiny, "runtime": {"device": "cpu"}})
    release = us.train("dp-merf", tiny_data(), us.Budget(10, 1e-5), tmp_path / "run", options)
    assert release.certificate.stopped_because == "finished as planned"


def test_times_in_words():
    words = [duration(seconds) for seconds in (0.2, 42, 600, 7200, 131 * 3600)]
    assert words == ["a second", "42 seconds", "10 minutes", "2.0 hours", "131.0 hours"]
