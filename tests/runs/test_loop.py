"""Resumable loops: a run that was stopped anywhere and resumed has the state it would have had without the stop.

Checkpoints: the last two are kept, a damaged one is passed over, and what is loaded is what was saved.
"""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import InputError, InterruptedRun
from understudy.methods.config import build_config
from understudy.methods.registry import get_method
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.loop import Checkpoint, Checkpoints, Resumable, _pack, _unpack, released_weights
from understudy.runs.run import Run

from ..helpers.cases import BUDGET, case_of
from ..helpers.data import tiny_data

STEPS = 7


def a_run(folder, stop_after=None, checkpoint_seconds=3600.0) -> Run:
    """A run in ``folder``, new or continued, that is asked to stop after some step."""
    folder.mkdir(exist_ok=True)
    method, config = (
        get_method("dp-merf"),
        case_of("dp-merf").config(runtime={"checkpoint_seconds": checkpoint_seconds}),
    )
    plan = method.plan(build_config(method.config_type, config), tiny_data().domain, BUDGET)
    path = folder / "ledger.jsonl"
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    run = Run(folder, plan, tiny_data(), ledger, Randomness(), torch.device("cpu"))
    run.stop_requested = lambda: stop_after is not None and run.done >= stop_after
    run.done = 0
    return run


