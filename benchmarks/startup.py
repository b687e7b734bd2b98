"""How long the command takes to start and to plan, beside what importing torch alone would take: one run, one machine.

    python benchmarks/startup.py

Writes ``benchmarks/results/speed-startup.json`` (or ``--json``). Each figure is the median of seven processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from record import command_line, current_commit, device_name

MNIST = ("--records", "60000", "--epsilon", "10", "--delta", "1e-5")
PLANS = {
    "understudy --help": ("--help",),
    "understudy plan dp-merf, epsilon 10": ("plan", "dp-merf", *MNIST),
    "understudy plan gs-wgan, 640,000 queries, epsilon 10": (
        "plan", "gs-wgan", *MNIST, "--set", "privacy.embedding_share=0",
    ),
}  # fmt: skip
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "speed-startup.json")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    options = parser.parse_args()
    rival = seconds([sys.executable, "-c", "import torch"])
    rows = []
    for what, arguments in PLANS.items():
        ours = seconds([str(Path(sys.executable).with_name("understudy")), *arguments])
        rows.append(
            {"what": f"{what} (rival: import torch)", "unit": "s", "ours": ours, "rival": rival, "ratio": rival / ours}
        )
        print(f"{what:70s} {ours:6.2f} s")
    body = {
        "device": device_name(torch.device("cpu")),
        "command": command_line(("--json", "--commit")),
        "commit": options.commit or current_commit(),
        "rows": rows,
    }
    options.json.write_text(json.dumps(body, indent=1) + "\n")


def seconds(command: list[str]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
