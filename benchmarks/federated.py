"""Federated EMNIST and MNIST by writer: sample quality, both epsilons and bytes a step; and the debugging task.

    python benchmarks/federated.py quality gs-wgan-federated --data femnist
    python benchmarks/federated.py quality fedavg-gan --data mnist-writers --writers mnist_writers.npz
    python benchmarks/federated.py debug --data femnist
    python benchmarks/federated.py reference --data femnist
    python benchmarks/federated.py quality --set privacy.noise_multiplier=3 --variant noise3
    python benchmarks/federated.py quality --release RELEASE --temperature 0.6 --variant temperature6

``quality`` trains on all clients with at least 100 images (FEMNIST: 359 writers, 36 classes; the paper has 866 writers,
chosen by a classifier that is not published) and compares with images of the same writers that were held out. ``debug``
inverts the pixels of half of the clients, trains one generator on suspects (all clients with the bug and a fifth as
many without) and one on the others, and lets ``understudy inspect`` compare the two: it sees generated images alone, so
what it says is as private as they are. ``reference`` scores the real training images, for comparison. The Inception
score is that of a classifier trained on the real images. With ``--release`` nothing is trained: a release that is
there is scored, e.g. at another temperature. Nothing here needs Flower. With ``--runs`` a task that was cut
off goes on where it stands. Results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import understudy as us
from record import command_line, current_commit, device_name, seconds_on_record
from understudy.data.dataset import with_clients
from understudy.data.domain import source_options
from understudy.devices import choose_device
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.inspection.inspection import inspect_samples
from understudy.inspection.samples import draw_samples
from understudy.methods.config import apply_settings
from understudy.release.model_card import grid_png

_LEAST_IMAGES = 100
_INSPECTED = 500  # generated images of each class


def main() -> None:
    options = parse()
    train, test = load(options)
    if options.clients:
        train = some_clients(train, np.unique(train.client_ids)[: options.clients], options.clients)
    row = debug(options, train) if options.task == "debug" else score(options, train, test)
    row["command"] = command_line(leave_out=("--results", "--weights", "--writers", "--commit", "--runs"))
    row |= {"commit": options.commit or current_commit(), "device": device_name(choose_device(options.device))}
    row["torch"] = torch.__version__
    target(options, "json").write_text(json.dumps(row, indent=1) + "\n")
    print(json.dumps({key: value for key, value in row.items() if key != "certificate"}, indent=1))


def load(options: argparse.Namespace) -> tuple[us.ImageDataset, us.ImageDataset]:
    """Training and held-out images with their writers."""
    if options.data == "femnist":
        declared = source_options(min_images=_LEAST_IMAGES)
        return tuple(us.load("femnist", split=split, classes=36, options=declared) for split in ("train", "test"))
    train, test = us.load("mnist"), us.load("mnist", split="test")
    writers = np.load(options.writers, allow_pickle=False)["writer_train"].astype(np.int64)
    owned = us.ImageDataset(train.name, train.domain, train.images, train.labels, writers)
    return with_clients(owned, 539), test


def score(options: argparse.Namespace, train: us.ImageDataset, test: us.ImageDataset) -> dict[str, Any]:
    """One row of the table: a trained generator's images, or the real ones, against the held-out images."""
    row: dict[str, Any] = {"method": options.method, "dataset": options.data}
    if options.task == "reference":
        images, labels, promised = train.pictures, train.labels, {"method": "real data"}
    else:
        images, labels, promised = generated(options, train)
    started = time.perf_counter()
    config = EvaluationConfig(
        device=options.device,
        weights=options.weights,
        precision=options.precision,
        real_data_private=False,
        reference=False,
    )
    config = replace(config, fast=options.fast, classes=train.domain.classes)
    figures = evaluate(images, labels, train, test, options.metrics.split(","), config).as_dict()
    row |= promised | {name: figures[name] for name in ("fid", "cnn_accuracy", "inception_score")}
    row["scorer_accuracy"] = next(
        (part["classifier_accuracy"] for part in figures["figures"] if part["name"] == "is"), None
    )
    row["samples"], row["evaluate_seconds"] = len(images), round(time.perf_counter() - started, 1)
    return row


