"""What ``auto`` knows: candidates measured on public data, and the table that the package carries.

    python benchmarks/choices.py --seconds 3600      measures on this processor, one run after the other, until then
    python benchmarks/choices.py --at-once 12        the same, twelve runs at once, each a process of one thread
    python benchmarks/choices.py --device cuda       measures what a graphics card has time for, on few records
    python benchmarks/choices.py --again teacher     makes the runs of candidates with this in their name again
    python benchmarks/choices.py --table             writes src/understudy/methods/choices.json from what was measured
    python benchmarks/choices.py --check             fails where that file is not what --table would write

A run trains a candidate on N images of a data set (the first; of FEMNIST, which goes by writer, evenly spaced ones) and
scores a CNN, trained on generated images alone, by real test images; classes that are never drawn count as missed. It
is made once; on a processor on one thread, and ``cpu_seconds`` is the time of that thread's work. Finished runs are in
``results/choices-cpu.json`` and ``results/choices-cuda.json``, each with the machine that it was made on, and are not
made again. What a graphics card does with all records is taken from the rows of ``headline.py`` in ``results/``.
Malaria cells and CIFAR-10 stay out: they test the choice.
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

import numpy as np
import torch

import understudy as us
from record import at_once, command_line, current_commit, device_name, processor, write_json
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.methods.base import configure
from understudy.methods.config import apply_settings, overlay
from understudy.methods.registry import get_method

_RESULTS = Path(__file__).parent / "results"
_ROWS = {"cpu": "choices-cpu.json", "cuda": "choices-cuda.json"}
_TABLE = Path(__file__).parents[1] / "src/understudy/methods/choices.json"
_DELTA = 1e-5
_SIZES = {"digits": 1437, "mnist": 60_000, "fashion-mnist": 60_000, "femnist": 66_128}
_CLASSES = {"digits": 10, "mnist": 10, "fashion-mnist": 10, "femnist": 62}
_CHANCE = {"digits": 0.1333, "mnist": 0.1135, "fashion-mnist": 0.1, "femnist": 0.0727}  # of always the commonest class
_SAMPLES = {"cpu": 200, "cuda": 2000}  # of each class; of FEMNIST half as many
_ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # one thread, no graphics card
_ON_GPU = ("dp-diffusion", "dp-merf", "dp-merf-ae", "dpgan", "gs-wgan")  # whose rows of the results are taken over
_PRESETS_THEN = {  # by row of the results: what its preset said when it was measured, where it says something else now
    "dp-diffusion-mnist-eps10-teacher": {
        "privacy": {"batch": 6144, "steps": 660, "embedding_share": 0.25},
        "method": {
            "widths": [32, 64, 64],
            "label_dropout": 0.1,
            "learning_rate": 1.5e-3,
            "rising_steps": 20,
            "average_decay": 0.99,
        },
    },
    "dp-diffusion-mnist-eps1-teacher": {
        "privacy": {"batch": 2048, "steps": 300},
        "method": {"widths": [16, 32, 32], "rising_steps": 20, "average_decay": 0.98},
    },
}
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
_PATIENT_FIT = {"frequencies": 3000, "steps": 1500, "batch": 250}
_QUICK_FIT = {"frequencies": 1000, "steps": 300, "batch": 150}
_SMALL_ENCODER = {"privacy": {"batch": 100, "steps": 200}, "method": {"embedding": {"steps": 600, "batch": 200}}}
_LONGER_ENCODER = {"privacy": {"batch": 200, "steps": 600}, "method": {"embedding": {"steps": 2000, "batch": 300}}}
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
_TAUGHT_DENOISER = {**_SMALL_DENOISER, "privacy": {"batch": 64, "steps": 60, "teacher_share": 0.4}}
_FEW_CRITICS = {"privacy": {"subsets": 20, "queries": 1024}, "method": {"queries_per_step": 32}}
_SMALL_DISCRIMINATOR = {
    "privacy": {"batch": 64, "steps": 300, "embedding_share": 0.8},
    "method": {"width": 16, "latent": 16, "discriminator_steps": 5, "embedding": _QUICK_FIT},
}


def _taught(share: float, fit: Mapping[str, Any]) -> dict[str, Any]:
    return {"privacy": {"teacher_share": share}, **({"method": fit} if fit else {})}


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
_PATIENT = (Candidate("dp-merf, patient", "dp-merf", None, {"method": _PATIENT_FIT}),)
_OTHERS = (
    Candidate("dp-merf-ae", "dp-merf-ae", None, _SMALL_ENCODER),
    Candidate("dpgan", "dpgan", None, _SMALL_DISCRIMINATOR),
)
_LONGER = (Candidate("dp-merf-ae, longer", "dp-merf-ae", None, _LONGER_ENCODER),)
_TAUGHT_ENCODER = {**_LONGER_ENCODER, "privacy": {"batch": 200, "steps": 600, "teacher_share": 0.4}}
_TAUGHT = (Candidate("dp-merf-ae, longer, teacher 0.4", "dp-merf-ae", None, _TAUGHT_ENCODER),)
_DENOISERS = (  # of which a processor has time for small ones alone
    Candidate("dp-diffusion", "dp-diffusion", "cpu", _SMALL_DENOISER),
    Candidate("dp-diffusion, teacher 0.4", "dp-diffusion", "cpu", _TAUGHT_DENOISER),
)
_CRITICS = (Candidate("gs-wgan", "gs-wgan", None, _FEW_CRITICS),)  # elsewhere than on tiny images they take hours
_ON_CPU = (*_QUICK, *_USUAL, *_PATIENT, *_OTHERS, *_LONGER, *_TAUGHT, *_DENOISERS, *_CRITICS)
_LONG_FIT = {"batch": 1000, "steps": 4000}
_ON_CARD = (
    Candidate("dp-merf, long", "dp-merf", None, {"method": _LONG_FIT}),
    Candidate("dp-merf, long, teacher 0.4", "dp-merf", None, _taught(0.4, _LONG_FIT)),
    Candidate("dp-diffusion gpu-eps1, teacher 0.4", "dp-diffusion", "gpu-eps1", _taught(0.4, {})),
    Candidate("dp-merf-ae gpu", "dp-merf-ae", "gpu"),
    Candidate("gs-wgan gpu", "gs-wgan", "gpu"),
)
_LONGEST = (Candidate("dp-diffusion gpu, teacher 0.35", "dp-diffusion", "gpu", _taught(0.35, {})),)
_CANDIDATES = {each.name: each for each in (*_ON_CPU, *_ON_CARD, *_LONGEST)}


@dataclass(frozen=True)
class Cell:
    """What a candidate is tried on."""

    dataset: str
    records: int
    epsilon: float


def _both(records: int, epsilon: float, candidates: Sequence[Candidate]) -> list[tuple[Cell, Sequence[Candidate]]]:
    return [(Cell(name, records, epsilon), candidates) for name in ("mnist", "fashion-mnist")]


_CELLS = {  # and who is tried there; cheap and telling ones first, so that a cut costs the least
    "cpu": (
        *_both(5000, 3, _TAUGHT),
        *_both(5000, 10, (*_TAUGHT, *_LONGER)),
        (Cell("digits", 1437, 3), _TAUGHT),
        *_both(20_000, 10, _TAUGHT),
        (Cell("digits", 1437, 3), (*_USUAL, *_OTHERS, _DENOISERS[0], *_CRITICS)),
        (Cell("digits", 1437, 10), _USUAL),
        (Cell("digits", 1437, 1), _USUAL),
        (Cell("mnist", 60_000, 10), _QUICK[:1]),  # the longest of all: a linear teacher sees every record in each step
        *_both(5000, 3, _PATIENT),
        *_both(60_000, 10, (_QUICK[1], *_OTHERS, _USUAL[1])),
        *_both(5000, 3, (*_QUICK, *_OTHERS, *_LONGER, *_DENOISERS[:1], *_USUAL[:2])),
        *_both(20_000, 10, (*_QUICK[:2], *_OTHERS)),
        *_both(1000, 3, (*_QUICK, *_OTHERS)),
        *_both(60_000, 10, (*_LONGER, *_DENOISERS[:1], *_PATIENT)),
        *((Cell("digits", 1437, epsilon), (*_OTHERS, *_DENOISERS)) for epsilon in (10, 1)),
        (Cell("femnist", 5000, 10), (*_QUICK[:2], *_OTHERS)),
        (Cell("femnist", 60_000, 10), (_QUICK[1], *_OTHERS)),
        *_both(60_000, 1, (*_QUICK[:2], *_OTHERS)),
        *_both(5000, 10, (*_QUICK, *_OTHERS)),
        *_both(1000, 10, (*_QUICK[:2], *_OTHERS)),
        (Cell("femnist", 20_000, 3), (*_QUICK[:2], *_OTHERS)),
        *_both(1000, 1, (*_QUICK[:2], *_OTHERS)),
        *_both(20_000, 10, (*_LONGER, *_USUAL[:2])),
        *_both(20_000, 1, _QUICK[:2]),
        *_both(2000, 3, (*_QUICK[:2], *_OTHERS)),
        *_both(5000, 1, (*_QUICK[:2], *_OTHERS)),
        *_both(20_000, 3, (*_QUICK[:2], *_OTHERS)),
        *_both(1000, 10, (*_LONGER, *_USUAL[:2])),
    ),
    "cuda": (
        *_both(5000, 3, _ON_CARD),
        (Cell("fashion-mnist", 60_000, 10), _ON_CARD[1:3]),
        *_both(20_000, 10, _ON_CARD[:3]),
        (Cell("fashion-mnist", 60_000, 1), _ON_CARD[1:3]),
        *_both(5000, 10, _ON_CARD[:3]),
        *_both(1000, 3, (*_ON_CARD[:2], *_ON_CARD[4:])),
        (Cell("mnist", 60_000, 10), _ON_CARD[1:3]),
        (Cell("mnist", 60_000, 1), _ON_CARD[1:2]),
        (Cell("fashion-mnist", 60_000, 10), _LONGEST),
        *_both(1000, 10, (*_ON_CARD[:2], *_ON_CARD[4:])),
        *_both(20_000, 1, _ON_CARD),
    ),
}


# Measuring


def measure_all(options: argparse.Namespace, commit: str | None) -> None:
    """Every candidate on every cell of these data sets, in this order, until the time is over.

    Each finished run is written at once, so that whatever ends this costs the runs under way alone.
    """
    end, name = time.time() + options.seconds, _ROWS[options.device]
    path, kept = options.results / name, _kept(options.results, name)
    rows = {_key(row): {"device": kept["device"], **row} for row in kept["rows"]}
    wanted = [
        (each.name, cell) for cell, tried in _CELLS[options.device] for each in tried if (each.name, cell) not in rows
    ]
    if options.again:
        older = {key: row for key, row in rows.items() if options.again in key[0] and row["commit"] != commit}
        wanted = sorted(older, key=lambda key: older[key].get("cpu_seconds", older[key]["train_seconds"]))
    tasks = {key: _words(*key) for key in wanted if key[1].dataset in options.datasets}
    left = [[__file__, "--device", options.device, "--only", *words] for words in tasks.values()]
    told = {"command": command_line(leave_out=("--commit", "--results")), "commit": commit}
    unknown = {cell.dataset for _, cell in tasks} - set(_REAL_ROWS) - set(kept["real"])
    real = {dataset: real_accuracy(dataset) for dataset in sorted(unknown)}
    options.results.mkdir(parents=True, exist_ok=True)
    for row in at_once(left, options.at_once, end, _ALONE if options.device == "cpu" else {}):
        rows[_key(row)] = {**row, **told}
        machines = "; ".join(sorted({each["device"] for each in rows.values()}))
        write_json(path, {"device": machines, **told, "real": kept["real"] | real, "rows": list(rows.values())})
        shown = ("candidate", "dataset", "records", "epsilon", "cnn_accuracy", "train_seconds", "planned_seconds")
        print(len(rows), *(f"{name} {row[name]}" for name in shown), flush=True)


def _key(row: Mapping[str, Any]) -> tuple[str, Cell]:
    return row["candidate"], Cell(row["dataset"], row["records"], row["epsilon"])


def _words(candidate: str, cell: Cell) -> list[str]:
    return [candidate, cell.dataset, str(cell.records), f"{cell.epsilon:g}"]


def _kept(results: Path, name: str) -> dict[str, Any]:
    """What was measured so far: as it is in this folder, or where there is nothing yet as it is committed."""
    there = [path for path in (results / name, _RESULTS / name) if path.exists()]
    return _read(there[0]) if there else {"device": None, "rows": [], "real": {}}


def real_accuracy(dataset: str) -> float:
    """Of the same CNN, trained on all real images: of FEMNIST seconds on a graphics card, half an hour elsewhere."""
    train, test = us.load(dataset), us.load(dataset, split="test")
    scoring = EvaluationConfig(real_data_private=False, reference=False)
    accuracy = evaluate(train.pictures, train.labels, train, test, ["cnn"], scoring).value("cnn")
    assert accuracy is not None
    return accuracy


def measure(candidate: Candidate, cell: Cell, device: str) -> dict[str, Any]:
    """One run: train, draw, and score by a CNN on real test images."""
    whole, test = us.load(cell.dataset), us.load(cell.dataset, split="test")
    data, on_cpu = _first(whole, cell), device == "cpu"
    samples = _SAMPLES[device] * _CLASSES[cell.dataset] // (2 if cell.dataset == "femnist" else 1)
    config = overlay(candidate.config, {"runtime": {"device": device}})
    method, budget = get_method(candidate.method), us.Budget(cell.epsilon, _DELTA)
    planned = method.plan(configure(method, config, candidate.preset), data.domain, budget)
    with tempfile.TemporaryDirectory() as folder:
        started, worked = time.perf_counter(), time.process_time()
        options = us.TrainOptions(config=config, preset=candidate.preset)
        release = us.train(candidate.method, data, budget, Path(folder) / "run", options)
        seconds, work = time.perf_counter() - started, time.process_time() - worked
        images, labels = release.sample(samples)
        own = float((release.label(test.pictures) == test.labels).mean()) if release.has_classifier else None
    return {
        "candidate": candidate.name,
        **candidate.as_dict(),
        "dataset": cell.dataset,
        "records": cell.records,
        "classes": data.domain.classes,
        "shape": list(data.domain.shape),
        "epsilon": cell.epsilon,
        "delta": _DELTA,
        "cnn_accuracy": cnn_accuracy((images, labels), whole, test, device),
        "classes_drawn": len(np.unique(labels)),
        "classifier_accuracy": own,
        "train_seconds": round(seconds, 1),
        **({"cpu_seconds": round(work, 1), "threads": torch.get_num_threads()} if on_cpu else {}),
        "planned_seconds": round(planned.seconds if on_cpu else planned.seconds_on_gpu, 1),
        "samples": samples,
        "certified_epsilon": release.certificate.headline.epsilon,
        "device": processor() if on_cpu else device_name(torch.device(device)),
    }


def _first(whole: us.ImageDataset, cell: Cell) -> us.ImageDataset:
    """As many records as the cell has, of the unit record."""
    spaced = np.linspace(0, len(whole.labels) - 1, cell.records).astype(int)  # every writer has some
    kept = spaced if cell.dataset == "femnist" else slice(cell.records)
    classes = _CLASSES[cell.dataset]
    return us.from_arrays(whole.images[kept], whole.labels[kept], records=cell.records, classes=classes)


def cnn_accuracy(generated: tuple[Any, Any], train: us.ImageDataset, test: us.ImageDataset, device: str) -> float:
    """Of the CNN, trained on generated images alone, on real test images; a class that is never drawn is missed."""
    images, labels = generated
    drawn = np.unique(labels)

    def of_drawn(data: us.ImageDataset) -> tuple[Any, Any]:
        kept = np.isin(data.labels, drawn)
        return data.pictures[kept], np.searchsorted(drawn, data.labels[kept])

    scoring = EvaluationConfig(device=device, real_data_private=False, fast=device == "cpu", reference=False)
    tested = of_drawn(test)
    score = evaluate(images, np.searchsorted(drawn, labels), of_drawn(train), tested, ["cnn"], scoring).value("cnn")
    assert score is not None
    return score * len(tested[1]) / len(test.labels)


# The table of the package


def table(results: Path) -> dict[str, Any]:
    """Candidates by name, and every run that was measured, on whatever device."""
    measured = [_kept(results, name) for name in _ROWS.values()]
    real = {dataset: accuracy for each in measured for dataset, accuracy in each["real"].items()}
    real |= {dataset: float(_read(_RESULTS / name)["cnn_accuracy"]) for dataset, name in _REAL_ROWS.items()}
    candidates = dict(_CANDIDATES)
    runs = [_run({"device": each["device"], **row}, real) for each in measured for row in each["rows"]]
    for path in sorted(_RESULTS.glob("*-eps*.json")):
        row = _read(path)
        if row.get("method") in _ON_GPU and row.get("dataset") in _REAL_ROWS and _usual(row):
            candidate = _of_command(row, candidates, _PRESETS_THEN.get(path.stem, {}))
            candidates[candidate.name] = candidate
            records, epsilon = _SIZES[row["dataset"]], float(_said(row, "--epsilon")[0])
            facts = {"candidate": candidate.name, "records": records, "classes": 10, "shape": [1, 28, 28]}
            runs.append(_run(row | facts | {"epsilon": epsilon}, real))
    named = {run["candidate"] for run in runs}
    kept = {name: candidates[name].as_dict() for name in sorted(named)}
    return {"candidates": kept, "runs": sorted(runs, key=lambda run: [str(value) for value in run.values()])}


def _run(row: Mapping[str, Any], real: Mapping[str, float]) -> dict[str, Any]:
    return {
        "candidate": row["candidate"],
        "dataset": row["dataset"],
        "device": row["device"],
        "records": row["records"],
        "classes": row["classes"],
        "pixels": math.prod(row["shape"]),
        "epsilon": row["epsilon"],
        "accuracy": round(row["cnn_accuracy"], 4),
        "chance": _CHANCE[row["dataset"]],
        "real": round(real[row["dataset"]], 4),
        "seconds": row.get("cpu_seconds", row["train_seconds"]),
        "channels": row["shape"][0],
    }


def _usual(row: Mapping[str, Any]) -> bool:
    """Whether a row is of the table of results, not of a trial; every trial with a teacher counts."""
    if "headline.py" not in row["command"] or not _said(row, "--epsilon"):
        return False
    return not _said(row, "--variant") or "teacher_share" in row["command"]


def _said(row: Mapping[str, Any], option: str) -> list[str]:
    words = shlex.split(row["command"])
    return [after for word, after in pairwise(words) if word == option]


def _of_command(row: Mapping[str, Any], known: Mapping[str, Candidate], then: Mapping[str, Any]) -> Candidate:
    """The candidate that a row of the results was measured with: one of those that are known, or a new one."""
    preset, config = next(iter(_said(row, "--preset")), None), overlay(then, apply_settings({}, _said(row, "--set")))
    config.pop("runtime", None)  # precision; it changes no result that one could see
    share = config.get("privacy", {}).get("teacher_share")
    words = " ".join([row["method"], *([preset] if preset else []), *(["as it was"] if then else [])])
    words += f", teacher {share:g}" if share else ""
    name, number = words if preset else f"{words}, long", 1
    while name in known and (known[name].preset, known[name].config) != (preset, config):
        number += 1
        name = f"{words}, long {number}"
    return Candidate(name, row["method"], preset, config)


def write_table(results: Path, check: bool) -> None:
    """Write the table, or compare it with the one that is there."""
    text = json.dumps(table(results), indent=1) + "\n"
    if check and _TABLE.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{_TABLE} is not what was measured; run `python benchmarks/choices.py --table`")
    _TABLE.write_text(text, encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no run after so many")
    parser.add_argument("--device", default="cpu", choices=list(_ROWS))
    parser.add_argument("--at-once", type=int, default=1, help="runs at a time, each a process of its own")
    parser.add_argument("--datasets", nargs="+", default=list(_SIZES), choices=list(_SIZES))
    parser.add_argument(
        "--again", help="candidates with this in their name, whose runs of other commits are made again"
    )
    parser.add_argument("--results", type=Path, default=_RESULTS, help="the folder of what is measured")
    parser.add_argument("--only", nargs=4, metavar=("CANDIDATE", "DATASET", "RECORDS", "EPSILON"), help="print one run")
    parser.add_argument("--table", action="store_true", help="write the table of the package")
    parser.add_argument("--check", action="store_true", help="fail where the table of the package is not up to date")
    parser.add_argument("--commit", help="recorded in the rows; asked of git where not given")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.table or options.check:
        write_table(options.results, options.check)
    elif options.only:
        torch.set_num_threads(1 if options.device == "cpu" else 4)
        name, dataset, records, epsilon = options.only
        print(json.dumps(measure(_CANDIDATES[name], Cell(dataset, int(records), float(epsilon)), options.device)))
    else:
        measure_all(options, options.commit or current_commit())


if __name__ == "__main__":
    main()
