"""What the sampler of a diffusion model is worth: FID of one release, drawn in several ways.

    python benchmarks/sampler.py runs/mnist10/release mnist
    python benchmarks/sampler.py runs/mnist10/release mnist --samples 20000 --steps 18 40 120 --floors 0 0.05
    python benchmarks/sampler.py runs/cifar/release cifar-10 --samples 5000 --way autoguidance=0 --way autoguidance=1

Each number of steps is tried without fresh noise and with as much as EDM's algorithm 2 takes; or each ``--way``, which
is the release's own sampler with some settings changed. Floors are cut into the same images. Nothing is trained and
nothing is spent. Writes ``benchmarks/results/sampler-<dataset>-eps<E>.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import understudy as us
from record import command_line, current_commit, device_name
from understudy.devices import choose_device
from understudy.evaluate.fid import FeatureStatistics, fid, reference_statistics
from understudy.evaluate.inception import InceptionFeatures, find_weights
from understudy.methods.config import build_config
from understudy.models.diffusion import DiffusionGenerator
from understudy.models.sampler import SamplerConfig

_MOST_CHURN = math.sqrt(2) - 1  # of a noise level, in one step


def main() -> None:
    options = parse()
    device = choose_device(options.device)
    release, test = us.load_release(options.release), us.load(options.dataset, split="test")
    generator = denoiser_of(release)
    release.generator.to(device)
    network = InceptionFeatures(find_weights(options.weights), device, "tf32")
    statistics = reference_statistics(test.images, network, None)
    rows = []
    for sampler in ways(generator.sampler, options):
        generator.sampler = sampler
        started = time.perf_counter()
        images, _ = release.sample(options.samples)
        row = {**sampler.model_dump(), "seconds": round(time.perf_counter() - started, 1)}
        rows.append(row | {"fid": scored(np.asarray(images), test.images, network, statistics, options.floors)})
        print(rows[-1], flush=True)
    result = {
        "dataset": options.dataset,
        "samplers": rows,
        "samples": options.samples,
        "generator_sha256": release.certificate.generator_sha256,
        "epsilon": release.certificate.headline.epsilon,
        "device": device_name(device),
        "command": command_line(leave_out=("--results", "--commit", "--weights")),
        "commit": options.commit or current_commit(),
        "torch": torch.__version__,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    name = f"sampler-{options.dataset}-eps{release.certificate.headline.epsilon:.3g}"
    (options.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def ways(own: SamplerConfig, options: argparse.Namespace) -> list[SamplerConfig]:
    """The samplers that are tried."""
    if options.way:
        return [turned(own, way.split(",")) for way in options.way]
    pairs = product(options.steps, (False, True))
    return [SamplerConfig(steps=steps, churn=round(_MOST_CHURN * steps, 1) if fresh else 0.0) for steps, fresh in pairs]


def turned(own: SamplerConfig, settings: list[str]) -> SamplerConfig:
    """A sampler with some settings changed, each given as ``name=value``."""
    return build_config(SamplerConfig, own.model_dump() | dict(setting.split("=", 1) for setting in settings))


def denoiser_of(release: us.Release) -> DiffusionGenerator:
    """The part of a release's generator that draws the images, whoever names them."""
    found = [part for part in release.generator.modules() if isinstance(part, DiffusionGenerator)]
    if not found:
        raise SystemExit(f"release: of {release.certificate.method}, which draws in one step; pass one of dp-diffusion")
    return found[0]


def scored(
    images: np.ndarray[Any, Any],
    reference: np.ndarray[Any, Any],
    network: InceptionFeatures,
    statistics: FeatureStatistics,
    floors: list[float],
) -> dict[str, float]:
    """FID by floor; grey images have no axis of channels, colour has it last."""
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    found = {}
    for floor in floors:
        cut = np.where(planes < 255 * floor, 0, planes).astype(np.uint8)
        found[f"{floor:g}"] = round(fid(cut, reference, network, statistics=statistics).value, 2)
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--steps", type=int, nargs="+", default=[18, 40, 120])
    parser.add_argument("--way", action="append", help="of the release's sampler: autoguidance=1,steps=50")
    parser.add_argument("--floors", type=float, nargs="+", default=[0.0, 0.05])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="Inception weights; searched for where not given")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
