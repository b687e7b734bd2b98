"""Runs: what may be shown, when checkpoints are due, spending so far, one process a folder, and the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

from understudy.devices import choose_device
from understudy.errors import InputError, InterruptedRun
from understudy.methods.config import build_config
from understudy.methods.registry import get_method
from understudy.privacy import accounting
from understudy.privacy.events import Event, RevealedRouting, RoutedSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.folder import locked
from understudy.runs.run import Run

from ..helpers.cases import BUDGET, case_of
from ..helpers.data import tiny_data
from ..helpers.runs import read_lines


@pytest.fixture
def run(tmp_path):
    method = get_method("dp-merf")
    plan = method.plan(build_config(method.config_type, case_of("dp-merf").config()), tiny_data().domain, BUDGET)
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    return Run(tmp_path, plan, tiny_data(), ledger, Randomness(), torch.device("cpu"))


def test_progress_is_shown_and_recorded_with_the_spending_so_far(run):
    shown = []
    run.listener = shown.append
    run.report(1, loss=0.5)
    run.ledger.account(Event(noise_multiplier=5.0, count=1, purpose="embedding")).spend(1)
    run.report(2, loss=0.25)
    lines = read_lines(run.folder / "progress.jsonl")
    assert [line["loss"] for line in lines] == [0.5, 0.25]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["epsilon_spent"] == 0
    assert lines[1]["epsilon_spent"] == accounting.certified_epsilon(
        [Event(noise_multiplier=5.0, count=1)], BUDGET.delta
    )
    assert [progress.step for progress in shown] == [1, 2]
    assert shown[0].steps == run.plan.steps
    assert shown[1].values == {"loss": 0.25, "epsilon_spent": lines[1]["epsilon_spent"]}


def test_a_resumed_run_goes_on_counting_its_seconds(run):
    with (run.private / "timings.jsonl").open("w") as file:
        file.write('{"step": 1, "seconds": 70.5}\n{"step": 2, "seco')  # torn by a kill
    again = Run(run.folder, run.plan, run.data, run.ledger, Randomness(), torch.device("cpu"))
    shown = []
    again.listener = shown.append
    again.prepare()
    assert 70.5 <= shown[0].seconds < 100


@pytest.mark.parametrize(
    "event",
    [
        Event(noise_multiplier=5.0, sensitivity="2C", sampling=RoutedSampling(subsets=4), count=40, purpose="answers"),
        Event(
            noise_multiplier=5.0,
            sensitivity="2C",
            sampling=RevealedRouting(subsets=4, rows=4),
            count=40,
            purpose="answers",
        ),
    ],
)
def test_the_spending_that_is_shown_is_never_below_what_was_spent_and_ends_at_the_plan(run, event):
    account = run.ledger.account(event)
    shown = []
    for _ in range(10):
        spent = account.spend(4)
        shown.append(run.epsilon_spent())
        executed = [spent.charged(planned=0, executed=run.ledger.events()[0].executed)]
        assert shown[-1] >= accounting.epsilon(executed, BUDGET.delta)
    assert shown == sorted(shown)
    assert shown[-1] == accounting.certified_epsilon(run.ledger.events(), BUDGET.delta)


def test_private_diagnostics_go_to_the_private_folder_and_nowhere_else(run):
    run.diagnose(3, gradient_norm=1.5)
    assert read_lines(run.private / "diagnostics.jsonl") == [{"step": 3, "gradient_norm": 1.5}]
    assert not (run.folder / "progress.jsonl").exists()


def test_checkpoints_are_due_after_the_time_of_the_config_or_when_asked_to_stop(run, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run.checkpoint(1, {"released.x": torch.ones(1)})
    now[0] += run.plan.config.runtime.checkpoint_seconds - 1
    assert not run.checkpoint_due()
    now[0] += 2
    assert run.checkpoint_due()
    run.checkpoint(2, {"released.x": torch.ones(1)})
    assert not run.checkpoint_due()
    run.stop_requested = lambda: True
    assert run.checkpoint_due()


def test_a_run_that_was_asked_to_stop_ends_after_its_checkpoint_and_says_how_to_go_on(run):
    run.stop_requested = lambda: True
    with pytest.raises(InterruptedRun, match="interrupted after step 3 of 4; continue with --resume") as caught:
        run.checkpoint(3, {"released.x": torch.ones(1)})
    assert caught.value.exit_code == 130
    assert run.checkpoints.load_latest().step == 3
    assert read_lines(run.folder / "ledger.jsonl")[-1]["text"] == "interrupted after step 3"


def test_a_checkpoint_is_not_restored_under_a_ledger_that_lost_records(run):
    run.ledger.note("first")
    content = run.ledger.path.read_bytes()
    run.ledger.note("second")
    run.checkpoint(1, {"released.x": torch.ones(1)})
    assert run.restore().step == 1
    run.ledger.path.write_bytes(content)
    run.ledger = Ledger.open(run.ledger.path)
    with pytest.raises(InputError, match="does not hold what it held when step 1 was saved"):
        run.restore()
    run.ledger.note("another second")
    with pytest.raises(InputError, match="its spending is unknown"):
        run.restore()


_HOLDER = """
    import sys
    from pathlib import Path
    from understudy.runs.folder import locked

    with locked(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
"""


def test_a_folder_is_held_by_one_process_and_free_again_when_it_ends_even_by_kill(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_HOLDER), str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another process is working in"), locked(tmp_path):
            pass
        holder.kill()
    with locked(tmp_path):
        pass


def test_a_lock_is_given_back_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError), locked(tmp_path):
        raise RuntimeError
    with locked(tmp_path):
        pass


def test_a_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(
        InputError, match="'cuda:1' asked for, but this machine has no usable CUDA device; pass auto or cpu"
    ):
        choose_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")


def test_the_listing_of_a_run_folder_separates_private_from_public(run):
    run.report(1, loss=1.0)
    run.diagnose(1, norm=1.0)
    run.checkpoint(1, {"released.x": torch.ones(1)})
    assert sorted(os.listdir(run.folder)) == ["ledger.jsonl", "private", "progress.jsonl"]
    kept = ["checkpoint-0000000001.safetensors", "diagnostics.jsonl", "timings.jsonl"]
    assert sorted(os.listdir(run.private)) == kept
    assert json.loads((run.folder / "progress.jsonl").read_text()).keys() == {"step", "loss", "epsilon_spent"}
