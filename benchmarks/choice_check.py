"""Whether ``auto`` chooses well on data that its table does not know: malaria cells in colour, CIFAR-10 in grey.

    python benchmarks/choice_check.py --device cuda --time 5m
    python benchmarks/choice_check.py --device cpu --time 20m --at-once 6 --records 5000
    python benchmarks/choice_check.py --device cpu --data malaria-cells --epsilon 3 --repeats 3

For each data set and epsilon, what ``auto`` chooses for the time is trained, and beside it the best candidate, in the
eyes of the table, of each of the four methods that it thinks best and that fit the time. All are scored alike: a CNN,
and in colour the residual network of ``headline.py``, trained on generated images alone, on real test images (on a
processor in the fast mode). Writes ``results/choice-check-<device>.json``, after every run: rows of single runs, and
for each task the error rate of ``auto`` over the least of all (the mean over ``--repeats`` runs and over both
classifiers, where there are two), and the time it took over the time it promised. Times are promised for one H200 or
for two CPU cores, so a run on a processor has ``--threads 2``. Runs that are in the file already are not made again.
The table is that of the package: bring it up to date before (``choices.py --table``).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import understudy as us
from record import at_once, command_line, current_commit, device_name, processor, write_json
from understudy.data.domain import Domain, source_options
from understudy.errors import InputError
from understudy.evaluate.evaluation import EvaluationConfig, evaluate, with_colour
from understudy.forecast import seconds_of
from understudy.methods.choice import Choice, Considered, choose
from understudy.methods.config import overlay

_RESULTS = Path(__file__).parent / "results"
_DATA = {"malaria-cells": ("malaria-cells", 3), "cifar-10-grey": ("cifar-10", 1)}  # the data set, and its channels
_DELTA = 1e-5
_METHODS = 4
_WITHIN = 1.1  # of the least error rate
_LATE = 2.0  # times what was promised, or half of it


@dataclass(frozen=True)
class Task:
    """A data set with so many records, and an epsilon."""

    data: str
    records: int
    epsilon: float

    def whole(self, split: str = "train") -> us.ImageDataset:
        """All of it; the unit is a record."""
        name, channels = _DATA[self.data]
        return us.load(name, split=split, options=source_options(channels=channels))

    def loaded(self) -> us.ImageDataset:
        """So many records, evenly spaced: cells go by patient."""
        whole = self.whole()
        if self.records == len(whole):
            return whole
        kept, classes = np.linspace(0, len(whole) - 1, self.records).astype(int), whole.domain.classes
        return us.from_arrays(whole.images[kept], whole.labels[kept], records=self.records, classes=classes)


def chosen(domain: Domain, task: Task, options: argparse.Namespace) -> Choice:
    """What ``auto`` says, with every candidate planned."""
    return choose(domain, us.Budget(task.epsilon, _DELTA), options.device, seconds_of(options.time), compare=True)


def rivals(choice: Choice) -> dict[str, Considered]:
    """By name: what was chosen, and the best candidate of each of the four best methods; only what fits the time."""
    fitting = [each for each in choice.considered if each.left_out is None]
    best = {each.candidate.method: each for each in reversed(fitting)}  # the best come first, so they are kept
    four = sorted(best.values(), key=lambda each: each.shortfall)[:_METHODS]
    return {each.candidate.name: each for each in (choice.chosen, *four)}


# One run


def measure(task: Task, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train a candidate as ``auto`` would, and score it."""
    data = task.loaded()
    considered = rivals(chosen(data.domain, task, options))[name]
    candidate = considered.candidate
    config = overlay(candidate.config, {"runtime": {"device": options.device}})
    with TemporaryDirectory() as folder:
        started, worked = time.perf_counter(), time.process_time()
        train_options = us.TrainOptions(config=config, preset=candidate.preset)
        release = us.train(candidate.method, data, us.Budget(task.epsilon, _DELTA), Path(folder) / "run", train_options)
        taken, work = time.perf_counter() - started, time.process_time() - worked
        images, labels = release.sample(options.samples)
    scoring = EvaluationConfig(
        device=options.device, real_data_private=False, fast=options.device == "cpu", reference=False
    )
    metrics = with_colour(("cnn",), data.domain.shape[0]) if options.metrics is None else options.metrics.split(",")
    result = evaluate(images, labels, task.whole(), task.whole("test"), metrics, scoring)
    return {
        **identity(task, considered, options),
        "error_rates": {metric: 1 - (result.value(metric) or 0.0) for metric in metrics},
        "expected_recovery": list(considered.recovered),
        "promised_seconds": round(considered.seconds or math.nan, 1),
        "train_seconds": round(taken, 1),
        "cpu_seconds": round(work, 1),
        "certified_epsilon": release.certificate.headline.epsilon,
        "device": processor() if options.device == "cpu" else device_name(torch.device(options.device)),
        "torch": torch.__version__,
    }


def identity(task: Task, considered: Considered, options: argparse.Namespace) -> dict[str, Any]:
    """What makes a run the one it is: with the same, it is not made again."""
    candidate = considered.candidate
    return {
        "data": task.data,
        "records": task.records,
        "epsilon": task.epsilon,
        "candidate": candidate.name,
        "method": candidate.method,
        "preset": candidate.preset,
        "config": dict(candidate.config),
        "samples": options.samples,
        "threads": options.threads,
    }


# All of them


