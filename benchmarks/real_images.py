"""What real images score in the place of generated ones: all training images of a data set against its test images.

    python benchmarks/real_images.py malaria-cells
    python benchmarks/real_images.py cifar-10 --metrics cnn

By the same networks as rows of ``headline.py``. Writes ``benchmarks/results/real-images-<dataset>.json`` after each
figure; one that is measured again replaces the older one. MNIST and Fashion-MNIST, of which others published these
figures, are checked by ``fid_check.py``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import understudy as us
from record import command_line, current_commit, device_name, write_json
from understudy.devices import choose_device
from understudy.evaluate.evaluation import EvaluationConfig, evaluate, with_colour

TOLD = ("name", "value", "parameters", "settings", "seconds")


def main() -> None:
    options = parse()
    train, test = us.load(options.dataset), us.load(options.dataset, split="test")
    path = options.results / f"real-images-{options.dataset}.json"
    config = EvaluationConfig(device=options.device, weights=options.weights, real_data_private=False, reference=False)
    origin = {
        "device": device_name(choose_device(options.device)),
        "command": command_line(("--results", "--commit", "--weights")),
        "commit": options.commit or current_commit(),
    }
    usual = with_colour(("cnn", "fid"), train.domain.shape[0])
    for metric in usual if options.metrics is None else options.metrics.split(","):
        (found,) = evaluate(train.pictures, train.labels, train, test, [metric], config).figures
        add(path, options.dataset, {name: found[name] for name in TOLD if name in found} | origin)


def add(path: Path, dataset: str, figure: dict[str, Any]) -> None:
    """One figure into the file of this data set."""
    kept = json.loads(path.read_text())["figures"] if path.exists() else []
    others = [old for old in kept if old["name"] != figure["name"]]
    write_json(path, {"real_images": dataset, "figures": sorted([*others, figure], key=lambda each: each["name"])})
    print(json.dumps(figure), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--metrics", help="of fid, cnn, resnet; fid,cnn unless given, in colour resnet too")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="Inception weights; searched for where not given")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
