"""FID and accuracy against the number of discriminator steps for each generator step (Figs. 1, 2 and 4 of the paper).

    python benchmarks/discriminator_steps_sweep.py --steps 20000
    python benchmarks/discriminator_steps_sweep.py --steps 20000 --only 50 --runs sweep-runs
    python benchmarks/discriminator_steps_sweep.py --steps 100000 --noise-multiplier 1

Trains ``dpgan`` on MNIST at one epsilon with n_D = 1, 10, 50 and 100, the networks and batch of the paper and the noise
that the budget allows for so many steps, or the noise of the paper, of which fewer steps than its 450,000 are a part at
a smaller epsilon. Writes ``benchmarks/results/dpgan-discriminator-steps-<dataset>-eps<E>.json``
after every point: figures, the discriminator's accuracy on fakes over time, and the certificate. Points that are in the
file already are skipped, and a run that was cut off continues if ``--runs`` names the same folder again; so the sweep
may be cut into commands of any length.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import understudy as us
from record import command_line, current_commit, device_name
from understudy.devices import choose_device
from understudy.evaluate.evaluation import EvaluationConfig, evaluate

CURVE = 100  # points of the accuracy over time


def main() -> None:
    options = parse()
    path = options.results / f"dpgan-discriminator-steps-{options.dataset}-eps{options.epsilon:g}.json"
    known = json.loads(path.read_text())["points"] if path.exists() else []
    points = {point["values"]["discriminator_steps"]: point for point in known if point["steps"] == options.steps}
    with tempfile.TemporaryDirectory() as folder:
        for number in options.only or options.over:
            if number not in points:
                points[number] = measure_point(number, options, (options.runs or Path(folder)) / f"n{number}")
                write(path, [points[each] for each in sorted(points)], options)
                print({key: points[number][key] for key in ("values", "epsilon", "figures", "seconds")}, flush=True)


def measure_point(number: int, options: argparse.Namespace, run: Path) -> dict[str, Any]:
    """Train with one n_D (or go on where the run stands), then score the generator."""
    started = time.perf_counter()
    data = us.load(options.dataset)
    release = us.resume(data, run) if (run / "run.json").exists() else start(number, options, data, run)
    return {
        "method": "dpgan",
        "values": {"discriminator_steps": number},
        "steps": options.steps,
        "epsilon": release.certificate.headline.epsilon,
        "seconds": round(time.perf_counter() - started, 1),
        "figures": score(release, options),
        "accuracy_on_fakes": accuracy_over_time(run),
        "certificate": json.loads(release.certificate.to_json()),
    }


def start(number: int, options: argparse.Namespace, data: us.ImageDataset, run: Path) -> us.Release:
    config = {
        "privacy": {"steps": options.steps, "batch": options.batch, "noise_multiplier": options.noise_multiplier},
        "method": {"discriminator_steps": number},
        "runtime": {"device": options.device, "precision": options.precision},
    }
    budget = us.Budget(options.epsilon, options.delta)
    return us.train("dpgan", data, budget, run, us.TrainOptions(config=config, preset="paper-eps10"))


def score(release: us.Release, options: argparse.Namespace) -> dict[str, float]:
    """The metrics that were asked for, on generated images against the real test images."""
    real_train, real_test = us.load(options.dataset), us.load(options.dataset, split="test")
    images, labels = release.sample(options.samples)
    config = EvaluationConfig(device=options.device, weights=options.weights, precision="tf32", real_data_private=False)
    pairs = ((real_train.images, real_train.labels), (real_test.images, real_test.labels))
    names = options.metrics.split(",")
    result = evaluate(images[:, None], labels, *pairs, names, config)
    return {name: result.value(name) for name in names}


def accuracy_over_time(run: Path) -> list[list[float]]:
    """Discriminator step and mean accuracy on fakes since the last report: public values of the run."""
    lines = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    points = [[line["step"], round(line["accuracy_on_fakes"], 4)] for line in lines if "accuracy_on_fakes" in line]
    return points[:: max(1, len(points) // CURVE)]


def write(path: Path, points: list[dict[str, Any]], options: argparse.Namespace) -> None:
    result = {
        "dataset": options.dataset,
        "device": device_name(choose_device(options.device)),
        "command": command_line(leave_out=("--results", "--commit", "--weights", "--runs")),
        "commit": options.commit or current_commit(),
        "points": points,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--over", type=int, nargs="+", default=[1, 10, 50, 100], help="the numbers n_D to try")
    parser.add_argument("--only", type=int, nargs="+", help="of these, only so many in this command")
    parser.add_argument("--steps", type=int, default=450_000, help="discriminator steps T of each run")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--noise-multiplier", type=float, help="that of the paper is 1; by default what epsilon allows")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--metrics", default="fid,cnn")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--weights", type=Path, help="Inception weights; searched for where not given")
    parser.add_argument("--runs", type=Path, help="keep the runs here, and go on where they stand")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
