"""What the cryptographic source of randomness costs in a step of dpgan, against torch's own generators, in one run.

    python benchmarks/randomness_speed.py
    python benchmarks/randomness_speed.py --device cpu --batches 128

Prints a table and writes ``benchmarks/results/speed-randomness.json`` (``-cpu`` on a processor, or ``--json``). Two
steps with the networks of the paper are built, alike but for the source of their noise and of their Poisson draws, and
timed in turn, so that a noisy machine disturbs both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from discriminator_speed import ours_step, random_data, synchronize
from record import command_line, current_commit, device_name
from understudy.privacy.randomness.streams import KeyedWords

SOURCES = ("secure", "torch")


def main() -> None:
    options = parse()
    device, data, rows = torch.device(options.device), random_data(), []
    print(f"device: {device_name(device)}, torch {torch.__version__}", flush=True)
    for batch in (int(size) for size in options.batches.split(",")):
        secure, plain = compare(ours_step(options.precision, batch, data, options), device, options.seconds)
        what = f"discriminator step, B={batch}, {options.precision}: secure source, torch's generator"
        rows.append({"what": what, "unit": "ms", "ours": secure, "rival": plain, "ratio": plain / secure})
        print(f"{what}: {secure:.3f} ms, {plain:.3f} ms, {100 * (secure / plain - 1):+.1f} %", flush=True)
    suffix = "" if device.type == "cuda" else "-cpu"
    path = options.json or Path(__file__).parent / "results" / f"speed-randomness{suffix}.json"
    origin = {"device": device_name(device), "command": command_line(("--json", "--commit"))}
    commit = options.commit or current_commit()
    path.write_text(json.dumps({**origin, "commit": commit, "rows": rows}, indent=1) + "\n")


def compare(step: Callable[[], object], device: torch.device, seconds: float) -> tuple[float, float]:
    """Median milliseconds of a step with each source, in turn."""
    generator = torch.Generator(device=device)

    def words(_: KeyedWords, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int64, device=device).random_(generator=generator)

    def normals(_: KeyedWords, count: int) -> Tensor:
        return torch.randn(count, dtype=torch.float64, device=device, generator=generator)

    times: dict[str, list[float]] = {source: [] for source in SOURCES}
    count = 1 if device.type == "cpu" else 100
    started = time.perf_counter()
    while time.perf_counter() - started < seconds or len(times["torch"]) < 5:
        times["secure"].append(seconds_of(step, count, device))
        with mock.patch.multiple(KeyedWords, words=words, normals=normals):
            times["torch"].append(seconds_of(step, count, device))
    secure, plain = (1000 * float(np.median(times[source][1:])) for source in SOURCES)
    return secure, plain


def seconds_of(step: Callable[[], object], count: int, device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter() if device.type == "cuda" else time.process_time()
    for _ in range(count):
        step()
    synchronize(device)
    end = time.perf_counter() if device.type == "cuda" else time.process_time()
    return (end - start) / count


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--batches", default="128,512,2048" if cuda else "128")
    parser.add_argument("--precision", default="bf16" if cuda else "fp32")
    parser.add_argument("--seconds", type=float, default=3.0, help="least time for each batch size")
    parser.add_argument("--micro-batch", type=int, default=2500, help="examples in one pass")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
