"""Runs that are killed with ``kill -9``: no spending is lost, nothing is drawn twice, and the run can be finished."""

from __future__ import annotations

import random
import time

import pytest
from tests.helpers.cases import each_method
from tests.helpers.runs import read_lines

from understudy.privacy.ledger import Ledger
from understudy.release.release import load
from understudy.release.verify import verify

METHODS = each_method()
KILLS = 8


def assert_finished_at_the_planned_price(attempt) -> None:
    events = Ledger.open(attempt.run / "ledger.jsonl").events()
    certificate = load(attempt.run).certificate
    assert 0 < attempt.used() <= sum(event.executed for event in events)
    assert all(event.executed <= event.planned == event.count for event in events)
    assert certificate.events == events
    assert not certificate.plan_raised
    assert verify(attempt.run).passed


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_left_alone_uses_what_it_records(attempt, method):
    undisturbed = attempt(method)
    assert undisturbed.train().code == 0
    events = Ledger.open(undisturbed.run / "ledger.jsonl").events()
    assert undisturbed.used() == sum(event.executed for event in events) == sum(event.planned for event in events)
    assert_finished_at_the_planned_price(undisturbed)


def die_and_carry_on(attempt, method: str, first: int, every: int) -> None:
    """Die right before or right after something is made durable; each time carry on to the end."""
    place, survived = first, False
    while not survived:
        victim = attempt(method, f"death-{place}")
        code = victim.train(die_at=place).code
        survived = code == 0
        if not survived:
            assert code == -9
            finished = victim.carry_on()
            assert finished.code == 0, f"death {place}: {finished.stderr}"
        assert_finished_at_the_planned_price(victim)
        place += every
    assert place > 50, "a run makes things durable at least 25 times"


@pytest.mark.parametrize(("method", "every"), each_method(29))
def test_a_run_survives_death_at_places_all_along_its_way(attempt, method, every):
    die_and_carry_on(attempt, method, first=1, every=every)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("first", range(1, 8))
def test_a_run_survives_death_at_every_place(attempt, method, first):
    die_and_carry_on(attempt, method, first, every=7)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_is_killed_again_and_again_at_random_moments_ends_with_every_use_on_record(attempt, method):
    """Checkpoints at every step, so that each life gets a little further; the last one is left alone."""
    victim = attempt(method, runtime={"checkpoint_seconds": 0.001})
    embeddings = set()
    for life in range(KILLS):
        pid = victim.start_or_resume()
        time.sleep(random.uniform(0, 0.6))
        victim.kill(pid)
        outcome = victim.wait(pid)
        assert outcome.code in (0, -9), outcome.stderr
        if (victim.run / "ledger.jsonl").exists() and (victim.run / "ledger.jsonl").stat().st_size:
            events = Ledger.open(victim.run / "ledger.jsonl").events()
            assert sum(event.executed for event in events) >= victim.used(), f"life {life}"
        embeddings |= {path.read_bytes() for path in (victim.run / "private").glob("embedding.safetensors")}
    assert victim.carry_on().code == 0
    assert_finished_at_the_planned_price(victim)
    assert len(embeddings) <= 1, "a noisy sum that is drawn once is the same in every life"
    if method == "dp-merf":
        assert victim.used() == 1


def test_a_killed_run_continues_from_its_newest_checkpoint(attempt):
    victim = attempt("dp-merf", method={"steps": 300}, runtime={"checkpoint_seconds": 0.001})
    pid = victim.start()
    deadline = time.monotonic() + 60
    while len(list((victim.run / "private").glob("checkpoint-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.002)
    victim.kill(pid)
    assert victim.wait(pid).code == -9
    (newest,) = sorted((victim.run / "private").glob("checkpoint-*"))[-1:]
    step = int(newest.stem.removeprefix("checkpoint-"))
    assert 0 < step < 300
    (victim.run / "progress.jsonl").unlink(missing_ok=True)
    assert victim.carry_on().code == 0
    steps = [line["step"] for line in read_lines(victim.run / "progress.jsonl")]
    assert min(steps) > step
    assert max(steps) == 300
