"""The Bayesian accountant beside a run: how far one more unit would move the sum of each step, measured and kept.

A step releases a sum of clipped gradients over public constants. With one more unit in the batch, or one less, the sum
differs by that unit's clipped gradient, whatever the rest of the batch is. So the difference of a pair is the clipped
gradient of one unit, drawn independently of the batch, and only its length is needed. Lengths stay on the device and
are handed on in blocks.

Privacy: what is heard and kept here is private. It never speaks: no value of it reaches the run, its progress or its
price.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from understudy.engines.dpsgd.captured import captured
from understudy.engines.dpsgd.step import PrivateStep
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.runs.run import Run

PairRecorder = Callable[[NDArray[np.float64]], None]  # takes lengths (steps, pairs) in units of the clip bound

_BLOCK = 256  # steps between two waits for the device


class PairLengths:
    """Measures, before each step, the clipped gradients of m units at the weights that the step is taken from.

    Privacy: units are drawn uniformly, with replacement, from the private records, independently of the batch; their
    lengths are private and go to the recorder alone. They reach no weight, no message and no decision. A unit without
    a record (there are none) or with a gradient that is not finite counts as long as the clip bound.
    """

    def __init__(
        self, step: PrivateStep, pairs: int, clip: float, recorder: PairRecorder, random: torch.Generator
    ) -> None:
        self._step, self._clip, self._recorder, self._random = step, clip, recorder, random
        self._indices = torch.full((pairs,), step.units_private, device=random.device)
        self._latest = torch.zeros(pairs, dtype=torch.float64, device=random.device)
        self._block = torch.zeros((_BLOCK, pairs), dtype=torch.float64, device=random.device)
        self._filled = 0
        self._replay: Callable[[], None] | None = None
        step.listen(self.measure)

    def measure(self) -> None:
        """The lengths for one step; nothing is read back from the device until a block is full."""
        if self._filled == _BLOCK:
            self.flush()
        if self._step.units_private > 0:
            torch.randint(self._step.units_private, self._indices.shape, generator=self._random, out=self._indices)
        if self._replay is None:
            self._replay = captured(self._compute, self._random.device)
        self._replay()
        self._block[self._filled] = self._latest
        self._filled += 1

    def flush(self) -> None:
        """Hand on what was measured; waits for the device."""
        if self._filled:
            self._recorder(self._block[: self._filled].cpu().numpy())
            self._filled = 0

    def _compute(self) -> None:
        lengths = self._step.norms_private(self._indices).double() / self._clip
        usable = torch.isfinite(lengths) & (self._indices != self._step.units_private)
        self._latest.copy_(torch.where(usable, lengths.clamp(max=1.0), 1.0))


class BayesianWatch:
    """Hands the lengths of sampled units to the accountant, and puts its record on disk whenever a block arrives.

    The record is that of the steps which were executed, like the ledger: a resumed run goes on from it, and steps that
    a crash took before they were recorded are charged at their worst case. Being asked for its state, as a checkpoint
    does, it hands on what is still on the device.
    """

    def __init__(self, run: Run, step: PrivateStep, accountant: BayesianAccountant, pairs: int, clip: float) -> None:
        self._accountant, self._path = accountant, run.files.bayesian
        accountant.restore(self._path)
        self._lengths = PairLengths(step, pairs, clip, self._record, run.randomness.generator(run.device))

    def state_dict(self) -> dict[str, Any]:
        """How many steps are on record."""
        self._lengths.flush()
        return {"recorded": self._accountant.recorded}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Nothing: the record on disk is newer than any checkpoint."""

    def _record(self, lengths_private: NDArray[np.float64]) -> None:
        self._accountant.add(lengths_private)
        self._accountant.save(self._path)
