"""Checkpoints of a run: one safetensors file each, the last two kept. They stay in the run's private folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.errors import InputError
from understudy.files import read_tensors, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

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
