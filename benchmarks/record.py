"""What benchmarks share: command, commit, machine and time beside their figures, and runs that go on at once."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
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


def at_once(
    commands: Sequence[Sequence[str]], number: int, end: float, environment: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """What Python scripts print as JSON in their last line, as they finish; none is begun after ``end``.

    Each has a process of its own: one that fails costs its own result alone. They share the processors, unless
    ``environment`` says otherwise: with more threads than processors each waits for the others.
    """
    threads = str(max(1, (os.cpu_count() or 1) // number))
    together = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads} | os.environ | environment

    def result(command: Sequence[str]) -> dict[str, Any] | None:
        if time.time() > end:
            return None
        ran = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=together)
        if ran.returncode:
            print(f"failed: {shlex.join(command)}", file=sys.stderr, flush=True)
            return None
        content: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return content

    with ThreadPoolExecutor(number) as threads:
        for future in as_completed([threads.submit(result, command) for command in commands]):
            found = future.result()
            if found is not None:
                yield found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """All of it, or what was there before."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    beside.replace(path)


def processor() -> str:
    """The processor in words, and how much of it a run had."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    threads = torch.get_num_threads()
    return f"{threads} of {os.cpu_count()} CPU threads, {names[0] if names else platform.machine()}"
