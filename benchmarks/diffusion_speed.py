"""Speed of the private step of a diffusion model against Opacus, and of its sampler: one machine, one run.

    python benchmarks/diffusion_speed.py
    python benchmarks/diffusion_speed.py --device cpu --batch 16 --draws 2 --samples 20

Prints a table and writes ``benchmarks/results/speed-diffusion.json`` (``-cpu`` on a processor, or ``--json``). A step
is all of a denoising step on 28x28 images of ten classes: Poisson-sample about B of 60,000 records, K noise draws of
each, sum the gradients of the draws of a record, clip, sum, add noise, one step of Adam. Opacus computes the gradient
of every draw with its hooks; they are summed for each record before they are clipped, which its other modes cannot do.
It runs in TF32 and in bfloat16, and the faster is the rival. Rates count a record times a draw.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from discriminator_speed import RECORDS, SHAPE, free_memory, peak_gib, random_data, seconds_each, synchronize
from record import device_name, write_speeds
from understudy.data.dataset import ImageDataset
from understudy.engines.dpsgd.step import PrivateStep, StepOptions
from understudy.methods.base import configure
from understudy.methods.diffusion.dp_diffusion import DpDiffusion
from understudy.methods.diffusion.learner import Denoiser
from understudy.methods.registry import get_method
from understudy.models.sampler import SamplerConfig
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

CLIP, RATE = 1.0, 1e-3
Row = dict[str, Any]


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    print(f"device: {device_name(device)}, torch {torch.__version__}", flush=True)
    data, rows = random_data(), options.batch * options.draws
    made: list[Row] = []
    ours = measure("ours", partial(our_step, data, options), device, options.seconds)
    types = [torch.float32] if device.type == "cpu" else [torch.float32, torch.bfloat16]
    rivals = {
        str(kind): measure(f"Opacus {kind}", partial(opacus_step, data, options, kind), device, options.seconds)
        for kind in types
    }
    way = min(rivals, key=lambda name: rivals[name][0])
    size = f"B={options.batch}, K={options.draws}"
    note(
        made, f"denoising step, {size}, {options.precision}, Opacus with hooks in {way}", "ms", ours[0], rivals[way][0]
    )
    note(made, f"record x draw a second, {size}", "1/s", rows / ours[0] * 1000, rows / rivals[way][0] * 1000)
    if ours[1] is not None:
        note(made, f"memory of the step, {size}", "GiB", ours[1], rivals[way][1])
    note(made, f"{options.samples} samples by 18 Heun steps", "s", sampling_seconds(data, options, device), None)
    write_speeds("diffusion", made, device, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--precision", default="bf16" if cuda else "fp32")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="least time of each measurement")
    parser.add_argument("--micro-batch", type=int, default=4096, help="rows of ours in one pass")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


def measure(
    name: str, build: Callable[[], Callable[[], object]], device: torch.device, seconds: float
) -> tuple[float, float | None]:
    """Milliseconds a step and peak memory in GiB (graphics card only)."""
    free_memory(device)
    milliseconds = 1000 * seconds_each(build(), device, seconds)
    print(f"    {name}: {milliseconds:.2f} ms, {peak_gib(device)} GiB", flush=True)
    return milliseconds, peak_gib(device)


def denoiser(data: ImageDataset, options: argparse.Namespace, precision: str) -> tuple[Run, Denoiser]:
    """A denoiser of the usual size in a run of its own."""
    method = get_method("dp-diffusion")
    settings = {
        "privacy": {"start": "none", "batch": options.batch, "steps": 100_000, "noise_multiplier": 1.0},
        "method": {"draws": options.draws},
        "runtime": {"device": options.device, "precision": precision, "micro_batch": options.micro_batch},
    }
    plan = method.plan(configure(method, settings), data.domain, Budget(1e6, 1e-5))
    folder = Path(tempfile.mkdtemp(prefix="understudy-benchmark-"))
    ledger = Ledger.create(folder / "ledger.jsonl")
    run = Run(folder, plan, data, ledger, Randomness(), torch.device(options.device))
    torch.manual_seed(0)
    return run, Denoiser(run, DpDiffusion().generator_config(plan.config, data.domain), plan.config.method)


def our_step(data: ImageDataset, options: argparse.Namespace) -> Callable[[], object]:
    run, learning = denoiser(data, options, options.precision)
    settings = StepOptions(options.batch, CLIP, RATE, rows=options.draws)
    return PrivateStep(run, learning.live.network, learning.denoising.objective, settings, run.plan.events[0]).take


def opacus_step(data: ImageDataset, options: argparse.Namespace, kind: torch.dtype) -> Callable[[], object]:
    """The same step with Opacus: gradients of B x K rows from hooks, summed for each record, clipped, noise, Adam."""
    warnings.filterwarnings("ignore")
    from opacus.grad_sample import GradSampleModule

    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    _, learning = denoiser(data, options, "bf16" if kind == torch.bfloat16 else "fp32")
    network = GradSampleModule(learning.live.network.to(kind), loss_reduction="sum")
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    adam = torch.optim.Adam(weights, RATE)
    images, labels = torch.from_numpy(data.images).to(device), torch.from_numpy(data.labels).to(device)
    random = torch.Generator(device).manual_seed(0)

    def step() -> None:
        taken = (torch.rand(RECORDS, generator=random, device=device) < options.batch / RECORDS).nonzero().flatten()
        shown, loss = learning.denoising.rows(images[taken].to(kind) / 255, labels[taken], options.draws, random)
        adam.zero_grad(set_to_none=True)
        loss(network(shown[0].to(kind), *shown[1:])).sum().backward()
        units = [weight.grad_sample.unflatten(0, (-1, options.draws)).sum(dim=1) for weight in weights]
        norms = torch.stack([unit.flatten(1).float().norm(dim=1) for unit in units]).norm(dim=0)
        factors = (CLIP / norms).clamp(max=1)
        for weight, unit in zip(weights, units, strict=True):
            total = torch.einsum("i,i...->...", factors.to(unit.dtype), unit).float()
            weight.grad = ((total + CLIP * torch.randn_like(total)) / options.batch).to(weight.dtype)
            weight.grad_sample = None
        adam.step()

    return step


def sampling_seconds(data: ImageDataset, options: argparse.Namespace, device: torch.device) -> float:
    """The time of drawing images, after a first small draw."""
    _, learning = denoiser(data, options, options.precision)
    generator, random = learning.released.eval(), torch.Generator(device).manual_seed(0)
    generator.sampler = SamplerConfig(steps=18)
    labels = torch.arange(options.samples, device=device) % 10
    generator.sample(labels[: min(4000, options.samples)], random)
    synchronize(device)
    started = time.perf_counter()
    assert generator.sample(labels, random).shape == (options.samples, *SHAPE)
    synchronize(device)
    return time.perf_counter() - started


def note(rows: list[Row], what: str, unit: str, ours: float, rival: float | None) -> None:
    better = None if rival is None else (ours / rival if unit == "1/s" else rival / ours)
    rows.append({"what": what, "unit": unit, "ours": ours, "rival": rival, "ratio": better})
    print(f"{what:80s} {unit:4s} {ours:12.3f} {rival or 0:12.3f} {better or 0:8.2f}", flush=True)


if __name__ == "__main__":
    main()
