"""FID and accuracy against the number of discriminator steps for each generator step (Figs. 1, 2 and 4 of the paper).

    python benchmarks/discriminator_steps_sweep.py --steps 20000
    python benchmarks/discriminator_steps_sweep.py --steps 20000 --only 50 --runs sweep-runs
    python benchmarks/discriminator_steps_sweep.py --steps 150000 --noise-multiplier 1 --marks 25000 50000 100000

Trains ``dpgan`` on MNIST at one epsilon with n_D = 1, 10, 50 and 100, the networks and batch of the paper and the noise
that the budget allows for so many steps, or the noise of the paper, of which fewer steps than its 450,000 are a part at
a smaller epsilon. Each run is scored at the ``--marks`` and at its end. Writes
``benchmarks/results/dpgan-discriminator-steps-<dataset>-eps<E>.json`` after every score: figures, the curve of the FID
with the epsilon of the steps so far, the discriminator's accuracy on fakes over time, and the certificate. What is in
the file already is not done again, and a run that was cut off continues if ``--runs`` names the same folder again; so
the sweep may be cut into commands of any length. ``--until`` leaves the runs at a step before their end.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

import understudy as us
from record import command_line, current_commit, device_name
from understudy.api import release_early
from understudy.devices import choose_device
from understudy.errors import InterruptedRun
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.privacy.accounting import certified_epsilon
from understudy.report import charts

CURVE = 100  # points of the accuracy over time


def main() -> None:
    options = parse()
    path = options.results / f"dpgan-discriminator-steps-{options.dataset}-eps{options.epsilon:g}.json"
    known = json.loads(path.read_text())["points"] if path.exists() else []
    points = {point["values"]["discriminator_steps"]: point for point in known if point["planned"] == options.steps}
    last = options.until or options.steps
    with tempfile.TemporaryDirectory() as folder:
        for number in options.only or options.over:
            run = (options.runs or Path(folder)) / f"n{number}"
            for mark in [*(mark for mark in options.marks if mark < last), last]:
                if mark <= points.get(number, {}).get("steps", 0):
                    continue
                points[number] = measure(number, mark, options, run, points.get(number))
                write(path, [points[each] for each in sorted(points)], options)
                print({key: points[number][key] for key in ("values", "steps", "figures", "seconds")}, flush=True)


def measure(
    number: int, mark: int, options: argparse.Namespace, run: Path, before: dict[str, Any] | None
) -> dict[str, Any]:
    """Train with one n_D until a mark (or go on to it), then score the generator as it stands there."""
    started = time.perf_counter()
    release = train_until(mark, number, options, run)
    seconds = time.perf_counter() - started
    at_end = mark == (options.until or options.steps)
    figures = score(release, options, options.metrics if at_end else "fid")
    epsilon = certified_epsilon([release.certificate.events[0].charged(planned=0, executed=mark)], options.delta)
    return {
        "method": "dpgan",
        "values": {"discriminator_steps": number},
        "planned": options.steps,
        "steps": mark,
        "epsilon": epsilon,
        "seconds": round((before or {}).get("seconds", 0.0) + seconds, 1),
        "figures": figures,
        "curve": [*(before or {}).get("curve", []), {"steps": mark, "epsilon": epsilon, **figures}],
        "accuracy_on_fakes": accuracy_over_time(run),
        "certificate": json.loads(release.certificate.to_json()),
    }


def train_until(mark: int, number: int, options: argparse.Namespace, run: Path) -> us.Release:
    """The generator after so many steps. Where that is not the end, its certificate charges the whole plan."""
    data, reached = us.load(options.dataset), [0]
    config = {
        "privacy": {"steps": options.steps, "batch": options.batch, "noise_multiplier": options.noise_multiplier},
        "method": {"discriminator_steps": number},
        "runtime": {"device": options.device, "precision": options.precision},
    }
    watched = us.TrainOptions(
        config=config,
        preset="paper-eps10",
        listener=lambda progress: reached.append(progress.step),
        stop_requested=lambda: options.steps > mark <= reached[-1],
    )
    try:
        if (run / "run.json").exists():
            return us.resume(data, run, watched)
        return us.train("dpgan", data, us.Budget(options.epsilon, options.delta), run, watched)
    except InterruptedRun:
        return release_early(run)


def score(release: us.Release, options: argparse.Namespace, metrics: str) -> dict[str, float]:
    """Metrics of generated images against the real test images."""
    real_train, real_test = us.load(options.dataset), us.load(options.dataset, split="test")
    images, labels = release.sample(options.samples)
    config = EvaluationConfig(
        device=options.device,
        weights=options.weights,
        precision=options.inception,
        real_data_private=False,
        reference=False,
    )
    names = metrics.split(",")
    result = evaluate(images, labels, real_train, real_test, names, config)
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
        "picture": path.with_suffix(".png").name,
        "points": points,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".png").write_bytes(picture(points))
    path.write_text(json.dumps(result, indent=1) + "\n")


def picture(points: list[dict[str, Any]]) -> bytes:
    """FID over the discriminator steps, a line for each n_D: Fig. 1a of the paper."""

    def draw(axes: Axes) -> None:
        for number, point in enumerate(points):
            look = {**charts.style(number), "linewidth": 1.8, "marker": charts.marker(number)}
            scored = [mark for mark in point["curve"] if "fid" in mark]
            steps, scores = ([mark[key] for mark in scored] for key in ("steps", "fid"))
            axes.plot(steps, scores, label=f"n_D = {point['values']['discriminator_steps']}", **look)
        axes.set(xlabel="discriminator steps", ylabel="FID")
        charts.legend(axes)

    return charts.picture(draw, "discriminator-steps", "png")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--over", type=int, nargs="+", default=[1, 10, 50, 100], help="the numbers n_D to try")
    parser.add_argument("--only", type=int, nargs="+", help="of these, only so many in this command")
    parser.add_argument("--steps", type=int, default=450_000, help="discriminator steps T of each run")
    parser.add_argument("--marks", type=int, nargs="+", default=[], help="score the FID here too, on the way")
    parser.add_argument("--until", type=int, help="leave the runs at this step, to be continued by another command")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--noise-multiplier", type=float, help="that of the paper is 1; by default what epsilon allows")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--metrics", default="fid,cnn")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--inception", default="tf32", choices=["fp32", "tf32", "fp16"], help="precision of the FID")
    parser.add_argument("--weights", type=Path, help="Inception weights; searched for where not given")
    parser.add_argument("--runs", type=Path, help="keep the runs here, and go on where they stand")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
