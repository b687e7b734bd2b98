"""A run folder as training leaves it, and a browser for the tests of one worker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..release.building import make_release
from .browser import NAMES, Browser, find_chromium

STAMP = "not private: do not publish"


def write_run(folder: Path, name: str = "digits") -> Path:
    """A finished and evaluated run with progress and private diagnostics."""
    (folder / "private").mkdir(parents=True)
    release = make_release()
    release.save(folder / "release")
    description = {
        "method": "dp-merf",
        "budget": {"epsilon": 10, "delta": 1e-5},
        "domain": release.domain.model_dump(mode="json"),
        "config": {**release.method_config, "runtime": {"device": "cpu"}},
        "data": name,
        "command": "understudy train dp-merf --data /home/ward-7/patients --out /home/ward-7/run",
    }
    (folder / "run.json").write_text(json.dumps(description))
    lines = [{"step": step, "seconds": step / 10, "loss": 1 / step, "epsilon_spent": step / 5} for step in (1, 10, 20)]
    (folder / "progress.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + '\n{"step": 3')
    norms = {"gradient_norm_before": 2.0, "gradient_norm_before_deviation": 0.5, "gradient_norm_after": 1.0}
    private = [{"step": step, **norms, "clipped": 0.75 + step / 100} for step in (1, 10, 20)]
    (folder / "private" / "diagnostics.jsonl").write_text("\n".join(json.dumps(line) for line in private))
    figures = [
        {"name": "cnn", "value": 0.875, "accuracy": 0.875, "tested_on": 360, "stamp": STAMP},
        {"name": "fid", "value": 12.34567, "stamp": STAMP},
    ]
    (folder / "evaluation.json").write_text(json.dumps({"figures": figures, "samples": 500, "stamp": STAMP}))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "my-run")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium; where ``UNDERSTUDY_NEEDS_CHROMIUM`` is set its absence is a failure and not a skip."""
    program = find_chromium()
    if program is None:
        sentence = f"none of {', '.join(NAMES)} is installed"
        pytest.fail(sentence) if os.environ.get("UNDERSTUDY_NEEDS_CHROMIUM") else pytest.skip(sentence)
    started = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()
