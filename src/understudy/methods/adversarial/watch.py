"""What is shown and kept of a DPGAN in training: public progress, private diagnostics, and pictures over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from understudy.engines.dpsgd.step import DiscriminatorStep
from understudy.files import make_folder
from understudy.methods.adversarial.learner import GeneratorSteps
from understudy.methods.adversarial.schedule import StepSchedule
from understudy.runs.run import Run

_REPORTS, _PICTURES = 100, 10  # so often in a run


class GanWatch:
    """What is shown and kept of a run: the paper's diagnostics. It waits for the device only when it reports."""

    def __init__(
        self,
        run: Run,
        player: GeneratorSteps,
        step_of: DiscriminatorStep,
        schedule: StepSchedule,
    ) -> None:
        self._run, self._player, self._step_of, self._schedule = run, player, step_of, schedule
        self._seen: list[tuple[int, Tensor, Tensor]] = []
        self._latest: dict[str, float] = {}  # shown again where no generator step fell between two reports

    def generator_step(self, step: int, loss: Tensor, accuracy: Tensor, climbed: bool) -> None:
        """Remember the discriminator's accuracy on fakes from just before the step; note a move of the schedule."""
        self._seen.append((step, loss, accuracy))
        if climbed:
            self._run.diagnose(step, discriminator_steps=self._schedule.steps, average=self._schedule.average)

    def discriminator_step(self, step: int) -> None:
        """Report every hundredth of the run; keep a picture every tenth."""
        total = self._run.plan.steps
        if step % max(1, total // _REPORTS) == 0 or step == total:
            self._report(step)
        if step % max(1, total // _PICTURES) == 0 or step == total:
            rows = min(10, self._player.released.config.classes or 10)
            path = self._run.private / "samples" / f"{step:010d}.png"
            save_picture(self._player.pictures(rows, 10), 10, path)

    def _report(self, step: int) -> None:
        """Public values from generated images; norms and the clipped share, which saw real ones, stay private."""
        public: dict[str, float] = {"discriminator_steps": self._schedule.steps}
        public["generator_steps"] = self._schedule.generator_steps
        accuracies: list[float] = []
        if self._seen:
            accuracies = torch.stack([accuracy for _, _, accuracy in self._seen]).tolist()  # waits for the device once
            self._latest["generator_loss"] = float(self._seen[-1][1])
            self._latest["accuracy_on_fakes"] = sum(accuracies) / len(accuracies)
        values_private: dict[str, Any] = dict(self._step_of.diagnostics())
        steps = [at for at, _, _ in self._seen]
        values_private["accuracy_on_fakes"] = [[at, round(each, 4)] for at, each in zip(steps, accuracies, strict=True)]
        self._seen.clear()
        self._run.report(step, **public, **self._latest)
        self._run.diagnose(step, **values_private)


def save_picture(images: Tensor, columns: int, path: Path) -> None:
    """Write 8-bit images (N, C, H, W) as one PNG with ``columns`` of them in a row."""
    from PIL import Image

    count, channels, height, width = images.shape
    rows = count // columns
    tiled = images.view(rows, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    pixels = tiled.reshape(rows * height, columns * width, channels).cpu().numpy()
    make_folder(path.parent, "run")
    Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(path)
