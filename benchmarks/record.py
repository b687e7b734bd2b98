"""What every benchmark writes beside its figures: the command, the commit, the machine and the time."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import understudy as us
from understudy.data.sources import DataOptions
from understudy.runs.folder import RunFolder


def declared_data(
    dataset: str, declared: Sequence[str] = (), *, shape: str | None = None, split: str = "train"
) -> us.ImageDataset:
    """Images with what was declared of them beyond their catalogue: people, for example, or another shape."""
    return DataOptions(dataset, shape=shape, declared=declared).load(split)


def device_name(device: torch.device) -> str:
    """The machine in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads, {platform.machine()}"


def current_commit() -> str | None:
    """The commit of the working tree, with a mark where it has changes."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except OSError:  # a machine without git: pass --commit
        return None


def command_line(leave_out: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> str:
    """The command that was run, without options (``--name value``) and flags that only say where to write."""
    words = iter(word for word in sys.argv[1:] if word not in flags)
    kept = []
    for word in words:
        if word in leave_out:
            next(words, None)
        else:
            kept.append(word)
    return shlex.join(["python", sys.argv[0], *kept])


def write_speeds(name: str, rows: list[dict[str, Any]], device: torch.device, options: argparse.Namespace) -> None:
    """The rows of a speed benchmark, into ``options.json`` or ``speed-<name>.json`` (``-cpu`` on a processor)."""
    suffix = "" if device.type == "cuda" else "-cpu"
    path = options.json or Path(__file__).parent / "results" / f"speed-{name}{suffix}.json"
    body = {
        "device": device_name(device),
        "command": command_line(("--json", "--commit")),
        "commit": options.commit or current_commit(),
        "rows": rows,
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"wrote {path}")


def seconds_on_record(run: Path) -> float:
    """The seconds of all parts of a run; the clock of older ones started anew whenever they were resumed."""
    clock = RunFolder(run).seconds()
    ends = [now for now, after in zip(clock, [*clock[1:], 0.0], strict=True) if after < now]
    return float(sum(ends))