def check(options: argparse.Namespace) -> None:
    """Every run that is missing, cheap tasks first; the file is written after each."""
    end, path = time.time() + options.seconds, options.results / f"choice-check-{options.device}.json"
    options.results.mkdir(parents=True, exist_ok=True)
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    about = {
        "device": processor() if options.device == "cpu" else device_name(torch.device(options.device)),
        "command": command_line(leave_out=("--commit", "--results", "--seconds")),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
        "time": seconds_of(options.time),
    }
    choices = dict(every_choice(options))
    for task, choice in choices.items():
        promised = {} if isinstance(choice, str) else {name: each.seconds for name, each in rivals(choice).items()}
        told = choice if isinstance(choice, str) else f"auto chooses {choice.chosen.candidate.name}"
        print(task, told, *(f"{name}: {seconds:.0f} s" for name, seconds in promised.items()), sep="; ", flush=True)
    commands = list(missing(choices, rows, options))
    environment = {"CUDA_VISIBLE_DEVICES": ""} if options.device == "cpu" else {}
    threads = {name: str(options.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    for row in at_once(commands, options.at_once, end, environment | threads):
        rows.append({**row, "commit": about["commit"]})
        print({key: value for key, value in row.items() if key != "config"}, flush=True)
        write_json(path, {**about, "tasks": [judged(*each, rows, options) for each in choices.items()], "rows": rows})
    write_json(path, {**about, "tasks": [judged(*each, rows, options) for each in choices.items()], "rows": rows})


def every_choice(options: argparse.Namespace) -> Iterator[tuple[Task, Choice | str]]:
    """What ``auto`` says of each task, or why it says nothing."""
    for data in options.data:
        records = options.records or len(Task(data, 0, 0.0).whole())
        for epsilon in options.epsilon:
            task = Task(data, records, epsilon)
            try:
                yield task, chosen(task.loaded().domain, task, options)
            except InputError as error:
                yield task, str(error)


def missing(
    choices: Mapping[Task, Choice | str], rows: Sequence[Mapping[str, Any]], options: argparse.Namespace
) -> Iterator[list[str]]:
    """The commands of runs that were not made yet; those of what was chosen come first, and repeats last."""
    for repeat, (task, choice) in product(range(options.repeats), choices.items()):
        for name, considered in {} if isinstance(choice, str) else rivals(choice).items():
            if len(runs_of(task, considered, rows, options)) <= repeat:
                words = [__file__, "--only", task.data, str(task.records), f"{task.epsilon:g}", name]
                words += ["--device", options.device, "--time", options.time, "--threads", str(options.threads)]
                words += ["--samples", str(options.samples)]
                yield [*words, *(["--metrics", options.metrics] if options.metrics else [])]


def runs_of(
    task: Task, considered: Considered, rows: Sequence[Mapping[str, Any]], options: argparse.Namespace
) -> list[Mapping[str, Any]]:
    """The runs of a candidate that were made."""
    wanted = json.loads(json.dumps(identity(task, considered, options)))
    return [row for row in rows if wanted.items() <= row.items()]


def mean_error(runs: Sequence[Mapping[str, Any]]) -> float:
    """Over runs and classifiers."""
    return float(np.mean([error for row in runs for error in row["error_rates"].values()]))


def judged(
    task: Task, choice: Choice | str, rows: Sequence[Mapping[str, Any]], options: argparse.Namespace
) -> dict[str, Any]:
    """How ``auto`` did, as far as it is known: its error rate over the least of all, its time over the promise."""
    told: dict[str, Any] = {"data": task.data, "records": task.records, "epsilon": task.epsilon}
    if isinstance(choice, str):
        return told | {"refused": choice}
    found = {name: runs_of(task, each, rows, options) for name, each in rivals(choice).items()}
    made = {name: runs for name, runs in found.items() if runs}
    told |= {"auto": choice.chosen.candidate.name, "measured_near": choice.near, "complete": len(made) == len(found)}
    own = made.get(choice.chosen.candidate.name)
    if own is None:
        return told
    errors = {name: mean_error(runs) for name, runs in made.items()}
    least = min(errors, key=lambda name: errors[name])
    ratio = errors[choice.chosen.candidate.name] / errors[least]
    late = float(np.mean([row["train_seconds"] / row["promised_seconds"] for row in own]))
    return told | {
        "best": least,
        "runs": {name: len(runs) for name, runs in made.items()},
        "mean_errors": errors,
        "ratio_of_errors": ratio,
        "within_ten_percent": ratio <= _WITHIN,
        "ratio_of_times": late,
        "within_factor_two": 1 / _LATE <= late <= _LATE,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--time", default="20m", help="that one is ready to wait, as of train")
    parser.add_argument("--data", nargs="+", default=list(_DATA), choices=list(_DATA))
    parser.add_argument("--records", type=int, help="so many of each data set, evenly spaced; all unless given")
    parser.add_argument("--epsilon", nargs="+", type=float, default=[3.0, 10.0])
    parser.add_argument("--samples", type=int, help="drawn and trained on; 20000 on a graphics card, else 4000")
    parser.add_argument("--metrics", help="of cnn and resnet; cnn unless given, in colour both")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each candidate, whose mean counts")
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2, help="of a run on a processor")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="the folder that is written to")
    parser.add_argument("--only", nargs=4, metavar=("DATA", "RECORDS", "EPSILON", "CANDIDATE"), help="print one run")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    options = parser.parse_args()
    options.samples = options.samples or (20_000 if options.device == "cuda" else 4000)
    return options


def main() -> None:
    options = parse()
    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    if options.only is None:
        check(options)
        return
    data, records, epsilon, name = options.only
    print(json.dumps(measure(Task(data, int(records), float(epsilon)), name, options)))


if __name__ == "__main__":
    main()
