"""Speed of the critic bank against one critic at a time: the same nets, the same machine, one run.

    python benchmarks/critic_bank_speed.py                              # H200: everything
    python benchmarks/critic_bank_speed.py --profile                    # and where a bank step spends its time
    python benchmarks/critic_bank_speed.py --device cpu --blocks 4 --precisions fp32 --bank 8 --warm-iterations 1

Prints a table and writes ``benchmarks/results/speed-critic-bank-<device>.json`` (or ``--json``). A critic-step is one
WGAN-GP Adam step of one critic of the seed (28x28x1, 10 classes, 1.07M parameters) on 32 real and 32 fake images.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from record import command_line, current_commit, device_name
from sequential_critic import critic_loss
from understudy.engines.critics.bank import CriticBank, CriticBankConfig, CriticBankOptions
from understudy.engines.critics.subsets import PrivateRecords, SubsetTable
from understudy.engines.critics.warm_start import WarmStartConfig, warm_start
from understudy.models.critic import Critic, CriticBatch, CriticConfig, CriticLossConfig

SHAPE, CLASSES, BATCH, QUERIES = (1, 28, 28), 10, 32, 256
Row = dict[str, Any]


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    device = torch.device(options.device)
    print(f"device: {device_name(device)}, torch {torch.__version__}", flush=True)
    rows: list[Row] = []
    rival = sequential_rows(rows, device, options)
    best = bank_rows(rows, device, options, rival)
    if options.profile:
        profile(device, options, best)
    free_memory(device)
    large_bank_rows(rows, device, options, best)
    free_memory(device)
    if options.largest:
        largest_bank_rows(rows, device, options, best)
    write(rows, device, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--blocks", default="32,64,125,250" if cuda else "4", help="critics trained side by side")
    parser.add_argument("--precisions", default="fp32,tf32,bf16" if cuda else "fp32")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time of each measurement")
    parser.add_argument("--bank", type=int, default=1000 if cuda else 16, help="critics of the large bank")
    parser.add_argument("--largest", type=int, default=1500 if cuda else 0, help="a bank that must fit; 0 to skip")
    parser.add_argument("--warm-iterations", type=int, default=60 if cuda else 1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


# --- measuring


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_each(step: Callable[[], object], device: torch.device, least: float) -> float:
    """Mean time of a step after two warm-up calls, over at least ``least`` seconds and three calls."""
    step()
    step()
    synchronize(device)
    count, start = 0, time.perf_counter()
    while True:
        for _ in range(3):
            step()
        count += 3
        synchronize(device)
        elapsed = time.perf_counter() - start
        if elapsed >= least:
            return elapsed / count


def free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_reserved(device) / 2**30 if device.type == "cuda" else None


def add(rows: list[Row], what: str, unit: str, ours: float | None, rival: float | None, more_is_better: bool) -> None:
    ratio = None
    if ours and rival:
        ratio = ours / rival if more_is_better else rival / ours
    rows.append({"what": what, "unit": unit, "ours": ours, "rival": rival, "ratio": ratio})
    columns = [f"{value:12.3f}" if value is not None else " " * 12 for value in (ours, rival, ratio)]
    print(f"{what:62s} {unit:16s}" + "".join(columns), flush=True)


# --- nets and data


def critic_config(options: argparse.Namespace) -> CriticConfig:
    return CriticConfig(shape=SHAPE, classes=CLASSES, width=options.width)


def make_bank(critics: int, precision: str, device: torch.device, options: argparse.Namespace) -> CriticBank:
    config = CriticBankConfig(critic=critic_config(options), critics=critics)
    return CriticBank(config, CriticBankOptions.model_validate({"precision": precision}), device=device)


def random_batch(critics: int, device: torch.device) -> CriticBatch:
    images = [torch.rand(critics, BATCH, *SHAPE, device=device) for _ in range(2)]
    labels = [torch.randint(0, CLASSES, (critics, BATCH), device=device) for _ in range(2)]
    return CriticBatch(images[0], images[1], labels[0], labels[1], torch.rand(critics, BATCH, device=device))


# --- the rows


def sequential_rows(rows: list[Row], device: torch.device, options: argparse.Namespace) -> float:
    """One critic after the other, eager: the best of the precisions is the rival of all that follows."""
    best = 0.0
    for precision in ("highest", "high") if device.type == "cuda" else ("highest",):
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = True
        best = max(best, sequential_speed(device, options))
    torch.set_float32_matmul_precision("highest")
    add(rows, "critic training, one at a time, eager", "critic-steps/s", None, best, True)
    return best


def sequential_speed(device: torch.device, options: argparse.Namespace) -> float:
    critics = [Critic(critic_config(options)).to(device) for _ in range(4)]
    optimisers = [torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9)) for critic in critics]
    stacked = random_batch(len(critics), device)
    fields = (stacked.real_images, stacked.fake_images, stacked.real_labels, stacked.fake_labels, stacked.mix)
    config = CriticLossConfig()

    def round_of_steps() -> None:
        for row, (critic, optimiser) in enumerate(zip(critics, optimisers, strict=True)):
            batch = CriticBatch(*(field[row] for field in fields if field is not None))
            optimiser.zero_grad()
            critic_loss(critic, batch, config).backward()
            optimiser.step()

    return len(critics) / seconds_each(round_of_steps, device, options.seconds)


def bank_rows(rows: list[Row], device: torch.device, options: argparse.Namespace, rival: float) -> tuple[str, int]:
    """Bank speed for every precision and block size; the fastest combination."""
    best, fastest = ("fp32", 1), 0.0
    for precision in options.precisions.split(","):
        for block in (int(size) for size in options.blocks.split(",")):
            free_memory(device)
            name = f"critic training, bank, {precision}, {block} side by side"
            try:
                speed = bank_speed(precision, block, device, options)
            except torch.cuda.OutOfMemoryError:
                print(f"{name}: out of memory", flush=True)
                continue
            add(rows, name, "critic-steps/s", speed, rival, True)
            if peak_gib(device) is not None:
                print(f"    peak memory {peak_gib(device):.1f} GiB", flush=True)
            if speed > fastest:
                best, fastest = (precision, block), speed
    return best


def bank_speed(precision: str, block: int, device: torch.device, options: argparse.Namespace) -> float:
    """Critic-steps a second of two blocks trained in turn, on contiguous critics."""
    bank = make_bank(2 * block, precision, device, options)
    blocks = [slice(0, block), slice(block, 2 * block)]
    batch = random_batch(block, device)

    def both_blocks() -> None:
        for part in blocks:
            bank.train_step(part, batch)

    speed = 2 * block / seconds_each(both_blocks, device, options.seconds)
    assert bool(torch.isfinite(bank.parameters).all()), "a parameter is not finite"
    return speed


def large_bank_rows(rows: list[Row], device: torch.device, options: argparse.Namespace, best: tuple[str, int]) -> None:
    """A whole bank: scattered critics, queries, warm start, memory."""
    precision, block = best
    bank = make_bank(options.bank, precision, device, options)
    title = f"K={options.bank}, {precision}"
    scattered = torch.randperm(options.bank)[: min(96, options.bank)].tolist()
    batch = random_batch(len(scattered), device)
    each = seconds_each(lambda: bank.train_step(scattered, batch), device, options.seconds)
    add(rows, f"{len(scattered)} scattered critics of {title}", "critic-steps/s", len(scattered) / each, None, True)
    queries = query_row(rows, bank, title, options)
    train = bank_warm_start(rows, bank, title, block, options)
    projected = 2500 * queries + 240_000 * train + options.warm_iterations * options.bank * train * 1.3
    print(f"    projected: 640,000 queries, 96 critics a step, warm start: {projected:.0f} s without the generator")
    if device.type == "cuda":
        add(rows, f"peak memory, {title}", "GiB", peak_gib(device), None, False)


def largest_bank_rows(
    rows: list[Row], device: torch.device, options: argparse.Namespace, best: tuple[str, int]
) -> None:
    """A bank that must fit: one training step, queries, and the memory they took."""
    precision, block = best
    bank = make_bank(options.largest, precision, device, options)
    block = min(block, options.largest)
    bank.train_step(slice(0, block), random_batch(block, device))
    query_row(rows, bank, f"K={options.largest}, {precision}", options)
    if device.type == "cuda":
        add(rows, f"peak memory, K={options.largest}, {precision}", "GiB", peak_gib(device), None, False)


def query_row(rows: list[Row], bank: CriticBank, title: str, options: argparse.Namespace) -> float:
    images = torch.rand(QUERIES, *SHAPE, device=bank.device)
    labels = torch.randint(0, CLASSES, (QUERIES,), device=bank.device)
    routing = torch.randint(0, bank.config.critics, (QUERIES,), device=bank.device)
    each = seconds_each(lambda: bank.query(images, labels, routing), bank.device, options.seconds)
    add(rows, f"{QUERIES} routed queries, {title}", "ms", 1000 * each, None, False)
    return each


def bank_warm_start(rows: list[Row], bank: CriticBank, title: str, block: int, options: argparse.Namespace) -> float:
    """Warm start of a bank whose subsets hold 60 random records each; seconds per critic-step, generators included."""
    count = 60 * bank.config.critics
    records = PrivateRecords(
        torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, device=bank.device),
        torch.randint(0, CLASSES, (count,), device=bank.device),
        SubsetTable.from_assignment(
            torch.randint(0, bank.config.critics, (count,), device=bank.device), len(bank.active)
        ),
    )
    config = WarmStartConfig(iterations=options.warm_iterations, batch=BATCH, block=min(block, bank.config.critics))
    synchronize(bank.device)
    start = time.perf_counter()
    warm_start(bank, records, config)
    synchronize(bank.device)
    elapsed = time.perf_counter() - start
    add(rows, f"warm start, {config.iterations} iterations, {title}", "s", elapsed, None, False)
    return elapsed / (config.iterations * bank.config.critics)


def profile(device: torch.device, options: argparse.Namespace, best: tuple[str, int]) -> None:
    """Where one step of the fastest bank spends its time."""
    precision, block = best
    bank, batch = make_bank(block, precision, device, options), random_batch(block, device)
    bank.train_step(slice(0, block), batch)
    synchronize(device)
    with torch.profiler.profile(record_shapes=True) as recorded:
        bank.train_step(slice(0, block), batch)
        synchronize(device)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    for grouped in (False, True):
        table = recorded.key_averages(group_by_input_shape=grouped).table(
            sort_by=order, row_limit=30, max_name_column_width=60, max_shapes_column_width=70
        )
        keep = [" ".join(line.split()) for line in table.splitlines() if line.strip() and not line.startswith("---")]
        print("\n".join(line[:230] for line in keep), flush=True)


# --- writing


def write(rows: list[Row], device: torch.device, options: argparse.Namespace) -> None:
    name = device_name(device).split(",")[0].lower().replace(" ", "-") if device.type == "cuda" else "cpu"
    path = options.json or Path(__file__).parent / "results" / f"speed-critic-bank-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    commit = options.commit or current_commit()
    body = {
        "device": device_name(device),
        "command": command_line(("--json", "--commit")),
        "commit": commit,
        "rows": rows,
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
