"""The private teacher alone: its accuracy on the test images, at several prices, with a certified epsilon.

    python benchmarks/teacher.py mnist --epsilon 1 10
    python benchmarks/teacher.py fashion-mnist --epsilon 1 10 --kind linear
    python benchmarks/teacher.py malaria-cells --epsilon 10 --kind network --set teacher.width=64
    python benchmarks/teacher.py cifar-10 --epsilon 1 --set teacher.features=patches --set teacher.mirrored=true
    python benchmarks/teacher.py malaria-cells --shape 1x32x32 --epsilon 1 --set teacher.features=patches

The teacher gets the whole of epsilon; steps and rate are decided as in a run (``engines/teacher/config.py``). The
epsilon of a row is recomputed from the event on the run's ledger. Writes
``benchmarks/results/teacher-<dataset>[-<shape>].json``, with one entry for each kind, features and epsilon; an entry
that is measured again replaces the older one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import understudy as us
from record import command_line, current_commit, declared_data, device_name
from understudy.devices import choose_device
from understudy.engines.records import load_batch
from understudy.engines.teacher.config import TaughtConfig
from understudy.engines.teacher.training import train_teacher
from understudy.methods.config import apply_settings, build_config
from understudy.models.teacher import Teacher
from understudy.privacy import accounting
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Progress, Run

_AT_ONCE = 2000


def main() -> None:
    options = parse()
    name = options.dataset if options.shape is None else f"{options.dataset}-{options.shape}"
    path = options.results / f"teacher-{name}.json"
    rows = json.loads(path.read_text())["teachers"] if path.exists() else []
    for epsilon in options.epsilon:
        row = measure(options, us.Budget(epsilon, options.delta))
        rows = [old for old in rows if identity(old) != identity(row)] + [row]
        rows.sort(key=identity)
        path.write_text(json.dumps({"dataset": name, "teachers": rows}, indent=1) + "\n")
        print(row, flush=True)


def identity(row: dict[str, Any]) -> tuple[str, str, float]:
    """What a row is of: with the same, it takes the place of an older one."""
    return row["kind"], row.get("features", "scattering"), row["asked"]


def measure(options: argparse.Namespace, budget: us.Budget) -> dict[str, Any]:
    """Train one teacher on the training images, and ask it about all test images."""
    data = declared_data(options.dataset, options.declared, shape=options.shape)
    test = declared_data(options.dataset, shape=options.shape, split="test")
    plan, device = planned(options, data, budget), choose_device(options.device)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl")
        run = Run(Path(folder), plan, data, ledger, Randomness(), device, listener=lambda told: clock(told, seconds))
        config = plan.config_as(TaughtConfig)
        started = time.perf_counter()
        teacher = train_teacher(run, config.teacher, plan.events[0])
        seconds["all"] = time.perf_counter() - started
        epsilon = accounting.certified_epsilon(ledger.events(), budget.delta)
    return {
        "kind": config.teacher.kind,
        "features": config.teacher.released()["features"],
        "asked": budget.epsilon,
        "epsilon": epsilon,
        "delta": budget.delta,
        "accuracy": accuracy(teacher.to(device), test, device),
        "steps": plan.events[0].count,
        "learning_rate": config.teacher.learning_rate,
        "noise_multiplier": plan.events[0].noise_multiplier,
        "features_seconds": round(seconds["features"], 1),
        "steps_seconds": round(seconds["all"] - seconds["features"], 1),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "command": command_line(leave_out=("--results", "--commit")),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
    }


def planned(options: argparse.Namespace, data: us.ImageDataset, budget: us.Budget) -> Plan:
    """The plan of a run with nothing but a teacher, which gets all of the budget."""
    config = build_config(TaughtConfig, apply_settings({"teacher": {"kind": options.kind}}, options.settings))

    def calibrate(event: Any) -> float:
        return accounting.calibrate(lambda noise: [event(noise)], budget)

    privacy = config.teacher.with_steps(config.privacy, data.domain, calibrate)
    noise = calibrate(lambda multiplier: config.teacher.event(privacy, data.domain, multiplier))
    privacy = privacy.model_copy(update={"teacher_noise_multiplier": noise})
    teacher = config.teacher.decided(privacy, data.domain)
    event = teacher.event(privacy, data.domain, noise)
    config = config.model_copy(update={"privacy": privacy, "teacher": teacher})
    return Plan("teacher", config, data.domain, budget, (event,), budget.epsilon, event.count, 0, 0.0, 0.0)


def clock(told: Progress, seconds: dict[str, float]) -> None:
    """Remember when the features were done."""
    if told.values.get("teacher_features") == 1:
        seconds["features"] = told.seconds


@torch.inference_mode()
def accuracy(teacher: Teacher, data: us.ImageDataset, device: torch.device) -> float:
    """The part of the images that it names as they are labelled."""
    right = 0
    for start in range(0, len(data), _AT_ONCE):
        images, labels = load_batch(data, slice(start, start + _AT_ONCE), device)
        right += int((teacher(images).argmax(dim=1) == labels).sum())
    return right / len(data)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--declare", dest="declared", action="append", default=[], help="as of train: person=column:ID")
    parser.add_argument("--shape", help="to which images are brought: 1x32x32 looks at photographs in grey")
    parser.add_argument("--kind", default="linear", choices=["linear", "network"])
    parser.add_argument("--set", dest="settings", action="append", default=[], help="group.key=value")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