def generated(options: argparse.Namespace, train: us.ImageDataset) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Images of a generator trained on all clients, their labels, and what was promised and paid for them."""
    if options.release:
        release, paid = us.load_release(options.release), {}
    else:
        with tempfile.TemporaryDirectory() as folder:
            place = (options.runs or Path(folder)) / "all"
            release, seconds, last = run(options, train, place)
            paid = {"bytes_per_step": last["bytes_per_step"], "train_seconds": round(seconds, 1)}
    target(options, "png").write_bytes(grid_png(release, options.temperature))
    images, labels = release.sample(options.samples, temperature=options.temperature)
    certificate = json.loads(release.certificate.to_json())
    promised = {
        "epsilon": release.certificate.headline.epsilon,
        "delta": release.certificate.headline.delta,
        "epsilon_by_viewer": {claim["viewer"]: claim["epsilon"] for claim in certificate["guarantees"]},
        "clients": train.domain.nominal_clients,
        "temperature": options.temperature,
        **paid,
        "peak_gpu_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if torch.cuda.is_available() else None,
        "certificate": certificate,
    }
    return images, labels, promised


def debug(options: argparse.Namespace, train: us.ImageDataset) -> dict[str, Any]:
    """Two generators, the brightness of what they draw, and what ``inspect`` says about them."""
    writers = np.random.default_rng(0).permutation(np.unique(train.client_ids))
    broken, healthy = np.split(writers, [len(writers) // 2])
    images = np.where(np.isin(train.client_ids, broken)[:, None, None, None], 255 - train.images, train.images)
    train = us.ImageDataset(train.name, train.domain, images, train.labels, train.client_ids)
    mixed = len(broken) // 5
    groups = {"suspects": np.concatenate([broken, healthy[:mixed]]), "others": healthy[mixed:]}
    row: dict[str, Any] = {"method": options.method, "dataset": options.data, "task": "inverted pixels"}
    releases = {}
    for name, members in groups.items():
        with tempfile.TemporaryDirectory() as folder:
            own, place = some_clients(train, members, len(members)), (options.runs or Path(folder)) / name
            releases[name], seconds, _ = run(options, own, place)
            shutil.copy(place / "release" / "samples.png", target(options, "png", name))
        drawn, _ = releases[name].sample(2000)
        row[name] = {
            "clients": len(members),
            "epsilon": releases[name].certificate.headline.epsilon,
            "brightness_of_generated_images": round(float(drawn.mean()) / 255, 4),
            "train_seconds": round(seconds, 1),
        }
    suspects, others = (draw_samples(release, _INSPECTED, name) for name, release in releases.items())
    row["inspect"] = inspect_samples(suspects, others).sentences()
    return row


def some_clients(data: us.ImageDataset, members: np.ndarray, enrolled: int) -> us.ImageDataset:
    return with_clients(data.subset(np.flatnonzero(np.isin(data.client_ids, members))), enrolled)


def run(options: argparse.Namespace, data: us.ImageDataset, folder: Path) -> tuple[us.Release, float, dict[str, Any]]:
    """The release, the seconds of its training and the last line of its progress; a run that is there is continued."""
    started = time.perf_counter()
    if (folder / "run.json").exists():
        return us.resume(data, folder), seconds_on_record(folder), last_progress(folder)
    config = apply_settings({"runtime": {"device": options.device}}, options.settings)
    given = replace(us.TrainOptions(), config=config, preset=options.preset)
    release = us.train(options.method, data, us.Budget(options.epsilon, options.delta), folder, given)
    return release, time.perf_counter() - started, last_progress(folder)


def last_progress(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "progress.jsonl").read_text().splitlines()[-1]))


def target(options: argparse.Namespace, suffix: str, part: str = "") -> Path:
    options.results.mkdir(parents=True, exist_ok=True)
    if options.task == "reference":
        return options.results / f"real-data-{options.data}.{suffix}"
    task = "-inverted" if options.task == "debug" else ""
    ending = f"{task}{f'-{options.variant}' if options.variant else ''}{f'-{part}' if part else ''}"
    return options.results / f"{options.method}-{options.data}-eps{options.epsilon:g}{ending}.{suffix}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("quality", "debug", "reference"))
    parser.add_argument("method", nargs="?", default="gs-wgan-federated", choices=("gs-wgan-federated", "fedavg-gan"))
    parser.add_argument("--data", default="femnist", choices=("femnist", "mnist-writers"))
    parser.add_argument("--writers", type=Path, help="for mnist-writers: archive with the array writer_train")
    parser.add_argument("--clients", type=int, help="take only the first so many clients")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1.15e-3)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="group.key=value")
    parser.add_argument("--preset")
    parser.add_argument("--metrics", default="fid,is")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the latent values when images are drawn")
    parser.add_argument("--release", type=Path, help="score this release and train nothing")
    parser.add_argument(
        "--precision", default="tf32", choices=["fp32", "tf32", "fp16"], help="of the Inception network"
    )
    parser.add_argument("--fast", action="store_true", help="classifiers train for a fifth of the time; for a trial")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    parser.add_argument("--variant", default="", help="added to the file names")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="Inception weights; searched for where not given")
    parser.add_argument("--runs", type=Path, help="keep the runs here, and go on where they stand")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
