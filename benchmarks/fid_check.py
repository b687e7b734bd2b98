"""Checks the evaluation on real data: training images scored against test images must come out where papers say.

For each data set it measures the FID of the 60,000 training images against the 10,000 test images (at each precision
asked for), the accuracy of the downstream CNN trained on real images, and the Inception score of the real test images,
and writes one JSON file. Exit code 1 if a figure lies outside its tolerance.

    python benchmarks/fid_check.py --data DATA --weights DATA/inception_fid_2015_fp16.pt --precisions fp32 tf32 fp16
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import current_commit
from understudy.devices import choose_device, describe_device
from understudy.errors import InputError, UnderstudyError
from understudy.evaluate.cnn import CnnConfig, train_cnn
from understudy.evaluate.downstream import LabelledImages, cnn_accuracy
from understudy.evaluate.fid import fid
from understudy.evaluate.inception import InceptionFeatures, find_weights
from understudy.evaluate.inception_score import score_images, scorer_config
from understudy.files import make_folder, write_text

CLASSES = 10


@dataclass(frozen=True)
class Expected:
    """A published figure and how far from it a correct evaluation may come out."""

    published: float
    tolerance: float

    def judge(self, value: float) -> dict[str, Any]:
        """The measured value beside the published one."""
        return {
            "value": value,
            "published": self.published,
            "tolerance": self.tolerance,
            "within": abs(value - self.published) <= self.tolerance,
        }


# The Inception score depends on how sure a classifier is and the seed's own is not at hand: hence a wide tolerance.
EXPECTED = {
    "mnist": {
        "fid": Expected(1.02, 0.05),
        "cnn_accuracy": Expected(0.992, 0.003),
        "inception_score": Expected(9.80, 0.15),
        "scorer_accuracy": Expected(0.9925, 0.004),
    },
    "fashion_mnist": {
        "fid": Expected(1.49, 0.10),
        "cnn_accuracy": Expected(0.925, 0.007),
        "inception_score": Expected(8.98, 0.40),
        "scorer_accuracy": Expected(0.9375, 0.01),
    },
}


def load(folder: Path, dataset: str) -> tuple[LabelledImages, LabelledImages]:
    path = folder / f"{dataset}.npz"
    if not path.is_file():
        raise InputError(f"data: {path} is not a file; pass the folder that holds {dataset}.npz")
    with np.load(path, allow_pickle=False) as archive:
        train, test = (
            LabelledImages(archive[f"x_{part}"][:, None], archive[f"y_{part}"].astype(np.int64))
            for part in ("train", "test")
        )
    return train, test


def measure_fid(train: LabelledImages, test: LabelledImages, options: argparse.Namespace) -> list[dict[str, Any]]:
    weights, device, rows = find_weights(options.weights), choose_device(options.device), []
    for precision in options.precisions:
        result = fid(train.images, test.images, InceptionFeatures(weights, device, precision))
        rows.append({"precision": precision, **result.as_dict()})
        print(f"  fid {precision}: {result.value:.4f} in {result.seconds:.1f} s", file=sys.stderr)
    return rows


def measure_classifiers(train: LabelledImages, test: LabelledImages, device: str) -> dict[str, Any]:
    config = CnnConfig(device=device)
    downstream = cnn_accuracy(train.images, train.labels, test.images, test.labels, CLASSES, config)
    print(f"  cnn: {downstream.accuracy:.4f} in {downstream.seconds:.1f} s", file=sys.stderr)
    started = time.perf_counter()
    scorer = train_cnn(train.images, train.labels, CLASSES, scorer_config(device))
    training_seconds = time.perf_counter() - started
    accuracy = float(np.mean(scorer.predict(test.images) == test.labels))
    score, score_train = (score_images(part.images, scorer, accuracy) for part in (test, train))
    print(f"  is: {score.value:.3f} test, {score_train.value:.3f} training images", file=sys.stderr)
    return {
        "downstream": downstream.as_dict(),
        "inception": {
            **score.as_dict(),
            "value_on_training_images": score_train.value,
            "settings": scorer.config.describe(),
            "training_seconds": training_seconds,
        },
    }


def check(dataset: str, options: argparse.Namespace) -> dict[str, Any]:
    print(dataset, file=sys.stderr)
    started = time.perf_counter()
    train, test = load(options.data, dataset)
    rows = measure_fid(train, test, options)
    classifiers = measure_classifiers(train, test, options.device)
    values = {
        "fid": rows[0]["value"],
        "cnn_accuracy": classifiers["downstream"]["accuracy"],
        "inception_score": classifiers["inception"]["value"],
        "scorer_accuracy": classifiers["inception"]["classifier_accuracy"],
    }
    checks = {name: EXPECTED[dataset][name].judge(value) for name, value in values.items()}
    return {
        "check": "real-data",
        "dataset": dataset,
        **values,
        "passed": all(judged["within"] for judged in checks.values()),
        "checks": checks,
        "fid_rows": rows,
        **classifiers,
        "seconds": time.perf_counter() - started,
        "device": describe_device(choose_device(options.device)),
        "software": {"torch": torch.__version__, "python": platform.python_version()},
        "command": reproducing_command(dataset, options),
        "commit": options.commit or current_commit(),
    }


def reproducing_command(dataset: str, options: argparse.Namespace) -> str:
    """The command that repeats this result; where its files lay does not matter."""
    words = ["python", "benchmarks/fid_check.py", "--data", "DATA", "--datasets", dataset]
    words += ["--weights", "WEIGHTS"] if options.weights else []
    return shlex.join([*words, "--device", options.device, "--precisions", *options.precisions])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist.npz and fashion_mnist.npz")
    parser.add_argument("--weights", type=Path, help="Inception weights; searched for where not given")
    parser.add_argument("--datasets", nargs="+", choices=sorted(EXPECTED), default=["mnist", "fashion_mnist"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "tf32", "fp16"], default=["fp32"])
    parser.add_argument("--json", default="benchmarks/results/check-real-data-{dataset}.json", help="where to write")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


def main() -> int:
    options = parse()
    if len(options.datasets) > 1 and "{dataset}" not in options.json:
        raise InputError(f"json: {options.json} is one file for {len(options.datasets)} results; put {{dataset}} in it")
    passed = True
    for dataset in options.datasets:
        result = check(dataset, options)
        path = Path(options.json.replace("{dataset}", dataset))
        make_folder(path.parent, "json")
        write_text(path, json.dumps(result, indent=2) + "\n")
        passed = passed and result["passed"]
        print(json.dumps(result["checks"], indent=2))
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnderstudyError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
