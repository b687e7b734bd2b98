"""Who should name samples: the generator, the teacher, or both? Accuracy of a CNN by what its images are called.

    python benchmarks/naming.py mnist --records 1000 --epsilon 3
    python benchmarks/naming.py cifar-10 --grey --records 5000 --epsilon 10
    python benchmarks/naming.py mnist --release runs/mnist10/release --samples 60000 --device cuda

Trains ``dp-merf`` with a teacher once on some records, or takes a release that has one; draws images for known classes,
and calls them in each of these ways, the same images every time: the class they were *drawn* for; what the *teacher*
calls them; what it calls them when its word is shifted until all classes come up equally often (*evened*); and *both*:
the evened word beside the class they were drawn for, as releases do (``models/annotator.py``). A CNN that learns from
them alone, on a processor in the fast mode, is scored on real test images. Writes
``benchmarks/results/naming-<dataset>.json``, with one entry for each method, number of records and epsilon; an entry
that is measured again replaces the older one.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import understudy as us
from record import command_line, current_commit, device_name, processor
from understudy.data.domain import source_options
from understudy.devices import choose_device
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.models.annotator import AnnotatedGenerator

_FIT = {"frequencies": 1000, "steps": 300, "batch": 150}
_KEY = ("method", "records", "asked")


def main() -> None:
    options = parse()
    suffix = "-grey" if options.grey else ""
    path = options.results / f"naming-{options.dataset}{suffix}.json"
    rows = json.loads(path.read_text())["namings"] if path.exists() else []
    row = measure(options)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [old for old in rows if key_of(old) != key_of(row)]
    rows = sorted([*kept, row], key=key_of)
    path.write_text(json.dumps({"dataset": options.dataset + suffix, "namings": rows}, indent=1) + "\n")
    print(row, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train or take what was trained, draw, name in every way, score."""
    device, shown = choose_device(options.device), source_options(channels=1) if options.grey else None
    whole, test = us.load(options.dataset, options=shown), us.load(options.dataset, split="test", options=shown)
    release = trained(whole, options) if options.release is None else us.load_release(options.release)
    generator, classes = release.generator, whole.domain.classes or 1
    if not isinstance(generator, AnnotatedGenerator):
        raise SystemExit(
            f"release: {options.release} has no teacher, so nobody else names its samples; pass one that has"
        )
    generator.to(device)
    drawn = torch.arange(options.samples, device=device) % classes
    base = generator.base if options.sample_steps is None else generator.base.with_steps(options.sample_steps)
    images = base.sample(drawn, torch.Generator(device).manual_seed(1))
    fast = device.type == "cpu"
    scoring = EvaluationConfig(device=options.device, real_data_private=False, fast=fast, reference=False)
    planes = images.cpu().numpy()
    pictures = planes[:, 0] if planes.shape[1] == 1 else planes.transpose(0, 2, 3, 1)

    def accuracy(names: torch.Tensor) -> float | None:
        missing = len(names.unique()) < classes
        return None if missing else evaluate(pictures, names.cpu().numpy(), whole, test, ["cnn"], scoring).value("cnn")

    found = names_of(generator, images, drawn)
    certificate = release.certificate
    return {
        "method": certificate.method,
        "samples": options.samples,
        "fast": fast,
        "records": next(int(fact.split(":")[1]) for fact in certificate.assumed_public if "nominal_records" in fact),
        "asked": math.ceil(certificate.headline.epsilon - 0.01),
        "epsilon": certificate.headline.epsilon,
        "cnn_accuracy": {way: accuracy(names) for way, names in found.items()},
        "as_drawn": {way: round(float((names == drawn).double().mean()), 4) for way, names in found.items()},
        "names": generator.naming,
        "teacher_accuracy": float((release.label(test.pictures) == test.labels).mean()),
        "device": processor() if fast else device_name(device),
        "command": command_line(leave_out=("--results", "--commit")),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
    }


def trained(whole: us.ImageDataset, options: argparse.Namespace) -> us.Release:
    """``dp-merf`` with a teacher, on some of the records."""
    kept = np.linspace(0, len(whole) - 1, options.records).astype(int)
    data = us.from_arrays(whole.images[kept], whole.labels[kept], records=options.records, classes=whole.domain.classes)
    settings = {"privacy": {"teacher_share": options.share}, "method": _FIT, "runtime": {"device": options.device}}
    with tempfile.TemporaryDirectory() as folder:
        budget, train_options = us.Budget(options.epsilon, 1e-5), us.TrainOptions(config=settings)
        return us.train("dp-merf", data, budget, Path(folder) / "run", train_options)


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What an entry is of."""
    return tuple({"method": "dp-merf", **row}[name] for name in _KEY)


def names_of(generator: AnnotatedGenerator, images: torch.Tensor, drawn: torch.Tensor) -> dict[str, torch.Tensor]:
    """What images are called, by who calls them; shifts and weight are those of a trial of its own."""
    scores, trial = generator.annotate(images), generator.trial(torch.Generator(drawn.device).manual_seed(0))
    evened = scores + scores.new_tensor(trial.shifts)
    own = torch.nn.functional.one_hot(drawn, scores.shape[1])
    ways = {"teacher": scores, "evened": evened, "both": evened + trial.drawn_weight * own}
    return {"drawn": drawn} | {way: values.argmax(dim=1) for way, values in ways.items()}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--grey", action="store_true", help="colour images in grey")
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--share", type=float, default=0.4, help="of the teacher")
    parser.add_argument("--release", type=Path, help="one with a teacher, instead of training")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--sample-steps", type=int, help="of a diffusion model, where not its own")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
