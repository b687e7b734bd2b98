"""Runs of dp-diffusion to look into, and denoisers on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from understudy.data.dataset import ImageDataset
from understudy.methods.base import configure
from understudy.methods.diffusion.dp_diffusion import DpDiffusion, DpDiffusionConfig
from understudy.methods.diffusion.learner import Denoiser
from understudy.methods.registry import get_method
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, CASES
from ...helpers.data import tiny_data

CPU = torch.device("cpu")


def make_run(
    folder: Path,
    data: ImageDataset | None = None,
    *,
    case: str = "dp-diffusion",
    seed: int | None = None,
    **changes: Any,
) -> Run:
    """A run of a case; its ledger is gone on with where the folder has one."""
    data = tiny_data() if data is None else data
    implementation = get_method("dp-diffusion")
    plan = implementation.plan(configure(implementation, CASES[case].config(**changes)), data.domain, BUDGET)
    folder.mkdir(exist_ok=True)
    path = folder / "ledger.jsonl"
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    return Run(folder, plan, data, ledger, Randomness(seed), CPU)


def make_denoiser(folder: Path, data: ImageDataset | None = None, **method: Any) -> Denoiser:
    """A denoiser with some settings of the method changed."""
    return denoiser_of(make_run(folder, data, method=method))


def denoiser_of(run: Run) -> Denoiser:
    """The denoiser that a run would train, without a start."""
    config = run.plan.config_as(DpDiffusionConfig)
    return Denoiser(run, DpDiffusion().generator_config(config, run.plan.domain), config.method)
