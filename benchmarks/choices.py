"""What ``auto`` knows: candidates measured on public data, and the table that the package carries.

    python benchmarks/choices.py --seconds 3600      measures on this processor, one run after the other, until then
    python benchmarks/choices.py --table             writes src/understudy/methods/choices.json from what was measured
    python benchmarks/choices.py --check             fails where that file is not what --table would write

A run trains a candidate on the first N images of a data set and scores a CNN, trained on generated images alone, by
real test images; it is made once, on one thread, and ``cpu_seconds`` is the time of that thread's work. Finished runs
are in ``results/choices-cpu.json`` and are not made again. What a graphics card does is taken from the rows of
``headline.py`` in ``results/``. Malaria cells and CIFAR-10 stay out: they test the choice.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import understudy as us
from record import current_commit, device_name
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.methods.base import configure
from understudy.methods.config import apply_settings
from understudy.methods.registry import get_method

_RESULTS = Path(__file__).parent / "results"
_CPU_ROWS = _RESULTS / "choices-cpu.json"
_TABLE = Path(__file__).parents[1] / "src/understudy/methods/choices.json"
_SAMPLES = 2000
_DELTA = 1e-5
_SIZES = {"digits": 1437, "mnist": 60_000, "fashion-mnist": 60_000}
_CHANCE = 0.1  # of ten classes, whichever data set
_ON_GPU = ("dp-diffusion", "dp-merf", "dp-merf-ae", "dpgan", "gs-wgan")  # whose rows of the results are taken over
_REAL_ROWS = {"mnist": "check-real-data-mnist.json", "fashion-mnist": "check-real-data-fashion_mnist.json"}


@dataclass(frozen=True)
class Candidate:
    """A method with a preset and settings."""

    name: str
    method: str
    preset: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As the table writes it."""
        return {"method": self.method, "preset": self.preset, "config": dict(self.config)}


_FIT = {"frequencies": 2000, "steps": 600, "batch": 200}
_QUICK_FIT = {"frequencies": 1000, "steps": 300, "batch": 150}
_SMALL_ENCODER = {"privacy": {"batch": 100, "steps": 200}, "method": {"embedding": {"steps": 600, "batch": 200}}}
_SMALL_DENOISER = {
    "privacy": {"batch": 64, "steps": 60},
    "method": {
        "draws": 2,
        "widths": [8, 16],
        "warm_up": {"images": 4000, "steps": 200, "batch": 64},
        "embedding": {"frequencies": 1000, "steps": 300, "batch": 200},
        "sampler": {"steps": 20},
    },
}
_FEW_CRITICS = {"privacy": {"subsets": 20, "queries": 1024}, "method": {"queries_per_step": 32}}


def _taught(share: float, fit: Mapping[str, Any]) -> dict[str, Any]:
    return {"privacy": {"teacher_share": share}, "method": fit}


_QUICK = (
    Candidate("dp-merf quick, teacher 0.4", "dp-merf", None, _taught(0.4, _QUICK_FIT)),
    Candidate("dp-merf quick", "dp-merf", None, {"method": _QUICK_FIT}),
    Candidate("dp-merf quick, teacher 0.7", "dp-merf", None, _taught(0.7, _QUICK_FIT)),
)
_USUAL = (
    Candidate("dp-merf, teacher 0.4", "dp-merf", None, _taught(0.4, _FIT)),
    Candidate("dp-merf", "dp-merf", None, {"method": _FIT}),
    Candidate("dp-merf, teacher 0.7", "dp-merf", None, _taught(0.7, _FIT)),
)
_OTHERS = (
    Candidate("dp-merf-ae", "dp-merf-ae", None, _SMALL_ENCODER),
    Candidate("dp-diffusion", "dp-diffusion", "cpu", _SMALL_DENOISER),
)
_CRITICS = (Candidate("gs-wgan", "gs-wgan", None, _FEW_CRITICS),)  # elsewhere than on tiny images they take hours
_ON_CPU = (*_QUICK, *_USUAL, *_OTHERS, *_CRITICS)


