"""Faults in data that nobody may look at, found in private samples: seed 003, Fig. 1, and seed 000, Fig. 5.

    python benchmarks/data_bugs.py mnist --set method.steps=600 --set method.batch=120
    python benchmarks/data_bugs.py digits
    python benchmarks/data_bugs.py mnist --method gs-wgan --device cuda --runs runs/bugs

Trains one generator on clean data and one on each broken version of them (30 % of the images turned by 90 degrees, 30 %
inverted, one class missing, one class at a tenth), each within the same budget, and a second one on clean data, on
which nothing must be found. ``understudy inspect`` then compares samples of each with samples of the first.

Writes ``benchmarks/results/bugs-<method>-<dataset>-eps<E>.json`` with what was found in words, and samples of clean and
broken data beside each other as a PNG. The exit code is 1 if a fault was missed or something was found in clean data.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import understudy as us
from record import command_line, current_commit, device_name, seconds_on_record
from understudy.devices import choose_device
from understudy.files import make_folder, write_bytes, write_text
from understudy.inspection.inspection import inspect_samples
from understudy.inspection.samples import draw_samples
from understudy.methods.config import apply_settings
from understudy.release.model_card import class_rows, png, tile

SHARE, MISSING, RARE = 0.3, 7, 4  # of the images; classes
Break = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def rotated(images: np.ndarray, labels: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A share of the images turned by 90 degrees."""
    images[uniform < SHARE] = np.rot90(images[uniform < SHARE], 1, (2, 3))
    return images, labels


def inverted(images: np.ndarray, labels: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A share of the images with dark for light."""
    images[uniform < SHARE] = 255 - images[uniform < SHARE]
    return images, labels


def missing(images: np.ndarray, labels: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """No image of one class."""
    return images[labels != MISSING], labels[labels != MISSING]


def imbalanced(images: np.ndarray, labels: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A tenth of the images of one class."""
    kept = (labels != RARE) | (uniform < 0.1)
    return images[kept], labels[kept]


def untouched(images: np.ndarray, labels: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clean data."""
    return images, labels


# By name: how the data are broken, and the names of findings of which at least one must be made.
BUGS: dict[str, tuple[Break, frozenset[str]]] = {
    "clean": (untouched, frozenset()),
    "rotated": (rotated, frozenset({"rotated-90"})),
    "inverted": (inverted, frozenset({"inverted"})),
    "missing": (missing, frozenset({"missing-class", "changed-class"})),
    "imbalanced": (imbalanced, frozenset({"imbalance", "missing-class"})),
}


def main() -> int:
    options = parse()
    device = choose_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        runs = options.runs or Path(folder)
        normal, seconds = release_of("normal", untouched, runs, options)
        cases = [inspect_case(name, normal, runs, options) for name in options.bugs.split(",")]
        picture = side_by_side(runs, options.bugs.split(","))
    result = {
        "data_bugs": cases,
        "method": options.method,
        "dataset": options.dataset,
        "epsilon": normal.certificate.headline.epsilon,
        "delta": normal.certificate.headline.delta,
        "share_broken": SHARE,
        "samples_per_class": options.samples,
        "all_as_expected": all(case["as_expected"] for case in cases),
        "train_seconds": round(seconds + sum(case["train_seconds"] for case in cases), 1),
        "device": device_name(device),
        "command": command_line(leave_out=("--results", "--commit", "--runs")),
        "commit": options.commit or current_commit(),
    }
    make_folder(options.results, "results")
    stem = f"bugs-{options.method}-{options.dataset}-eps{options.epsilon:g}"
    write_text(options.results / f"{stem}.json", json.dumps(result, indent=1) + "\n")
    write_bytes(options.results / f"{stem}.png", picture)
    return 0 if result["all_as_expected"] else 1


def inspect_case(name: str, normal: us.Release, runs: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train on one version of the data and compare with the normal release and, beside that, look at it alone."""
    breaks, expected = BUGS[name]
    release, seconds = release_of(name, breaks, runs, options)
    suspect, usual = (
        draw_samples(each, options.samples, each_name) for each, each_name in ((release, name), (normal, "normal"))
    )
    started = time.perf_counter()
    compared, alone = inspect_samples(suspect, usual), inspect_samples(suspect)
    found = {finding.name for finding in compared.findings}
    case = {
        "bug": name,
        "epsilon": release.certificate.headline.epsilon,
        "found": [finding.as_dict() for finding in compared.findings],
        "found_without_reference": [finding.as_dict() for finding in alone.findings],
        "as_expected": bool(found & expected) if expected else not (compared.findings or alone.findings),
        "train_seconds": round(seconds, 1),
        "inspect_seconds": round(time.perf_counter() - started, 1),
    }
    print(f"{name}: {'as expected' if case['as_expected'] else 'NOT AS EXPECTED'}", flush=True)
    for sentence in compared.sentences():
        print(f"  {sentence}", flush=True)
    return case


def release_of(name: str, breaks: Break, runs: Path, options: argparse.Namespace) -> tuple[us.Release, float]:
    """The release of one version of the data, trained now or found in the folder of runs."""
    folder, started = runs / name, time.perf_counter()
    if (folder / "release").is_dir():
        return us.load_release(folder), seconds_on_record(folder)
    clean = us.load(options.dataset)
    assert clean.labels is not None, "these data sets are labelled"
    uniform = np.random.default_rng(options.seed).random(len(clean))
    images, labels = breaks(clean.images.copy(), clean.labels.copy(), uniform)
    data = us.ImageDataset(clean.name, clean.domain, np.ascontiguousarray(images), labels)
    config = apply_settings({"runtime": {"device": options.device}}, options.settings)
    release = us.train(
        options.method,
        data,
        us.Budget(options.epsilon, options.delta),
        folder,
        us.TrainOptions(config=config, preset=options.preset),
    )
    return release, time.perf_counter() - started


def side_by_side(runs: Path, names: list[str]) -> bytes:
    """The first five samples of every class: normal data in the left block, then each version of them."""
    blocks = [
        np.stack([images[:5] for _, images in class_rows(us.load_release(runs / name))])
        for name in ("normal", *(name for name in names if name != "clean"))
    ]
    gap = np.full((len(blocks[0]), 1, *blocks[0].shape[2:]), 255, dtype=np.uint8)
    parts = [part for block in blocks for part in (block, gap)][:-1]
    return png(tile(np.concatenate(parts, axis=1)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--method", default="dp-merf", choices=us.method_names())
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--bugs", default=",".join(BUGS), help=f"of {', '.join(BUGS)}")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="group.key=value")
    parser.add_argument("--preset", help="a named config of the method")
    parser.add_argument("--samples", type=int, default=1000, help="of each class")
    parser.add_argument("--seed", type=int, default=1, help="of which images are broken")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="keep the runs here and use those that are there already")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
