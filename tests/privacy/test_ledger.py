"""The ledger: append-only, written before use, and never smaller than what was spent."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.privacy.events import Event, RoutedSampling
from understudy.privacy.ledger import Ledger

GAUSSIAN = Event(noise_multiplier=1.5, count=1, purpose="gradients")


def planned(count, event=GAUSSIAN):
    return event.model_copy(update={"count": count})


def test_a_run_is_charged_for_its_plan_even_if_it_stops_early(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    ledger.account(planned(100)).spend(7)
    (event,) = ledger.events()
    assert (event.count, event.planned, event.executed) == (100, 100, 7)


def test_spending_past_the_plan_is_refused_and_not_recorded(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    account = ledger.account(planned(10))
    account.spend(8)
    with pytest.raises(BudgetError, match="only 2 of the 10 planned are left"):
        account.spend(3)
    assert Ledger.open(ledger.path).events()[0].executed == 8


def test_blocks_are_reserved_before_use_and_cut_to_the_plan(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    account = ledger.account(planned(25))
    executed_on_disk = []
    for _ in range(25):
        account.spend(1, block=10)
        executed_on_disk.append(Ledger.open(ledger.path).events()[0].executed)
    assert executed_on_disk == [10] * 10 + [20] * 10 + [25] * 5


def test_a_reopened_ledger_counts_unused_reservations_as_spent(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    ledger.account(planned(20)).spend(1, block=15)
    account = Ledger.open(ledger.path).account(planned(20))
    assert account.remaining == 5
    account.spend(5)
    with pytest.raises(BudgetError):
        account.spend(1)


def test_a_raised_plan_is_recorded_as_raised_and_a_lowered_one_does_not_lower_the_charge(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    ledger.account(planned(10))
    assert not ledger.plan_was_raised()
    ledger.account(planned(5))
    assert ledger.events()[0].count == 10
    ledger.account(planned(30))
    reopened = Ledger.open(ledger.path)
    assert reopened.plan_was_raised()
    assert reopened.events()[0].count == 30


def test_another_mechanism_under_the_same_purpose_is_refused(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    ledger.account(planned(10))
    for changes in ({"noise_multiplier": 9.0}, {"sampling": RoutedSampling(subsets=9)}, {"unit": "client"}):
        with pytest.raises(InputError, match="another mechanism"):
            Ledger.open(ledger.path).account(GAUSSIAN.model_copy(update=changes))


def test_an_event_without_a_purpose_cannot_be_planned(tmp_path):
    with pytest.raises(InputError, match="purpose"):
        Ledger.create(tmp_path / "ledger.jsonl").account(Event(noise_multiplier=1.5, count=1))


def test_an_aborted_run_stays_aborted(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    ledger.check_releasable()
    ledger.abort("gradients were not finite")
    for same in (ledger, Ledger.open(ledger.path)):
        with pytest.raises(AbortedRun, match="start a new one"):
            same.check_releasable()


def test_an_existing_ledger_is_never_overwritten(tmp_path):
    Ledger.create(tmp_path / "ledger.jsonl").note("first")
    with pytest.raises(InputError, match="exists already"):
        Ledger.create(tmp_path / "ledger.jsonl")


def _ledger_with_lines(path, lines=5):
    ledger = Ledger.create(path)
    account = ledger.account(planned(100))
    for _ in range(lines):
        account.spend(1)
    return ledger


@given(cut=st.integers(min_value=1, max_value=30))
def test_a_torn_last_line_is_cut_off_and_the_rest_stands(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    _ledger_with_lines(path)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    assert Ledger.open(path).events()[0].executed == 4
    reopened = Ledger.open(path)
    reopened.account(planned(100)).spend(1)
    assert Ledger.open(path).events()[0].executed == 5


@pytest.mark.parametrize("line", [0, 2, 5])
def test_damage_inside_the_ledger_is_refused_not_repaired(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    _ledger_with_lines(path)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = json.loads(lines[line])
    changed["count"] = 0
    lines[line] = json.dumps(changed).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=f"damaged at line {line + 1}"):
        Ledger.open(path)


@pytest.mark.parametrize("line", [1, 3])
def test_a_removed_line_is_noticed(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    _ledger_with_lines(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:line] + lines[line + 1 :]))
    with pytest.raises(InputError, match="damaged"):
        Ledger.open(path)


def test_a_full_disk_spends_nothing_that_is_not_on_record(tmp_path):
    ledger = _ledger_with_lines(tmp_path / "ledger.jsonl")
    account = ledger.account(planned(100))
    size = ledger.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
        with pytest.raises(InputError, match="could not be written"):
            account.spend(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    account.spend(1)
    assert Ledger.open(ledger.path).events()[0].executed == 6


_SPENDER = """
    import sys
    from pathlib import Path
    from understudy.privacy.events import Event
    from understudy.privacy.ledger import Ledger

    path, block = Path(sys.argv[1]), int(sys.argv[2])
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    account = ledger.account(Event(noise_multiplier=1.5, count=10**9, purpose="gradients"))
    while True:
        account.spend(1, block=block)
        sys.stdout.buffer.write(b"u")  # one output used
        sys.stdout.buffer.flush()
"""


def test_kill_9_at_random_points_never_loses_spending(tmp_path):
    """Twelve kills of a process that spends as fast as it can, on one ledger: used never exceeds recorded."""
    path, used = tmp_path / "ledger.jsonl", 0
    for attempt in range(12):
        with (tmp_path / f"output-{attempt}").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(_SPENDER), str(path), str(random.choice([1, 3, 50]))],
                stdout=output,
            )
            deadline = time.monotonic() + 30
            while os.path.getsize(output.name) == 0 and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(random.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            process.wait()
        used += os.path.getsize(output.name)
        assert used > 0
        assert Ledger.open(path).events()[0].executed >= used


def test_what_was_spent_under_a_key_is_known_after_a_crash_and_never_spent_again(tmp_path):
    account = Ledger.create(tmp_path / "ledger.jsonl").account(planned(5))
    assert account.spend_for("round 0", 2).executed == 2
    assert account.spend_for("round 1", 0) is not None
    again = Ledger.open(tmp_path / "ledger.jsonl").account(planned(5))
    assert again.keys == {"round 0", "round 1"}
    assert again.spend_for("round 0", 2) is None
    with pytest.raises(BudgetError, match="only 3 of the 5 planned are left"):
        again.spend_for("round 2", 4)
    assert again.reserved == 2
