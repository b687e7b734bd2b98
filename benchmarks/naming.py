"""Who should name samples: the generator, the teacher, or both? Accuracy of a CNN by what its images are called.

    python benchmarks/naming.py mnist --records 1000 --epsilon 3
    python benchmarks/naming.py cifar-10 --grey --records 5000 --epsilon 10

Trains ``dp-merf`` with a teacher once on some records, draws images for known classes, and calls them in each of these
ways, the same images every time: the class they were *drawn* for; what the *teacher* calls them; what it calls them
when its word is shifted until all classes come up equally often (*evened*); and *both*: the evened word beside the
class they were drawn for, as releases do (``models/annotator.py``). A CNN that learns from them alone, in the fast mode
on a processor, is scored on real test images. Writes ``benchmarks/results/naming-<dataset>.json``, with one entry for
each number of records and epsilon; an entry that is measured again replaces the older one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import understudy as us
from choices import processor
from record import command_line, current_commit
from understudy.data.domain import source_options
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.models.annotator import AnnotatedGenerator

_FIT = {"frequencies": 1000, "steps": 300, "batch": 150}
_SAMPLES = 2000


def main() -> None:
    options = parse()
    suffix = "-grey" if options.grey else ""
    path = options.results / f"naming-{options.dataset}{suffix}.json"
    rows = json.loads(path.read_text())["namings"] if path.exists() else []
    row = measure(options)
    kept = [old for old in rows if (old["records"], old["asked"]) != (row["records"], row["asked"])]
    rows = sorted([*kept, row], key=lambda each: (each["records"], each["asked"]))
    path.write_text(json.dumps({"dataset": options.dataset + suffix, "namings": rows}, indent=1) + "\n")
    print(row, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train, draw, name in every way, score."""
    shown = source_options(channels=1) if options.grey else None
    whole, test = us.load(options.dataset, options=shown), us.load(options.dataset, split="test", options=shown)
    kept, classes = np.linspace(0, len(whole) - 1, options.records).astype(int), whole.domain.classes
    data = us.from_arrays(whole.images[kept], whole.labels[kept], records=options.records, classes=classes)
    settings = {"privacy": {"teacher_share": options.share}, "method": _FIT, "runtime": {"device": "cpu"}}
    with tempfile.TemporaryDirectory() as folder:
        budget, train_options = us.Budget(options.epsilon, 1e-5), us.TrainOptions(config=settings)
        release = us.train("dp-merf", data, budget, Path(folder) / "run", train_options)
    generator = release.generator
    assert isinstance(generator, AnnotatedGenerator)
    drawn = torch.arange(_SAMPLES) % (classes or 1)
    images = generator.base.sample(drawn, torch.Generator().manual_seed(1))
    scoring = EvaluationConfig(device="cpu", real_data_private=False, fast=True, reference=False)
    pictures = images.numpy()[:, 0] if images.shape[1] == 1 else images.numpy().transpose(0, 2, 3, 1)

    def accuracy(names: torch.Tensor) -> float | None:
        missing = len(names.unique()) < (classes or 1)
        return None if missing else evaluate(pictures, names.numpy(), whole, test, ["cnn"], scoring).value("cnn")

    found = names_of(generator, images, drawn)
    return {
        "records": options.records,
        "asked": options.epsilon,
        "share": options.share,
        "epsilon": release.certificate.headline.epsilon,
        "cnn_accuracy": {way: accuracy(names) for way, names in found.items()},
        "as_drawn": {way: round(float((names == drawn).double().mean()), 4) for way, names in found.items()},
        "names": generator.naming,
        "teacher_accuracy": float((release.label(test.pictures) == test.labels).mean()),
        "device": processor(),
        "command": command_line(leave_out=("--results", "--commit")),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
    }


def names_of(generator: AnnotatedGenerator, images: torch.Tensor, drawn: torch.Tensor) -> dict[str, torch.Tensor]:
    """What images are called, by who calls them; shifts and weight are those of a trial of its own."""
    scores, trial = generator.annotate(images), generator.trial(torch.Generator().manual_seed(0))
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
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
