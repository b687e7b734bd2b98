"""The basis in which critics answer: all pixels, or the lowest cosine frequencies of an image.

A gradient has as many values as an image has pixels, and each of them gets noise of the same deviation. In the
orthonormal cosine basis (DCT-II) the coarse part of it is the first k x k frequencies of each channel. Asked for those
alone, an answer has k*k values instead of all pixels: the length of its noise shrinks with the root of their number,
while the clip bound stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, int, int]  # channels, rows, columns


def cosines(size: int, count: int) -> Tensor:
    """The ``count`` lowest of the ``size`` orthonormal cosines over ``size`` pixels: (count, size), in float64."""
    places = torch.arange(size, dtype=torch.float64) + 0.5
    waves = torch.arange(count, dtype=torch.float64).unsqueeze(1)
    rows = torch.cos(waves * places * (math.pi / size)) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows


class AnswerBasis:
    """The first ``side`` x ``side`` frequencies of every channel; all pixels, as they are, where no side is given.

    A side of the image that is shorter than ``side`` keeps all its frequencies.

    Privacy: ``project`` comes before a mechanism and ``back`` after it. The basis is public: it follows from the shape
    of images and from settings. A projected row is a function of one critic's answer alone, and the mechanism clips it
    as it is then; so an answer is the same event, with fewer values. ``back`` sees sanitized values only. As the map is
    orthonormal, no row grows by it, so that even a clip before it would bound what comes after; nothing rests on that.
    """

    def __init__(self, shape: Shape, side: int | None, device: torch.device | str = "cpu") -> None:
        self.shape, self.side = shape, side
        _, height, width = shape
        kept = (height, width) if side is None else (min(side, height), min(side, width))
        self._down, self._across = (
            cosines(size, count).to(device) for size, count in zip((height, width), kept, strict=True)
        )

    @property
    def values(self) -> int:
        """How many values an answer has."""
        return self.shape[0] * len(self._down) * len(self._across)

    def project(self, rows_private: Tensor) -> Tensor:
        """Answers (queries, pixels) in this basis: (queries, values).

        Privacy: still private and unclipped, for a mechanism. A row that is not finite stays so, and no other becomes
        so: every value of a channel is a sum over all its pixels, and over no other row.
        """
        if self.side is None:
            return rows_private
        images = rows_private.double().view(-1, *self.shape)
        return (self._down @ images @ self._across.T).flatten(1)

    def back(self, values_dp: Tensor) -> Tensor:
        """Sanitized answers (images, values) as pixels again: (images, pixels), without what was left out."""
        if self.side is None:
            return values_dp
        coefficients = values_dp.double().view(-1, self.shape[0], len(self._down), len(self._across))
        return (self._down.T @ coefficients @ self._across).flatten(1).to(values_dp.dtype)


class BasisSchedule:
    """The bases of a run: one after the other, each for an equal part of the steps.

    Privacy: which basis a step has follows from its number and from settings, so the schedule is public.
    """

    def __init__(self, shape: Shape, sides: Sequence[int], steps: int, device: torch.device | str = "cpu") -> None:
        self._steps = steps
        self._bases = [AnswerBasis(shape, side, device) for side in (sides or (None,))]

    def at(self, step: int) -> AnswerBasis:
        """The basis of a step, counted from one."""
        stage = (step - 1) * len(self._bases) // self._steps
        return self._bases[min(stage, len(self._bases) - 1)]
