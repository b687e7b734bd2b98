"""The Bayesian accountant beside a run: it listens to the discriminator steps and keeps its record in the run folder.

Privacy: what it hears and keeps is private. It never speaks: no value of it reaches the run, its progress or its price.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.engines.dpsgd.step import DiscriminatorStep
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.runs.run import Run

RECORD = "bayesian.json"  # in the private folder


class BayesianWatch:
    """Hands the lengths of sampled units to the accountant, and puts its record on disk whenever a block arrives.

    The record is that of the steps which were executed, like the ledger: a resumed run goes on from it, and steps that
    a crash took before they were recorded are charged at their worst case. Being asked for its state, as a checkpoint
    does, it hands on what is still on the device.
    """

    def __init__(self, run: Run, step_of: DiscriminatorStep, accountant: BayesianAccountant, pairs: int) -> None:
        self._accountant, self._path = accountant, record_path(run.private)
        accountant.restore(self._path)
        self._lengths = step_of.listen(run, self._record, pairs)

    def state_dict(self) -> dict[str, Any]:
        """How many steps are on record."""
        self._lengths.flush()
        return {"recorded": self._accountant.recorded}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Nothing: the record on disk is newer than any checkpoint."""

    def _record(self, lengths_private: NDArray[np.float64]) -> None:
        self._accountant.add(lengths_private)
        self._accountant.save(self._path)


def record_path(private: Path) -> Path:
    """Where the record of a run lies."""
    return private / RECORD
