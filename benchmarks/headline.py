"""One row of the results table: train a method on a public data set, evaluate it, write figures and certificate.

    python benchmarks/headline.py dp-merf mnist --epsilon 10
    python benchmarks/headline.py dp-merf mnist --epsilon 1 --set method.steps=4000
    python benchmarks/headline.py dpgan mnist --epsilon 10 --preset paper-eps10-adaptive --variant paper --run mnist10
    python benchmarks/headline.py gan mnist --preset paper
    python benchmarks/headline.py dp-merf mnist-writers --epsilon 10 --delta 1e-4 --declare person=column:writer \\
        --declare nominal_people=539

A long run may go on over several commands and machines: ``--run`` keeps it, ``--seconds`` stops it in time, ``--carry``
leaves it in a folder as parts of less than 16 MB each, and finds it there again; ``--moved`` says that the copy that
goes on is the only one.

    python benchmarks/headline.py dp-diffusion mnist --epsilon 10 --preset gpu --run r --seconds 500 --carry parts
    python benchmarks/headline.py dp-diffusion mnist --epsilon 10 --preset gpu --run r --carry parts --moved

A release that was trained before is measured with ``--release``; such a row says nothing of time and memory.
``--sampler`` changes how a diffusion model draws, where not as its config says; what does is in the row's command.

    python benchmarks/headline.py dp-diffusion fashion-mnist --epsilon 10 --release examples/fashion-mnist-eps10

Writes ``benchmarks/results/<method>-<dataset>-eps<E>[-<variant>].json`` and the sample grid beside it as a PNG. The
data are looked for where ``understudy data list`` says; the Inception weights as ``understudy evaluate`` does. FID
compares 60,000 generated images with the 10,000 test images; the CNN, and in colour the residual network beside it, are
trained on the generated images only, and the row states how many parameters each has. The row is written as soon as
training has ended, and again after each figure: what is cut off by then has null.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import understudy as us
from record import command_line, current_commit, declared_data, device_name, seconds_on_record
from sampler import denoiser_of, turned
from understudy.devices import choose_device
from understudy.evaluate.evaluation import Evaluation, EvaluationConfig, evaluate, with_colour
from understudy.methods.config import apply_settings
from understudy.privacy.claims.statements import kept_claims
from understudy.release.model_card import grid_png
from understudy.runs.folder import RunFolder

_PART = 15 * 2**20  # bytes
_FIGURES = ("fid", "cnn_accuracy", "inception_score", "average_accuracy", "calibrated_accuracy")


def main() -> None:
    options = parse()
    device = choose_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        if options.release is not None:
            costs, others, release = dict.fromkeys(("train_seconds", "peak_gpu_gib")), [], released(options)
        else:
            run = options.run or Path(folder) / "run"
            costs, others = trained(options, run, device)
            release = us.load_release(run / "release")
        if options.sampler:
            generator = denoiser_of(release)
            generator.sampler = turned(generator.sampler, options.sampler)
        target(options, ".png").write_bytes(grid_png(release, options.temperature))
    row = {
        "method": options.method,
        "dataset": options.dataset,
        **claimed(release),
        "temperature": options.temperature,
        **dict.fromkeys(_FIGURES),
        **costs,
        **({"data_dependent": others} if others else {}),  # the data sets are public
        "device": device_name(device),
        "command": command_line(
            leave_out=("--results", "--commit", "--weights", "--run", "--carry", "--seconds"), flags=("--moved",)
        ),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
        "certificate": json.loads(release.certificate.to_json()),
    }
    for figures in measure(release, options):
        row |= {name: figure for name, figure in figures.items() if figure is not None}
        target(options, ".json").write_text(json.dumps(row, indent=1) + "\n")
        print(json.dumps({key: value for key, value in row.items() if key != "certificate"}), flush=True)


def released(options: argparse.Namespace) -> us.Release:
    """The release that is named, if its method is the one that the row is of."""
    release = us.load_release(options.release)
    if release.certificate.method != options.method:
        raise SystemExit(f"release: of {release.certificate.method}, not of {options.method}; name that method")
    return release


def trained(
    options: argparse.Namespace, run: Path, device: torch.device
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What training took, and claims that depend on the data; a run that goes on later is left in parts."""
    if options.carry is not None and not run.exists():
        unpack(options.carry, run)
    try:
        costs = train(options, run, device)
    finally:
        if options.carry is not None and run.exists():
            pack(run, options.carry)
    return costs, [claim.model_dump() for claim in kept_claims(RunFolder(run).claims)]


def train(options: argparse.Namespace, run: Path, device: torch.device) -> dict[str, Any]:
    """Train, go on with a run that was cut off, or find one that is finished; returns what the training took."""
    kept = run / "costs.json"
    if kept.exists():
        return json.loads(kept.read_text())
    started, data = time.perf_counter(), declared_data(options.dataset, options.declared)
    end = started + options.seconds

    def late() -> bool:
        return time.perf_counter() > end

    if (run / "run.json").exists():
        us.resume(data, run, us.TrainOptions(moved=options.moved, stop_requested=late))
        seconds = seconds_on_record(run)
    else:
        config = apply_settings({"runtime": {"device": options.device}}, options.settings)
        train_options = us.TrainOptions(config=config, preset=options.preset, stop_requested=late)
        budget = None if options.epsilon is None else us.Budget(options.epsilon, options.delta)
        us.train(options.method, data, budget, run, train_options)
        seconds = time.perf_counter() - started
    peak = round(torch.cuda.max_memory_allocated(device) / 2**30, 1) if device.type == "cuda" else None
    costs = {"train_seconds": round(seconds, 1), "peak_gpu_gib": peak}
    kept.write_text(json.dumps(costs))
    return costs


