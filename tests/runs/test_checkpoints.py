"""Checkpoints: the last two are kept, a damaged one is passed over, and what is loaded is what was saved."""

import pytest
import torch

from understudy.errors import InputError
from understudy.runs.checkpoints import Checkpoints


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