class Loop:
    """A deterministic training loop with everything that a method keeps: a network, an optimizer and a schedule."""

    def __init__(self, run: Run) -> None:
        torch.manual_seed(0)
        self.run = run
        self.generator = build_generator(GeneratorConfig(shape=(1, 8, 8), classes=3, latent=2, width=4))
        self.optimizer = torch.optim.Adam(self.generator.parameters(), 1e-2, betas=(0.5, 0.9))
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        parts = {"optimizer": self.optimizer, "schedule": self.schedule}
        self.progress = Resumable(run, self.generator, parts)
        self.steps: list[int] = []

    def go(self) -> dict[str, torch.Tensor]:
        for step in self.progress.steps(STEPS):
            self.run.done = step
            self.steps.append(step)
            latent = torch.randn(4, 2, generator=torch.Generator().manual_seed(step))
            loss = self.generator(latent, torch.zeros(4, dtype=torch.long)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
        return self.generator.state_dict()


@pytest.mark.parametrize("stop_after", range(1, STEPS + 1))
def test_a_stop_after_any_step_changes_nothing_in_the_end(tmp_path, stop_after):
    undisturbed = Loop(a_run(tmp_path / "whole")).go()
    stopped = Loop(a_run(tmp_path / "parts", stop_after=stop_after))
    with pytest.raises(InterruptedRun, match=f"interrupted after step {stop_after} of"):
        stopped.go()
    continued = Loop(a_run(tmp_path / "parts"))
    assert continued.progress.resumed
    weights = continued.go()
    assert stopped.steps + continued.steps == list(range(1, STEPS + 1))
    for name, tensor in undisturbed.items():
        assert torch.equal(weights[name], tensor), name


def test_a_new_run_starts_at_the_first_step_and_checkpoints_the_last(tmp_path):
    loop = Loop(a_run(tmp_path))
    assert not loop.progress.resumed
    loop.go()
    assert loop.steps == list(range(1, STEPS + 1))
    assert [path.name for path in tmp_path.glob("private/*")] == [f"checkpoint-{STEPS:010d}.safetensors"]


def test_a_finished_run_has_no_steps_left(tmp_path):
    first = Loop(a_run(tmp_path)).go()
    again = Loop(a_run(tmp_path))
    weights = again.go()
    assert again.steps == []
    assert all(torch.equal(weights[name], tensor) for name, tensor in first.items())


def test_a_checkpoint_of_another_version_is_refused_in_one_sentence(tmp_path):
    run = a_run(tmp_path)
    Loop(run).go()
    with pytest.raises(InputError, match="step 7 has no 'votes', so another version of understudy wrote it"):
        Resumable(a_run(tmp_path), Loop(a_run(tmp_path)).generator, {"votes": torch.nn.Linear(1, 1)})


def test_checkpoints_are_written_when_they_are_due(tmp_path):
    Loop(a_run(tmp_path, checkpoint_seconds=1e-9)).go()
    assert sorted(path.name for path in tmp_path.glob("private/*")) == [
        f"checkpoint-{step:010d}.safetensors" for step in (STEPS - 1, STEPS)
    ]


def test_a_checkpoint_holds_the_generator_as_it_would_be_released(tmp_path):
    loop = Loop(a_run(tmp_path, stop_after=3))
    with pytest.raises(InterruptedRun):
        loop.go()
    checkpoint = loop.run.restore()
    rebuilt = build_generator(GeneratorConfig.model_validate(checkpoint.state["generator"]))
    rebuilt.load_state_dict(released_weights(checkpoint))
    for name, tensor in loop.generator.state_dict().items():
        assert torch.equal(rebuilt.state_dict()[name], tensor)


def test_a_checkpoint_keeps_no_randomness(tmp_path):
    """A restored random state would repeat noise; there is no place for one, and none of its names appear."""
    loop = Loop(a_run(tmp_path, stop_after=3))
    with pytest.raises(InterruptedRun):
        loop.go()
    checkpoint = loop.run.restore()
    assert set(checkpoint.state) == {"generator", "optimizer", "schedule", "ledger_mark"}
    random_state = torch.Generator().get_state()
    assert all(tensor.shape != random_state.shape for tensor in checkpoint.tensors.values())


def test_a_checkpoint_without_a_generator_is_not_released():
    with pytest.raises(InputError, match="it holds no generator yet"):
        released_weights(Checkpoint(1, {"optimizer.state": torch.ones(1)}, {}))


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=3))
STATES = st.recursive(
    LEAVES | st.integers(0, 9).map(lambda value: torch.tensor([float(value)])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 9) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(state=STATES)
@settings(deadline=None)
def test_any_nested_state_survives_packing(state):
    """Through JSON too, where keys of mappings would become text if they were not packed apart."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.loads(json.dumps(_pack(state, "part.", tensors)))
    assert _same(_unpack(skeleton, tensors), state)


def _same(left, right) -> bool:
    if isinstance(right, torch.Tensor):
        return isinstance(left, torch.Tensor) and torch.equal(left, right)
    if isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in right)
    if isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and left == right


def test_a_state_that_cannot_be_kept_is_an_error_and_not_silently_dropped():
    with pytest.raises(TypeError, match=r"state part\.hook\. holds a function"):
        _pack({"hook": lambda: None}, "part.", {})


# Checkpoints


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path)


def test_what_is_loaded_is_what_was_saved(checkpoints):
    tensors = {
        "matrix": torch.randn(3, 4),
        "transposed": torch.randn(3, 4).t(),
        "double": torch.randn(2, dtype=torch.float64),
        "step": torch.tensor(7),
        "empty": torch.empty(0, 5),
        "half": torch.randn(3, dtype=torch.bfloat16),
    }
    checkpoints.save(12, tensors, {"numbers": [1, 2.5, None], "nested": {"name": "x"}})
    found = checkpoints.load_latest()
    assert found.step == 12
    assert found.state == {"numbers": [1, 2.5, None], "nested": {"name": "x"}}
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor), name


def test_a_new_run_has_none(checkpoints):
    assert checkpoints.load_latest() is None


def test_the_last_two_are_kept_in_the_order_of_their_steps(checkpoints, tmp_path):
    for step in (1, 2, 10, 9_999_999_999):
        checkpoints.save(step, {"value": torch.tensor(float(step))})
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "checkpoint-0000000010.safetensors",
        "checkpoint-9999999999.safetensors",
    ]
    assert checkpoints.load_latest().step == 9_999_999_999


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_one_is_passed_over_for_the_one_before(checkpoints, tmp_path, keep):
    for step in (1, 2):
        checkpoints.save(step, {"value": torch.full((50,), float(step))})
    newest = tmp_path / "checkpoint-0000000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:keep])
    assert checkpoints.load_latest().step == 1


def test_one_without_its_state_is_passed_over(checkpoints, tmp_path):
    from safetensors.torch import save_file

    checkpoints.save(1, {"value": torch.ones(1)})
    save_file({"value": torch.ones(1)}, tmp_path / "checkpoint-0000000002.safetensors")
    save_file(
        {"value": torch.ones(1)}, tmp_path / "checkpoint-0000000003.safetensors", metadata={"step": "3", "state": "{"}
    )
    assert checkpoints.load_latest().step == 1


def test_when_all_are_damaged_nothing_is_made_up(checkpoints, tmp_path):
    for step in (1, 2):
        checkpoints.save(step, {"value": torch.ones(1)})
    for path in tmp_path.iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"none of the 2 in .* can be read; start a new run"):
        checkpoints.load_latest()


def test_a_checkpoint_that_cannot_be_written_leaves_the_older_ones_alone(checkpoints, tmp_path, monkeypatch):
    checkpoints.save(1, {"value": torch.ones(1)})
    checkpoints.save(2, {"value": torch.ones(1)})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        checkpoints.save(3, {"value": torch.ones(1)})
    assert checkpoints.load_latest().step == 2
    assert len(list(tmp_path.iterdir())) == 2
