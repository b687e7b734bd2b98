"""What the Bayesian accountant costs: the critic step of ``bdp-gan`` with it and without it, in one run.

    python benchmarks/bayesian_accounting_speed.py                           # graphics card: B = 64, 512; 32 pairs
    python benchmarks/bayesian_accounting_speed.py --device cpu --batches 64

Prints a table and writes ``benchmarks/results/speed-bayesian-accounting.json`` (``-cpu`` on a processor).
A step is all of it on 28x28 images of ten classes with the networks of the paper: Poisson-sample about B of 60,000
records, generate B fakes, clip every example's gradient, sum, add noise, Adam; with the accountant also the clipped
gradients of 32 more units and, every 256 steps, the moments of 40 orders on the host. Rounds of both take turns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discriminator_speed import random_data, synchronize
from record import command_line, current_commit, device_name
from understudy.configs import MethodConfig
from understudy.data.dataset import ImageDataset
from understudy.engines.dpsgd.step import StepOptions
from understudy.methods.adversarial.bayesian import PairLengths
from understudy.methods.adversarial.discriminator import discriminator_step
from understudy.methods.config import build_config
from understudy.models.dpgan import DpganDiscriminatorConfig
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.models.selu import SeluCritic
from understudy.privacy.budget import Budget
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.privacy.claims.statements import BayesianConfig
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

RECORDS, SHAPE, CLASSES, LATENT, WIDTH = 60_000, (1, 28, 28), 10, 100, 64
CLIP, NOISE, RATE, BETAS = 0.5, 1.28, 1e-4, (0.5, 0.999)
BLOCK = 256  # steps between two hand-overs to the host; a round is a multiple of it


def main() -> None:
    options = parse()
    device, data = torch.device(options.device), random_data()
    print(f"device: {device_name(device)}, torch {torch.__version__}", flush=True)
    rows = []
    for batch in (int(size) for size in options.batches.split(",")):
        for precision in options.precisions.split(","):
            with_it, without = compare(batch, precision, data, options)
            rows.append(row(batch, precision, options.pairs, with_it, without))
            print(f"B={batch} {precision}: {with_it:.3f} ms with, {without:.3f} ms without", flush=True)
    result = {"device": device_name(device), "command": command_line(("--json", "--commit"))}
    result |= {"commit": options.commit or current_commit(), "torch": torch.__version__, "rows": rows}
    suffix = "" if device.type == "cuda" else "-cpu"
    target = options.json or Path(__file__).parent / "results" / f"speed-bayesian-accounting{suffix}.json"
    target.write_text(json.dumps(result, indent=1) + "\n")


def row(batch: int, precision: str, pairs: int, with_it: float, without: float) -> dict[str, Any]:
    return {
        "what": f"critic step of bdp-gan, B={batch}, {precision}, {pairs} pairs (rival: without Bayesian accounting)",
        "unit": "ms",
        "ours": with_it,
        "rival": without,
        "ratio": without / with_it,
    }


def compare(batch: int, precision: str, data: ImageDataset, options: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds a step with and without the accountant: medians of rounds that take turns."""
    device = torch.device(options.device)
    steps = [build(batch, precision, data, options, listen=listen) for listen in (True, False)]
    times: list[list[float]] = [[], []]
    for _ in range(options.rounds + 1):
        for place, step in enumerate(steps):
            times[place].append(seconds(step, device, options.steps))
    with_it, without = (1000 * float(np.median(each[1:])) for each in times)  # the first round warms up
    return with_it, without


def seconds(step: Callable[[int], None], device: torch.device, count: int) -> float:
    synchronize(device)
    start = time.perf_counter()
    step(count)
    synchronize(device)
    return (time.perf_counter() - start) / count


def build(
    batch: int, precision: str, data: ImageDataset, options: argparse.Namespace, *, listen: bool
) -> Callable[[int], None]:
    """A step of its own run, and with ``listen`` the accountant beside it."""
    device = torch.device(options.device)
    runtime = {"device": options.device, "precision": precision, "micro_batch": 2500}
    event = Event(
        noise_multiplier=NOISE,
        sensitivity="C",
        sampling=PoissonSampling(rate=batch / RECORDS),
        count=375_000,
        purpose="discriminator steps",
    )
    config = build_config(MethodConfig, {"runtime": runtime})
    plan = Plan("benchmark", config, data.domain, Budget(10, 1e-5), (event,), 0.0, event.count, 0, 0.0, 0.0)
    folder = Path(tempfile.mkdtemp(prefix="understudy-benchmark-"))
    run = Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(), device)
    torch.manual_seed(0)
    critic = SeluCritic(DpganDiscriminatorConfig(shape=SHAPE, classes=CLASSES, width=WIDTH)).to(device)
    network = GeneratorConfig(kind="selu", shape=SHAPE, classes=CLASSES, latent=LATENT, width=WIDTH, output="tanh")
    settings = StepOptions(batch, CLIP, RATE, BETAS, weight_bound=0.05)
    step = discriminator_step(run, critic, build_generator(network).to(device), settings, "wasserstein", event)
    if listen:
        accountant = BayesianAccountant(BayesianConfig(pairs=options.pairs), event)
        PairLengths(step, options.pairs, CLIP, accountant.add, run.randomness.generator(device))
    return step.take


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--batches", default="64,512" if cuda else "64")
    parser.add_argument("--precisions", default="bf16,tf32" if cuda else "fp32")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4 * BLOCK if cuda else 8, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
