"""Two processes on one graphics card: the same run, plan and epsilon as one process there, and as on a processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from understudy import load_release
from understudy.release.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")]
CASES = {
    "dpgan": ("privacy.steps=40", "privacy.batch=64", "method.discriminator_steps=5", "method.embedding.steps=50"),
    "dp-diffusion": ("privacy.steps=20", "privacy.batch=64", "method.embedding.steps=50", "method.warm_up.steps=20"),
    "gs-wgan": ("privacy.subsets=20", "privacy.queries=512", "method.queries_per_step=64"),
    "dp-merf": ("privacy.teacher_share=0.4", "method.steps=50"),
    "dp-merf-ae": ("privacy.batch=100", "privacy.steps=20", "method.embedding.steps=50"),
}
BY_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "understudy")


def trained(case: str, out: Path, *more: str, launcher: tuple[str, ...] = ("-m", "understudy")) -> float:
    """The epsilon of a run of the command line; its release is sound."""
    settings = [word for setting in CASES[case] for word in ("--set", setting)]
    facts = ("--data", "digits", "--epsilon", "10", "--delta", "1e-5", "--device", "cuda", "--out", str(out), "--yes")
    command = [sys.executable, *launcher, "train", case, *facts, *settings, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "XDG_STATE_HOME": str(out.parent / "state")}
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment, timeout=180)
    assert ran.returncode == 0, ran.stderr
    assert verify(out / "release").passed
    return load_release(out / "release").certificate.headline.epsilon


@pytest.mark.parametrize("case", sorted(CASES))
def test_two_processes_share_one_card(case, tmp_path):
    """NCCL wants a card for each process: these two speak by gloo, over the tensors of the card."""
    assert trained(case, tmp_path / "two", "--processes", "2") == trained(case, tmp_path / "one")


def test_torchrun_starts_two_processes_on_one_card(tmp_path):
    assert trained("dpgan", tmp_path / "run", launcher=BY_TORCHRUN) > 0


def test_two_processes_draw_and_score_on_one_card(tmp_path):
    trained("dp-merf", tmp_path / "run")
    release, images = str(tmp_path / "run" / "release"), str(tmp_path / "images.npz")
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    for command in (
        ("sample", release, "--count", "2000", "--to", images, "--processes", "2"),
        ("evaluate", release, "--data", "digits", "--metrics", "cnn", "--processes", "2", "--device", "cuda"),
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "understudy", *command], stderr=subprocess.PIPE, text=True, env=environment
        )
        assert ran.returncode == 0, ran.stderr
