"""Speed of the private discriminator step against Opacus: the same nets, the same machine, one run.

    python benchmarks/discriminator_speed.py                    # graphics card: B = 128, 512, 2048
    python benchmarks/discriminator_speed.py --profile          # and where a step spends its time
    python benchmarks/discriminator_speed.py --device cpu --batches 128,512

Prints a table and writes ``benchmarks/results/speed-discriminator.json`` (``-cpu`` on a processor, or ``--json``). A
step is all of DPGAN's discriminator step on 28x28 images of ten classes (D 1.72M, G 2.27M parameters): Poisson-sample
about B of 60,000 records, generate B fakes, clip every example's gradient, sum, add noise, one step of Adam. Opacus
runs both with per-example gradients from hooks and with ghost clipping; the faster one is the rival.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from record import device_name, write_speeds
from understudy.configs import MethodConfig
from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.engines.dpsgd.step import StepOptions
from understudy.methods.adversarial.discriminator import discriminator_step
from understudy.methods.config import build_config
from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig, DpganGenerator
from understudy.models.generator import GeneratorConfig
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

RECORDS, SHAPE, CLASSES, LATENT, WIDTH = 60_000, (1, 28, 28), 10, 128, 64
CLIP, NOISE, RATE, BETAS = 1.0, 1.0, 2e-4, (0.5, 0.999)
Row = dict[str, Any]


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    print(f"device: {device_name(device)}, torch {torch.__version__}", flush=True)
    data = random_data()
    rows: list[Row] = []
    for batch in (int(size) for size in options.batches.split(",")):
        ours = {name: measure(ours_step, name, batch, data, options) for name in options.precisions.split(",")}
        rivals = {name: measure(opacus_step, name, batch, data, options) for name in options.rivals.split(",") if name}
        add_rows(rows, batch, ours, rivals)
    write_speeds("discriminator", rows, device, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--batches", default="128,512,2048" if cuda else "128,512")
    parser.add_argument("--precisions", default="bf16,tf32" if cuda else "fp32")
    parser.add_argument("--rivals", default="hooks,ghost", help="ways of Opacus; empty to skip")
    parser.add_argument("--seconds", type=float, default=2.0, help="least time of each measurement")
    parser.add_argument("--micro-batch", type=int, default=2500, help="examples of ours in one pass")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


# --- measuring


def measure(
    build: Callable[..., Callable[[], object]], name: str, batch: int, data: ImageDataset, options: argparse.Namespace
) -> tuple[float, float | None]:
    """Milliseconds a step and peak memory in GiB (graphics card only)."""
    device = torch.device(options.device)
    free_memory(device)
    step = build(name, batch, data, options)
    milliseconds = 1000 * seconds_each(step, device, options.seconds)
    print(f"    B={batch} {build.__name__} {name}: {milliseconds:.3f} ms, {peak_gib(device)} GiB", flush=True)
    if options.profile and build is ours_step:
        profile(step, device)
    return milliseconds, peak_gib(device)


def seconds_each(step: Callable[[], object], device: torch.device, least: float) -> float:
    """Median over rounds of the mean time of a step, after a warm-up."""
    for _ in range(3):
        step()
    rounds: list[float] = []
    while sum(rounds) < least or len(rounds) < 3:
        count = max(1, int(least / 10 / max(min(rounds), 1e-4))) if rounds else 1
        synchronize(device)
        start = time.perf_counter()
        for _ in range(count):
            step()
        synchronize(device)
        rounds += [(time.perf_counter() - start) / count] * count
    return float(np.median(rounds))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def profile(step: Callable[[], object], device: torch.device) -> None:
    """The operations that a step spends its time in."""
    with torch.profiler.profile() as recorded:
        for _ in range(3):
            step()
        synchronize(device)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    table = recorded.key_averages().table(sort_by=order, row_limit=40, max_name_column_width=90)
    keep = [" ".join(line.split()) for line in table.splitlines() if line.strip() and not line.startswith("---")]
    print("\n".join(keep), flush=True)


# --- nets and data


def random_data() -> ImageDataset:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (RECORDS, *SHAPE[1:]), dtype=np.uint8)
    return from_arrays(images, random.integers(0, CLASSES, RECORDS), classes=CLASSES, records=RECORDS)


def networks(device: torch.device) -> tuple[DpganDiscriminator, DpganGenerator]:
    torch.manual_seed(0)
    discriminator = DpganDiscriminator(DpganDiscriminatorConfig(shape=SHAPE, classes=CLASSES, width=WIDTH))
    generator = DpganGenerator(GeneratorConfig(kind="dpgan", shape=SHAPE, classes=CLASSES, latent=LATENT, width=WIDTH))
    return discriminator.to(device), generator.to(device)


# --- ours


def ours_step(precision: str, batch: int, data: ImageDataset, options: argparse.Namespace) -> Callable[[], object]:
    device = torch.device(options.device)
    runtime = {"device": options.device, "precision": precision, "micro_batch": options.micro_batch}
    config = build_config(MethodConfig, {"runtime": runtime})
    event = Event(
        noise_multiplier=NOISE,
        sensitivity="C",
        sampling=PoissonSampling(rate=batch / RECORDS),
        count=1_000_000,
        purpose="discriminator steps",
    )
    plan = Plan("benchmark", config, data.domain, Budget(10, 1e-5), (event,), 0.0, event.count, 0, 0.0, 0.0)
    folder = Path(tempfile.mkdtemp(prefix="understudy-benchmark-"))
    run = Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(), device)
    step = discriminator_step(run, *networks(device), StepOptions(batch, CLIP, RATE, BETAS), "logistic", event)
    return step.take


# --- Opacus


def opacus_step(way: str, batch: int, data: ImageDataset, options: argparse.Namespace) -> Callable[[], object]:
    """The same step with Opacus 1.6: Poisson-sampled reals, B fakes, one pass, clip, noise, Adam; in TF32 on a card."""
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("high")
    discriminator, generator = networks(device)
    images = torch.from_numpy(data.images).to(device)
    labels = torch.from_numpy(data.labels).to(device)
    random = torch.Generator(device).manual_seed(0)
    learn = opacus_learner(way, discriminator, batch)

    def step() -> None:
        taken = (torch.rand(RECORDS, generator=random, device=device) < batch / RECORDS).nonzero().flatten()
        with torch.no_grad():
            fake_labels = generator.draw_labels(batch, random)
            fakes = generator.pixels(generator(generator.draw_latent(batch, random), fake_labels))
        both = torch.cat([images[taken].float() / 255, fakes]), torch.cat([labels[taken], fake_labels])
        targets = torch.cat([torch.ones(len(taken), device=device), torch.zeros(batch, device=device)])
        learn(*both, targets)

    return step


def opacus_learner(way: str, discriminator: nn.Module, batch: int) -> Callable[[Tensor, Tensor, Tensor], None]:
    warnings.filterwarnings("ignore")
    from opacus import optimizers
    from opacus.grad_sample import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    adam = torch.optim.Adam(discriminator.parameters(), RATE, BETAS)
    settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": 2 * batch}
    if way == "hooks":
        wrapped = GradSampleModule(discriminator)
        optimizer = optimizers.DPOptimizer(adam, **settings)
        loss = functional.binary_cross_entropy_with_logits
    else:
        wrapped = GradSampleModuleFastGradientClipping(discriminator, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer = optimizers.DPOptimizerFastGradientClipping(adam, **settings)
        loss = DPLossFastGradientClipping(wrapped, optimizer, nn.BCEWithLogitsLoss())

    def learn(images: Tensor, labels: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss(wrapped(images, labels), targets).backward()
        optimizer.step()

    return learn


# --- writing


def add_rows(rows: list[Row], batch: int, ours: dict[str, Any], rivals: dict[str, Any]) -> None:
    """One row for the time and one for the memory of each of our precisions, against the faster Opacus."""
    way = min(rivals, key=lambda name: rivals[name][0]) if rivals else None
    for precision, (milliseconds, gib) in ours.items():
        title = f"discriminator step, B={batch}, {precision}" + (f", Opacus with {way}" if way else "")
        rival = rivals[way] if way else (None, None)
        for what, unit, own, other in (
            (title, "ms", milliseconds, rival[0]),
            (f"memory of it: {title}", "GiB", gib, rival[1]),
        ):
            if own is not None:
                ratio = other / own if other else None
                rows.append({"what": what, "unit": unit, "ours": own, "rival": other, "ratio": ratio})
                print(f"{what:75s} {unit:4s} {own:10.3f} {other or 0:10.3f} {ratio or 0:8.2f}", flush=True)


if __name__ == "__main__":
    main()