@dataclass(frozen=True)
class Cell:
    """What a candidate is tried on."""

    dataset: str
    records: int
    epsilon: float


_CELLS = (  # and who is tried there; cheap and telling ones first
    (Cell("digits", 1437, 3), (*_USUAL, *_OTHERS, *_CRITICS)),
    (Cell("digits", 1437, 10), _USUAL),
    (Cell("digits", 1437, 1), _USUAL),
    *((Cell(name, 5000, 3), _QUICK) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 5000, 10), _QUICK) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 1000, 3), _QUICK) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 5000, 3), _OTHERS) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 20_000, 10), _QUICK) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 1000, 1), _QUICK) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 5000, 3), _USUAL) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 20_000, 1), _QUICK) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 1000, 10), _QUICK) for name in ("mnist", "fashion-mnist")),
    *((Cell(name, 5000, 1), _QUICK) for name in ("mnist", "fashion-mnist")),
)


# Measuring on a processor


def measure_all(end: float, datasets: Sequence[str], commit: str | None) -> None:
    """Every candidate on every cell of these data sets, in this order, until the time is over."""
    kept = _read(_CPU_ROWS) if _CPU_ROWS.exists() else {"rows": []}
    rows, real = kept["rows"], kept.get("real") or {"digits": real_accuracy("digits")}
    done = {(row["candidate"], row["dataset"], row["records"], row["epsilon"]) for row in rows}
    for cell, candidates in ((cell, tried) for cell, tried in _CELLS if cell.dataset in datasets):
        for candidate in candidates:
            if (candidate.name, cell.dataset, cell.records, cell.epsilon) in done:
                continue
            if time.time() > end:
                return
            rows.append({**measure(candidate, cell), "commit": commit})
            device = device_name(torch.device("cpu"))
            about = {"device": device, "command": "python benchmarks/choices.py", "commit": commit, "real": real}
            _CPU_ROWS.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
            print(rows[-1], flush=True)


def real_accuracy(dataset: str) -> float:
    """Of the same CNN, trained on all real images."""
    train, test = us.load(dataset), us.load(dataset, split="test")
    scoring = EvaluationConfig(device="cpu", real_data_private=False, reference=False)
    accuracy = evaluate(train.pictures, train.labels, train, test, ["cnn"], scoring).value("cnn")
    assert accuracy is not None
    return accuracy


def measure(candidate: Candidate, cell: Cell) -> dict[str, Any]:
    """One run: train, draw, and score by a CNN on real test images."""
    whole, test = us.load(cell.dataset), us.load(cell.dataset, split="test")
    data = us.from_arrays(whole.images[: cell.records], whole.labels[: cell.records], records=cell.records, classes=10)
    config = {**candidate.config, "runtime": {"device": "cpu"}}
    method, budget = get_method(candidate.method), us.Budget(cell.epsilon, _DELTA)
    planned = method.plan(configure(method, config, candidate.preset), data.domain, budget)
    with tempfile.TemporaryDirectory() as folder:
        started, worked = time.perf_counter(), time.process_time()
        options = us.TrainOptions(config=config, preset=candidate.preset)
        release = us.train(candidate.method, data, budget, Path(folder) / "run", options)
        seconds, work = time.perf_counter() - started, time.process_time() - worked
        images, labels = release.sample(_SAMPLES)
        scoring = EvaluationConfig(device="cpu", real_data_private=False, fast=True, reference=False)
        accuracy = evaluate(images, labels, whole, test, ["cnn"], scoring).value("cnn")
        own = float((release.label(test.pictures) == test.labels).mean()) if release.has_classifier else None
    return {
        "candidate": candidate.name,
        **candidate.as_dict(),
        "dataset": cell.dataset,
        "records": cell.records,
        "classes": 10,
        "shape": list(data.domain.shape),
        "epsilon": cell.epsilon,
        "delta": _DELTA,
        "cnn_accuracy": accuracy,
        "classifier_accuracy": own,
        "train_seconds": round(seconds, 1),
        "cpu_seconds": round(work, 1),
        "planned_seconds": round(planned.seconds, 1),
        "threads": torch.get_num_threads(),
        "samples": _SAMPLES,
        "certified_epsilon": release.certificate.headline.epsilon,
    }


