"""The thirteen downstream classifiers trained on real images, beside the figures that seed 000 prints for them.

    python benchmarks/classifiers.py mnist
    python benchmarks/classifiers.py fashion-mnist --fast
    python benchmarks/classifiers.py mnist --classifiers cnn --device cuda

Writes ``benchmarks/results/classifiers-<dataset>-real[-fast].json``: for each classifier the accuracy on the real test
set, the figure of the paper's Table A1 or A2, the time by the clock and of the processor, the most memory its process
held, the machine and the commit. With ``--classifiers``, only their rows are replaced. Without ``--fast`` the exit code
is 1 if a classifier comes out more than 2 points from the table. The data are looked for where ``understudy data list``
says.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import understudy as us
from record import command_line, current_commit
from understudy.devices import choose_device, describe_device
from understudy.errors import InputError, UnderstudyError
from understudy.evaluate.classifiers import ClassifierSetup, table_classifiers
from understudy.evaluate.downstream import DownstreamResult, LabelledImages, subsample
from understudy.evaluate.evaluation import EvaluationConfig
from understudy.evaluate.parallel import Crew, DownstreamProgress, cores, downstream_accuracies
from understudy.files import make_folder, write_text

TOLERANCE = 0.02
PUBLISHED = {  # accuracy after training on real data, as printed
    "mnist": {
        "mlp": 0.98,
        "cnn": 0.99,
        "adaboost": 0.73,
        "bagging": 0.93,
        "bernoulli_nb": 0.84,
        "decision_tree": 0.88,
        "gaussian_nb": 0.56,
        "gradient_boosting": 0.91,
        "lda": 0.88,
        "linear_svc": 0.92,
        "logistic_regression": 0.93,
        "random_forest": 0.97,
        "xgboost": 0.91,
    },
    "fashion-mnist": {
        "mlp": 0.88,
        "cnn": 0.91,
        "adaboost": 0.56,
        "bagging": 0.84,
        "bernoulli_nb": 0.65,
        "decision_tree": 0.79,
        "gaussian_nb": 0.59,
        "gradient_boosting": 0.83,
        "lda": 0.80,
        "linear_svc": 0.84,
        "logistic_regression": 0.84,
        "random_forest": 0.88,
        "xgboost": 0.83,
    },
}
PUBLISHED_AVERAGE = {"mnist": 0.88, "fashion-mnist": 0.79}


def main() -> int:
    options = parse()
    names = options.classifiers.split(",") if options.classifiers else list(table_classifiers())
    config = EvaluationConfig(device=options.device, fast=options.fast)
    train, test = (load(options.dataset, split) for split in ("train", "test"))
    setup = ClassifierSetup(10, config.seed, config.cnn, fast=options.fast)
    train = subsample(train, options.images, setup)
    started = time.perf_counter()
    results = downstream_accuracies(names, train, test, setup, Crew(options.workers, tell), "real data")
    seconds = round(time.perf_counter() - started, 1)
    path = options.results / f"classifiers-{options.dataset}-real{'-fast' if options.fast else ''}.json"
    rows = kept_rows(path, len(train.labels)) | {name: row(result, options) for name, result in results.items()}
    ordered = [rows[name] for name in table_classifiers() if name in rows]
    whole = len(ordered) == len(table_classifiers())
    result = {
        "classifiers": ordered,
        "dataset": options.dataset,
        "trained_on": "real data",
        "images": len(train.labels),
        "average_accuracy": sum(each["accuracy"] for each in ordered) / len(ordered) if whole else None,
        "published_average": PUBLISHED_AVERAGE[options.dataset],
        "fast": options.fast,
        "within_tolerance": all(each["within_tolerance"] for each in ordered),
        "tolerance": TOLERANCE,
        "seconds": seconds if len(results) == len(ordered) else None,  # of one run by the clock
        "cpu_seconds": round(sum(each["cpu_seconds"] or 0 for each in ordered), 1),
        "memory_mb": max(each["memory_mb"] or 0 for each in ordered),
        "workers": options.workers,
        "device": machine(options.device),
        "command": command_line(leave_out=("--results", "--commit")),
        "commit": options.commit or current_commit(),
    }
    make_folder(options.results, "results")
    write_text(path, json.dumps(result, indent=1) + "\n")
    return 0 if options.fast or result["within_tolerance"] else 1


def kept_rows(path: Path, images: int) -> dict[str, dict[str, Any]]:
    """The rows of an earlier run on as many images."""
    if not path.is_file():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    return {each["classifier"]: each for each in earlier["classifiers"]} if earlier["images"] == images else {}


def machine(device: str) -> str:
    """What the classifiers were trained on."""
    processor = f"{cores()} CPU core{'s' if cores() > 1 else ''}, {platform.machine()}"
    chosen = choose_device(device)
    return processor if chosen.type == "cpu" else f"{processor}; the CNN on {describe_device(chosen)}"


def load(dataset: str, split: str) -> LabelledImages:
    data = us.load(dataset, split=split)
    if data.labels is None:
        raise InputError(f"labels: {dataset} has none; choose mnist or fashion-mnist")
    return LabelledImages(data.images, data.labels)


def row(result: DownstreamResult, options: argparse.Namespace) -> dict[str, Any]:
    published = PUBLISHED[options.dataset][result.classifier]
    return {
        "classifier": result.classifier,
        "accuracy": result.accuracy,
        "published": published,
        "within_tolerance": abs(result.accuracy - published) <= TOLERANCE,
        "trained_on": result.trained_on,
        "seconds": round(result.seconds, 1),
        "cpu_seconds": None if result.cpu_seconds is None else round(result.cpu_seconds, 1),
        "memory_mb": result.memory_mb,
        "settings": result.settings,
        "device": machine(options.device),
        "commit": options.commit or current_commit(),
    }


def tell(progress: DownstreamProgress) -> None:
    result = progress.result
    print(
        f"{progress.finished}/{progress.total} {result.classifier}: {result.accuracy:.4f} in {result.seconds:.1f} s, "
        f"{result.memory_mb} MB",
        flush=True,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=sorted(PUBLISHED))
    parser.add_argument("--fast", action="store_true", help="the fast mode of understudy evaluate")
    parser.add_argument("--classifiers", help="separated by commas; by default all thirteen")
    parser.add_argument("--images", type=int, default=60_000, help="training images at most")
    parser.add_argument("--workers", type=int, default=cores(), help="processes side by side")
    parser.add_argument("--device", default="cpu", help="of the CNN")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnderstudyError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
