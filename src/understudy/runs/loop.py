"""Resumable training: checkpoints of a run, and a loop over steps that writes them and goes on from the newest.

A checkpoint is one safetensors file in the private folder; the last two are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from understudy.errors import InputError
from understudy.files import read_tensors, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.models.generator import Generator
    from understudy.runs.run import Run

RELEASED = "released."  # checkpoint tensors under this prefix are the generator as it would be released
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Tensors and plain state of a run after ``step``."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint durably; older ones beyond the last two are removed afterwards."""
        metadata = {"step": str(step), "state": json.dumps(dict(state or {}))}
        write_tensors(self.folder / f"checkpoint-{step:010d}.safetensors", tensors, metadata)
        for old in self._paths()[:-_KEPT]:
            old.unlink(missing_ok=True)

    def load_latest(self, device: str = "cpu") -> Checkpoint | None:
        """The newest checkpoint that can be read; None when the run has none; an error when all are damaged."""
        paths = self._paths()
        for path in reversed(paths):
            try:
                tensors, metadata = read_tensors(path, device)
                return Checkpoint(int(metadata["step"]), tensors, json.loads(metadata["state"]))
            except (InputError, KeyError, ValueError):
                continue
        if paths:
            raise InputError(f"checkpoint: none of the {len(paths)} in {self.folder} can be read; start a new run")
        return None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*.safetensors"))


class Stateful(Protocol):
    """Anything with a state dict: modules, optimizers, schedules, the critic bank."""

    def state_dict(self) -> Any:
        """All that must be restored."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Restore it."""
        ...


class Resumable:
    """The steps of a training loop, from where the run stands to the end, with checkpoints on the way.

    ``released`` is the generator that a release would contain at any time; ``parts`` is all else that must survive.
    Randomness is deliberately not part of it: a resumed run draws fresh noise.
    """

    def __init__(self, run: Run, released: Generator, parts: Mapping[str, Stateful]) -> None:
        self._run, self._released, self._parts = run, released, parts
        self._start, self._total = self._restore(), 0

    @property
    def resumed(self) -> bool:
        """Whether the run had a checkpoint to continue from; it is loaded already."""
        return self._start > 0

    def steps(self, total: int) -> Iterator[int]:
        """Step numbers still to be done, counted from 1; a checkpoint is written when due and after the last."""
        step, self._total = self._start, total
        while step < total:
            step += 1
            yield step
            if step == total or self._run.checkpoint_due():
                self.save(step)

    def end_after(self, step: int) -> None:
        """End here, because a crash lost executions that were reserved: fewer steps, never more executions."""
        self._run.lost_steps += self._total - step
        self.save(step)

    def save(self, step: int) -> None:
        """Write a checkpoint of the state after ``step``."""
        tensors = {RELEASED + name: tensor for name, tensor in self._released.state_dict().items()}
        state: dict[str, Any] = {"generator": self._released.config.model_dump(mode="json")}
        for name, part in self._parts.items():
            state[name] = _pack(part.state_dict(), f"{name}.", tensors)
        self._run.checkpoint(step, tensors, **state)

    def _restore(self) -> int:
        checkpoint = self._run.restore()
        if checkpoint is None:
            return 0
        self._released.load_state_dict(released_weights(checkpoint))
        for name, part in self._parts.items():
            if name not in checkpoint.state:
                raise InputError(
                    f"checkpoint: that of step {checkpoint.step} has no {name!r}, so another version of understudy "
                    "wrote it; resume with that version, release it early (understudy release), or start a new run"
                )
            part.load_state_dict(_unpack(checkpoint.state[name], checkpoint.tensors))
        return checkpoint.step


def released_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights of the generator as it would be released."""
    weights = {key[len(RELEASED) :]: value for key, value in checkpoint.tensors.items() if key.startswith(RELEASED)}
    if not weights:
        raise InputError("checkpoint: it holds no generator yet; resume the run until it does")
    return weights


def _pack(value: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:
    """A JSON skeleton of a nested state; its tensors go into ``tensors`` and leave their key behind."""
    from torch import Tensor

    if isinstance(value, Tensor):
        tensors[prefix] = value
        return {"tensor": prefix}
    if isinstance(value, Mapping):
        items = [[key, _pack(item, f"{prefix}{key}.", tensors)] for key, item in value.items()]
        return {"mapping": items}
    if isinstance(value, (list, tuple)):
        return {"list": [_pack(item, f"{prefix}{position}.", tensors) for position, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"state {prefix} holds a {type(value).__name__}, which a checkpoint cannot keep")


def _unpack(skeleton: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    if "tensor" in skeleton:
        return tensors[skeleton["tensor"]]
    if "mapping" in skeleton:
        return {key: _unpack(item, tensors) for key, item in skeleton["mapping"]}
    if "list" in skeleton:
        return [_unpack(item, tensors) for item in skeleton["list"]]
    return skeleton["value"]
