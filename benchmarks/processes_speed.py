"""Steps a second of one run in one and in two processes with one thread each, beside each other: one run, one machine.

    python benchmarks/processes_speed.py [--rounds 2]

Trains ``dpgan``, ``dp-diffusion`` and ``gs-wgan`` on made-up images of 28x28 pixels, in turns, and takes the fastest of
the rounds. Private steps, or turns of the critics, are timed, without the reports and pictures between them, of which a
run of so few steps has far too many.
Two processes need two cores that nothing else uses. So the ratio of processor time is recorded too: that of one process
alone over that of the one that leads, which does more than the other; and how busy the machine was. Writes
``benchmarks/results/speed-processes-cpu.json`` (or ``--json``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import write_speeds
from understudy.processes import worker_environment

RECORDS = 6000
CASES = {
    "dpgan": (
        "--set", "privacy.steps=10", "--set", "privacy.batch=128", "--set", "privacy.embedding_share=0",
        "--set", "method.discriminator_steps=50",
    ),
    "dp-diffusion": (
        "--set", "privacy.steps=6", "--set", "privacy.batch=96", "--set", "privacy.start=none",
        "--set", "method.widths=[16,32]", "--set", "method.blocks=1",
    ),
    "gs-wgan": (
        "--set", "privacy.subsets=100", "--set", "privacy.queries=1024", "--set", "privacy.embedding_share=0",
        "--set", "method.queries_per_step=128", "--set", "method.critics.width=16",
        "--set", "method.critics.warm_iterations=1",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        images = random.integers(0, 256, (RECORDS, 28, 28), dtype=np.uint8)
        np.savez(Path(folder, "data.npz"), x=images, y=random.integers(0, 10, RECORDS))
        for method in CASES:
            found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
            for turn in range(options.rounds):
                for processes, speeds in found.items():
                    speeds.append(steps_per_second(method, processes, Path(folder), turn))
            rival, alone = (max(speeds) for speeds in zip(*found[1], strict=True))
            ours, leading = (max(speeds) for speeds in zip(*found[2], strict=True))
            what = f"{method}: two processes with one thread each (rival: one process with one thread)"
            row = {"what": what, "unit": "steps/s", "ours": ours, "rival": rival, "ratio": ours / rival}
            rows.append({**row, "ratio_of_processor_time": leading / alone, "load": round(os.getloadavg()[0], 1)})
            print(json.dumps(rows[-1]), flush=True)
    write_speeds("processes", rows, torch.device("cpu"), options)


def steps_per_second(method: str, processes: int, folder: Path, turn: int) -> tuple[float, float]:
    """Of a run in a process of its own: by the clock, and by the processor time of the process that leads."""
    out = folder / f"{method}-{processes}-{turn}"
    facts = ["--records", str(RECORDS), "--classes", "10", "--epsilon", "10", "--delta", "1e-5", "--device", "cpu"]
    noise = ["--set", "privacy.noise_multiplier=5", "--processes", str(processes), "--out", str(out), "--yes"]
    arguments = ["train", method, "--data", str(folder / "data.npz"), *facts, *CASES[method], *noise]
    environment = {**worker_environment(1), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, __file__, "--child", *arguments]
    ran = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    by_clock, by_processor = (float(word) for word in ran.stdout.split()[-2:])
    return by_clock, by_processor


def timed(arguments: list[str]) -> tuple[float, float]:
    """Run the command line, and time its private steps but the first, which warms up."""
    from understudy.cli.main import run
    from understudy.engines.dpsgd.step import PrivateStep
    from understudy.methods.critics import gs_wgan

    seconds = list[tuple[float, float]]()

    def timing(act: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started, worked = time.perf_counter(), time.process_time()
            result = act(*arguments)
            seconds.append((time.perf_counter() - started, time.process_time() - worked))
            return result

        return timed

    PrivateStep.take = timing(PrivateStep.take)  # type: ignore[method-assign]
    gs_wgan._routed_turn = timing(gs_wgan._routed_turn)
    if run(arguments) != 0:
        raise SystemExit(1)
    by_clock, by_processor = (sum(times[1:]) for times in zip(*seconds, strict=True))
    return (len(seconds) - 1) / by_clock, (len(seconds) - 1) / by_processor


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(*timed(sys.argv[2:]))
    else:
        main()
