"""The generator's part in rounds: many images are asked about at once, and it learns from their answers in steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from understudy.devices import low_precision
from understudy.engines.critics.panel import FakePool
from understudy.engines.learner import Drawn, GeneratorPlayer
from understudy.federated.messages import Images, to_pixels


@dataclass(frozen=True)
class Inputs:
    """What images are made from: latent values and labels."""

    latent: Tensor
    labels: Tensor


class RoundPlayer(GeneratorPlayer):
    """A generator that asks in rounds.

    Privacy: as ``GeneratorPlayer``: it sees sanitized answers only, so any number of steps on them is free.
    """

    def draw_inputs(self, count: int) -> Inputs:
        """What the images of a round are made from, by the declared law."""
        return Inputs(self.live.draw_latent(count, self._random), self.live.draw_labels(count, self._random))

    def render(self, inputs: Inputs) -> Drawn:
        """The images of some inputs by the generator as it is now."""
        with low_precision(self._precision, self._random.device):
            raw = self.live(inputs.latent, inputs.labels).float()
        values = raw.sigmoid() if self.live.config.output == "sigmoid" else raw
        return Drawn(values, inputs.labels if self.live.config.classes is not None else None)

    def shown(self, inputs: Inputs) -> Images:
        """The images of some inputs as they travel."""
        with torch.no_grad():
            return travelling(self.render(inputs).pool)

    def learn_from(self, inputs: Inputs, slopes_dp: Tensor, steps: int) -> None:
        """``steps`` steps over the answers of a round, each on its own part of them."""
        parts = zip(inputs.latent.chunk(steps), inputs.labels.chunk(steps), slopes_dp.chunk(steps), strict=True)
        for latent, labels, slopes in parts:
            self.learn(self.render(Inputs(latent, labels)), slopes)


def travelling(pool: FakePool) -> Images:
    """Generated images in the form in which they travel."""
    labels = None if pool.labels is None else pool.labels.cpu().numpy().astype(np.int64)
    return Images(to_pixels(pool.images.cpu().numpy()), labels)
