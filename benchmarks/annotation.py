"""Accuracy of a student against the number of labelled images it learns from: seed 003, Fig. 3.

    python benchmarks/annotation.py digits
    python benchmarks/annotation.py mnist --method dpgan --epsilon 10 --device cuda

Trains a generator without labels and an annotator by DP-SGD, within one budget for both; half of epsilon goes to the
generator. Students (the CNN of the evaluation) then learn from n images of the annotated release, and from n real
ones, and are scored on the real test images. Writes ``benchmarks/results/annotation-<method>-<dataset>-eps<E>.json``
with the certificate of the annotated release, the accuracy of the annotator and both curves, also relative to their
own maximum as in the figure.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import understudy as us
from record import command_line, current_commit, device_name
from understudy.api import annotate
from understudy.devices import choose_device
from understudy.evaluate.cnn import CnnConfig, train_cnn
from understudy.files import make_folder, write_text
from understudy.methods.config import apply_settings

COUNTS = (100, 300, 1000, 3000, 10_000, 60_000)


def main() -> None:
    options = parse()
    train, test = us.load(options.dataset), us.load(options.dataset, split="test")
    assert train.labels is not None, "these data sets are labelled"
    assert test.labels is not None, "these data sets are labelled"
    with tempfile.TemporaryDirectory() as folder:
        release, seconds = annotated(train, options.runs or Path(folder), options)
    counts = [count for count in COUNTS if count <= min(len(train), options.most)]
    images, labels = release.sample(max(counts))
    channels_first = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    assert labels is not None, "an annotated release has labels"
    order = np.random.default_rng(0).permutation(len(train))
    sources = {"annotated": (channels_first, labels), "real": (train.images[order], train.labels[order])}
    curves = {name: curve(*source, test, counts, options.device) for name, source in sources.items()}
    shown = test.images[:, 0] if images.ndim == 3 else test.images.transpose(0, 2, 3, 1)
    certificate = release.certificate
    result: dict[str, Any] = {
        "annotation": options.method,
        "dataset": options.dataset,
        "epsilon": certificate.headline.epsilon,
        "delta": certificate.headline.delta,
        "annotator_accuracy": float((release.label(shown) == test.labels).mean()),
        "labelled_images": counts,
        "students": curves,
        "relative": {name: [value / max(values) for value in values] for name, values in curves.items()},
        "train_seconds": None if seconds is None else round(seconds, 1),
        "device": device_name(choose_device(options.device)),
        "command": command_line(leave_out=("--results", "--commit", "--runs")),
        "commit": options.commit or current_commit(),
        "annotated_certificate": json.loads(certificate.to_json()),
    }
    make_folder(options.results, "results")
    path = options.results / f"annotation-{options.method}-{options.dataset}-eps{options.epsilon:g}.json"
    write_text(path, json.dumps(result, indent=1) + "\n")
    print({key: value for key, value in result.items() if key != "annotated_certificate"}, flush=True)


def annotated(data: us.ImageDataset, runs: Path, options: argparse.Namespace) -> tuple[us.Release, float | None]:
    """An annotated release, trained now or found in the folder of runs."""
    if (runs / "annotated" / "release").is_dir():
        return us.load_release(runs / "annotated"), None
    started = time.perf_counter()
    domain = data.domain.model_copy(update={"classes": None, "class_names": None})
    plain = us.ImageDataset(data.name, domain, data.images)
    config = apply_settings({"runtime": {"device": options.device}}, options.settings)
    budget = us.Budget(options.share * options.epsilon, options.delta)
    base = us.train(options.method, plain, budget, runs / "plain", us.TrainOptions(config=config))
    settings = apply_settings({"runtime": {"device": options.device}}, options.annotator_settings)
    whole = us.Budget(options.epsilon, options.delta)
    release = annotate(base, data, whole, runs / "annotated", us.TrainOptions(config=settings))
    return release, time.perf_counter() - started


def curve(images: np.ndarray, labels: np.ndarray, test: us.ImageDataset, counts: list[int], device: str) -> list[float]:
    """The accuracy of a student for each number of labelled images."""
    assert test.labels is not None, "checked before"
    accuracies = []
    for count in counts:
        student = train_cnn(images[:count], labels[:count], test.domain.classes or 1, CnnConfig(device=device))
        accuracies.append(float((student.predict(test.images) == test.labels).mean()))
        print(f"{count} images: {accuracies[-1]:.4f}", flush=True)
    return accuracies


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--method", default="dp-merf", choices=us.method_names())
    parser.add_argument("--epsilon", type=float, default=10.0, help="of generator and annotator together")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--share", type=float, default=0.5, help="of epsilon for the generator")
    parser.add_argument("--most", type=int, default=60_000, help="labelled images at most")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="of the generator: group.key=value")
    parser.add_argument("--annotator", dest="annotator_settings", action="append", default=[], help="group.key=value")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="keep the runs here and use those that are there already")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
