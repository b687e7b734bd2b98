"""Sampled pairs for the Bayesian accountant: how far one more unit would move the sum of a step.

A step releases a sum of clipped gradients over public constants. With one more unit in the batch, or one less, the sum
differs by that unit's clipped gradient, whatever the rest of the batch is. So the difference of a pair is the clipped
gradient of one unit, drawn independently of the batch, and only its length is needed. Lengths stay on the device and
are handed on in blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from understudy.engines.config import Adversary
from understudy.engines.dpsgd.gradients import PerExampleGradients
from understudy.engines.records import Reals

PairRecorder = Callable[[NDArray[np.float64]], None]  # takes lengths (steps, pairs) in units of the clip bound

_BLOCK = 256  # steps between two waits for the device
_WARM_UP = 3
_AT_ONCE = 512  # units in one pass


@dataclass(frozen=True)
class PairOptions:
    """Pairs a step, and what the units are clipped to under which loss: the same as in the step."""

    pairs: int  # m
    clip: float  # C
    loss: Adversary


class PairLengths:
    """Measures, before each step, the clipped gradients of m units at the weights that the step is taken from.

    Privacy: units are drawn uniformly, with replacement, from the private records, independently of the batch; their
    lengths are private and go to the recorder alone. They reach no weight, no message and no decision. A unit without
    a record (there are none) or with a gradient that is not finite counts as long as the clip bound.
    """

    def __init__(
        self,
        gradients: PerExampleGradients,
        reals: Reals,
        settings: PairOptions,
        recorder: PairRecorder,
        random: torch.Generator,
    ) -> None:
        self._gradients, self._reals, self._settings = gradients, reals, settings
        self._recorder, self._random = recorder, random
        self._indices = torch.full((settings.pairs,), reals.filler, device=random.device)
        self._latest = torch.zeros(settings.pairs, dtype=torch.float64, device=random.device)
        self._block = torch.zeros((_BLOCK, settings.pairs), dtype=torch.float64, device=random.device)
        self._filled = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def measure(self) -> None:
        """The lengths for one step; nothing is read back from the device until a block is full."""
        if self._filled == _BLOCK:
            self.flush()
        if self._reals.filler > 0:
            torch.randint(self._reals.filler, self._indices.shape, generator=self._random, out=self._indices)
        if self._random.device.type == "cuda":
            self._replay()
        else:
            self._compute()
        self._block[self._filled] = self._latest
        self._filled += 1

    def flush(self) -> None:
        """Hand on what was measured; waits for the device."""
        if self._filled:
            self._recorder(self._block[: self._filled].cpu().numpy())
            self._filled = 0

    def _compute(self) -> None:
        self._gradients.refresh()
        examples = self._reals.gather(self._indices)
        norms = [
            self._gradients.norms((some.images, some.labels), partial(some.losses, self._settings.loss))
            for some in examples.chunks(_AT_ONCE)
        ]
        lengths = torch.cat(norms).double() / self._settings.clip
        usable = torch.isfinite(lengths) & examples.present
        self._latest.copy_(torch.where(usable, lengths.clamp(max=1.0), 1.0))

    def _replay(self) -> None:
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream(self._random.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        return graph