def pack(run: Path, folder: Path) -> None:
    """The run as ``run.tar.000`` and so on, each below 16 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("run.tar.*"):
        old.unlink()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(run, "run")
    whole = content.getvalue()
    for number, start in enumerate(range(0, len(whole), _PART)):
        (folder / f"run.tar.{number:03d}").write_bytes(whole[start : start + _PART])


def unpack(folder: Path, run: Path) -> None:
    """A run from its parts, if there are any."""
    parts = sorted(folder.glob("run.tar.*")) if folder.is_dir() else []
    if not parts:
        return
    whole = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    with tempfile.TemporaryDirectory() as place, tarfile.open(fileobj=whole) as archive:
        archive.extractall(place, filter="data")
        shutil.copytree(Path(place) / "run", run)


def claimed(release: us.Release) -> dict[str, float | None]:
    """Epsilon and delta of the certificate; null for a method that is not private."""
    private = release.certificate.not_private is None
    return {name: getattr(release.certificate.headline, name) if private else None for name in ("epsilon", "delta")}


def measure(release: us.Release, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """FID, accuracies, Inception score and the averages over classifiers as asked for, one after the other."""
    real_train, real_test = us.load(options.dataset), us.load(options.dataset, split="test")
    started = time.perf_counter()
    images, labels = release.sample(
        options.samples, temperature=options.temperature, steps=options.sample_steps, agree=options.agree
    )
    seconds = time.perf_counter() - started
    config = EvaluationConfig(
        device=options.device,
        weights=options.weights,
        precision=options.precision,
        real_data_private=False,
        reference=False,
    )
    figures: dict[str, Any] = {"sample_seconds": round(seconds, 1)}
    if release.has_classifier:
        figures["classifier_accuracy"] = float((release.label(real_test.pictures) == real_test.labels).mean())
    yield figures
    usual = with_colour(("cnn", "fid"), real_train.domain.shape[0])
    sizes: dict[str, Any] = {}
    for metric in usual if options.metrics is None else options.metrics.split(","):
        result = evaluate(images, labels, real_train, real_test, [metric], config)
        sizes |= networks(result)
        of_colour = {"resnet_accuracy": result.value("resnet"), "networks": sizes if "resnet" in sizes else None}
        yield {name: result.as_dict()[name] for name in _FIGURES} | of_colour


def networks(result: Evaluation) -> dict[str, Any]:
    """The size and the settings of each network that was trained on samples."""
    told = [figure for figure in result.figures if figure.get("parameters")]
    return {figure["name"]: {key: figure[key] for key in ("parameters", "settings", "seconds")} for figure in told}


def target(options: argparse.Namespace, suffix: str) -> Path:
    variant = f"-{options.variant}" if options.variant else ""
    options.results.mkdir(parents=True, exist_ok=True)
    price = "not-private" if options.epsilon is None else f"eps{options.epsilon:g}"
    return options.results / f"{options.method}-{options.dataset}-{price}{variant}{suffix}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=us.method_names())
    parser.add_argument("dataset")
    parser.add_argument("--epsilon", type=float, help="left out for a method that is not private")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--declare", dest="declared", action="append", default=[], help="as of train: person=column:ID")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="group.key=value")
    parser.add_argument("--preset", help="a named config of the method")
    parser.add_argument("--sampler", action="append", default=[], help="of a diffusion model: autoguidance=1")
    parser.add_argument("--variant", default="", help="added to the file name")
    add_scoring(parser)
    parser.add_argument("--run", type=Path, help="keep the run here, and go on where it stands; else it is thrown away")
    parser.add_argument("--release", type=Path, help="measure this release instead of training")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop the training then, to go on later")
    parser.add_argument("--carry", type=Path, help="a folder for the run in parts, where it goes on from")
    parser.add_argument("--moved", action="store_true", help="go on with a run that was begun elsewhere")
    return parser.parse_args()


def add_scoring(parser: argparse.ArgumentParser) -> None:
    """How samples are drawn and scored, and where the figures go: what ``measure`` reads."""
    parser.add_argument(
        "--metrics", help="of fid, cnn, resnet, is, downstream; fid,cnn unless given, in colour resnet too"
    )
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the latent values when images are drawn")
    parser.add_argument("--sample-steps", type=int, help="of a diffusion model; those of its config unless given")
    parser.add_argument("--agree", action="store_true", help="only images on which generator and teacher agree")
    parser.add_argument(
        "--precision", default="tf32", choices=["fp32", "tf32", "fp16"], help="of the Inception network"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="Inception weights; searched for where not given")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")


if __name__ == "__main__":
    main()
