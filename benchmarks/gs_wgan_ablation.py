"""What helps GS-WGAN: named variants of its settings at one epsilon, from random weights and from an embedding.

    python benchmarks/gs_wgan_ablation.py mnist --epsilon 10
    python benchmarks/gs_wgan_ablation.py fashion-mnist --epsilon 10 --variants base basis growing
    python benchmarks/gs_wgan_ablation.py mnist --epsilon 10 --seconds 400 --commit 0123abc
    python benchmarks/gs_wgan_ablation.py mnist --epsilon 10 --variants basis --set privacy.clip=0.05 --name clip0.05

Trains each variant as ``us.train`` does, and scores it as ``headline.py`` does: FID of 60,000 samples against the test
images, accuracy of a CNN that learns from samples alone. Writes after every variant, whole,
``benchmarks/results/gs-wgan-ablation-<dataset>-eps<E>.json`` (with ``--name NAME`` also ``-<NAME>``) and its samples as
a PNG; what is in the file already is not done again. ``--seconds`` begins no further variant after that time, so that
the rest can be done by the same command later. The data sets are public, so the private diagnostics of a run (how long
gradients were in the basis of the answers, and how many were clipped) are kept beside its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import understudy as us
from headline import add_scoring, claimed, measure
from record import command_line, current_commit, device_name
from understudy.data.catalog import is_known
from understudy.devices import choose_device
from understudy.errors import UnderstudyError
from understudy.methods.config import apply_settings, overlay
from understudy.release.model_card import grid_png
from understudy.runs.folder import RunFolder

# What is turned; every other setting is that of the preset.
TURNED: dict[str, dict[str, Any]] = {
    "base": {},
    "basis": {"method": {"low_frequencies": [8]}},
    "growing": {"method": {"low_frequencies": [6, 10, 14]}},
    "points4": {"method": {"queries_per_point": 4}},
    "both": {"method": {"low_frequencies": [6, 10, 14], "queries_per_point": 4}},
    "momentum": {"method": {"generator": {"first_decay": 0.9, "second_decay": 0.999}}},
    "large-batches": {"method": {"queries_per_step": 1024}},
    "fewer-subsets": {"privacy": {"subsets": 500}},
    "longer-warm-up": {"method": {"critics": {"warm_iterations": 400}}},
}
PRESETS = {"": "random-start", "embedding-": "gpu"}  # by how the name of a variant begins
VARIANTS = [start + name for start in PRESETS for name in TURNED]
_LAST = 10  # reports of a run whose diagnostics are averaged


def main() -> None:
    options = parse()
    started, path = time.perf_counter(), target(options, ".json")
    known = json.loads(path.read_text()) if path.exists() else {}
    result = {**heading(options), "points": known.get("points", []), "failed": known.get("failed", [])}
    done = {point["values"]["variant"] for point in result["points"]}
    for variant in options.variants:
        if variant in done:
            continue
        if time.perf_counter() - started > options.seconds:
            print(f"time is up before {variant}; the same command goes on", flush=True)
            return
        add(result, variant, options)
        write(path, result)


def add(result: dict[str, Any], variant: str, options: argparse.Namespace) -> None:
    """Run a variant; one that breaks down is a result too, and the others go on."""
    result["failed"] = [failed for failed in result["failed"] if failed["variant"] != variant]
    try:
        point = run_variant(variant, options)
        result["points"].append(point)
        print({key: point[key] for key in ("values", "epsilon", "figures", "diagnostics")}, flush=True)
    except UnderstudyError as error:
        result["failed"].append({"variant": variant, "why": str(error), "commit": commit_of(options)})
        print(f"{variant}: {error}", flush=True)


def run_variant(variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train and score one variant."""
    device = choose_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        preset, config = settings_of(variant, options)
        train_options = us.TrainOptions(config=config, preset=preset)
        budget = us.Budget(options.epsilon, options.delta)
        release = us.train("gs-wgan", us.load(options.dataset), budget, run, train_options)
        seconds = time.perf_counter() - began
        diagnostics = last_diagnostics(run)
    figures: dict[str, Any] = {}
    for found in measure(release, options):
        figures |= {name: figure for name, figure in found.items() if figure is not None}
    samples = target(options, f"-{variant}.png")
    samples.write_bytes(grid_png(release, options.temperature))
    return {
        "method": "gs-wgan",
        "values": {"variant": variant, "seconds": round(seconds)},
        "epsilon": claimed(release)["epsilon"],
        "figures": {"fid": figures.get("fid"), "cnn": figures.get("cnn_accuracy")},
        "preset": preset,
        "settings": {group: values for group, values in config.items() if group != "runtime"},
        "diagnostics": diagnostics,
        "samples": samples.name,
        "device": device_name(device),
        "commit": commit_of(options),
        "torch": torch.__version__,
        "certificate": json.loads(release.certificate.to_json()),
    }


def settings_of(variant: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The preset of a variant, and the settings that are laid over it."""
    start = next(start for start in sorted(PRESETS, reverse=True) if variant.startswith(start))
    config = overlay({"runtime": {"device": options.device}}, TURNED[variant.removeprefix(start)])
    return PRESETS[start], apply_settings(config, options.settings)


def last_diagnostics(run: Path) -> dict[str, float]:
    """How long gradients were in the basis of the answers, and which share was clipped, at the end of a run."""
    path = RunFolder(run).diagnostics
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    last = [line for line in lines if "clipped" in line][-_LAST:]
    names = ("gradient_norm_before", "clipped") if last else ()
    return {name: round(sum(line[name] for line in last) / len(last), 4) for name in names}


def heading(options: argparse.Namespace) -> dict[str, Any]:
    """What all variants of a file share; command, commit and machine are those that wrote it last."""
    return {
        "dataset": options.dataset,
        "delta": options.delta,
        "device": device_name(choose_device(options.device)),
        "command": command_line(("--results", "--commit", "--weights", "--seconds")),
        "commit": commit_of(options),
    }


def commit_of(options: argparse.Namespace) -> str | None:
    """The commit that was named, or that of the working tree; an archive without git has none to ask."""
    return options.commit or current_commit()


def write(path: Path, result: dict[str, Any]) -> None:
    """The whole file at once, so that no reader and no kill finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(part, path)


def target(options: argparse.Namespace, suffix: str) -> Path:
    name = f"-{options.name}" if options.name else ""
    options.results.mkdir(parents=True, exist_ok=True)
    return options.results / f"gs-wgan-ablation-{options.dataset}-eps{options.epsilon:g}{name}{suffix}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a public one: mnist or fashion-mnist")
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, metavar="NAME", help=str(VARIANTS))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="group.key=value, of all variants")
    parser.add_argument("--name", default="", help="added to the file name: for other settings of the same variants")
    add_scoring(parser)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further variant after that")
    options = parser.parse_args()
    if options.settings and not options.name:
        parser.error("--set: the file of a data set and an epsilon holds the presets as they are; pass --name too")
    if not is_known(options.dataset):
        parser.error(f"data: {options.dataset} is not known to be public, so its figures are not kept")
    return options


if __name__ == "__main__":
    main()
