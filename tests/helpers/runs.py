"""Training, interrupting and reading tiny runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from understudy.api import TrainOptions, train
from understudy.data.dataset import ImageDataset
from understudy.errors import InterruptedRun
from understudy.release.release import Release

from .cases import BUDGET, case_of
from .data import dealt


def tiny_train(case: str, data: ImageDataset, out: Path, **changes: Any) -> Release:
    """Train a case of ``CASES``; ``changes`` are those of ``Case.config`` or fields of ``TrainOptions``."""
    groups = {name: changes.pop(name) for name in ("privacy", "method", "runtime") if name in changes}
    config = case_of(case).config(**groups)
    return train(case_of(case).name, dealt(case, data), BUDGET, out, TrainOptions(config=config, **changes))


def interrupt(case: str, data: ImageDataset, out: Path, **changes: Any) -> None:
    """Train until the first step is reported, then ask the run to stop: it must say that it was interrupted."""
    reports: list[Any] = []

    def stop_requested() -> bool:
        return any(report.step for report in reports)

    with pytest.raises(InterruptedRun, match="continue with --resume"):
        tiny_train(case, data, out, listener=reports.append, stop_requested=stop_requested, **changes)
    assert reports, "the run must report before it ends"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def recorded(run: Path) -> list[dict[str, Any]]:
    """What a run's ledger holds, without what no two ledgers have in common."""
    lines = read_lines(run / "ledger.jsonl")
    return [{key: value for key, value in line.items() if key not in ("nonce", "checksum")} for line in lines]


@contextmanager
def own_state_folder(folder: Path) -> Iterator[None]:
    """A state folder for fixtures that live longer than one test; tests have their own by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield


def open_to_others(private: Path) -> list[Path]:
    """The private folder and whatever is in it, as far as anybody but the owner could look or enter."""
    places = [private, *private.rglob("*")]
    return [path for path in places if not path.is_symlink() and path.stat().st_mode & 0o077]