# The table of the package


def table() -> dict[str, Any]:
    """Candidates by name, and every run that was measured, on whatever device."""
    measured = _read(_CPU_ROWS)
    real = {"digits": measured["real"]["digits"]}
    real |= {dataset: float(_read(_RESULTS / name)["cnn_accuracy"]) for dataset, name in _REAL_ROWS.items()}
    candidates = {candidate.name: candidate for candidate in _ON_CPU}
    runs = [_run(row, measured["device"], real) for row in measured["rows"]]
    for path in sorted(_RESULTS.glob("*-eps*.json")):
        row = _read(path)
        if row.get("method") in _ON_GPU and row.get("dataset") in real and _usual(row):
            candidate = _of_command(row, candidates)
            candidates[candidate.name] = candidate
            records, epsilon = _SIZES[row["dataset"]], float(_said(row, "--epsilon")[0])
            facts = {"candidate": candidate.name, "records": records, "classes": 10, "shape": [1, 28, 28]}
            runs.append(_run(row | facts | {"epsilon": epsilon}, row["device"], real))
    named = {run["candidate"] for run in runs}
    kept = {name: candidates[name].as_dict() for name in sorted(named)}
    return {"candidates": kept, "runs": sorted(runs, key=lambda run: [str(value) for value in run.values()])}


def _run(row: Mapping[str, Any], device: str, real: Mapping[str, float]) -> dict[str, Any]:
    return {
        "candidate": row["candidate"],
        "dataset": row["dataset"],
        "device": device,
        "records": row["records"],
        "classes": row["classes"],
        "pixels": math.prod(row["shape"]),
        "epsilon": row["epsilon"],
        "accuracy": round(row["cnn_accuracy"], 4),
        "chance": _CHANCE,
        "real": round(real[row["dataset"]], 4),
        "seconds": row.get("cpu_seconds", row["train_seconds"]),
    }


def _usual(row: Mapping[str, Any]) -> bool:
    """Whether a row is of the table of results, not of a trial; every trial with a teacher counts."""
    if "headline.py" not in row["command"] or not _said(row, "--epsilon"):
        return False
    return not _said(row, "--variant") or "teacher_share" in row["command"]


def _said(row: Mapping[str, Any], option: str) -> list[str]:
    words = shlex.split(row["command"])
    return [after for word, after in pairwise(words) if word == option]


def _of_command(row: Mapping[str, Any], known: Mapping[str, Candidate]) -> Candidate:
    """The candidate that a row of the results was measured with: one of those that are known, or a new one."""
    preset, config = next(iter(_said(row, "--preset")), None), apply_settings({}, _said(row, "--set"))
    config.pop("runtime", None)  # precision; it changes no result that one could see
    share = config.get("privacy", {}).get("teacher_share")
    words = " ".join([row["method"], *([preset] if preset else [])]) + (f", teacher {share:g}" if share else "")
    name, number = words if preset else f"{words}, long", 1
    while name in known and (known[name].preset, known[name].config) != (preset, config):
        number += 1
        name = f"{words}, long {number}"
    return Candidate(name, row["method"], preset, config)


def write_table(check: bool) -> None:
    """Write the table, or compare it with the one that is there."""
    text = json.dumps(table(), indent=1) + "\n"
    if check and _TABLE.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{_TABLE} is not what was measured; run `python benchmarks/choices.py --table`")
    _TABLE.write_text(text, encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no run after so many")
    parser.add_argument("--datasets", nargs="+", default=list(_SIZES), choices=list(_SIZES))
    parser.add_argument("--table", action="store_true", help="write the table of the package")
    parser.add_argument("--check", action="store_true", help="fail where the table of the package is not up to date")
    parser.add_argument("--commit", help="recorded in the rows; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    torch.set_num_threads(1)
    if options.table or options.check:
        write_table(options.check)
    else:
        measure_all(time.time() + options.seconds, options.datasets, options.commit or current_commit())
