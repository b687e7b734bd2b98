"""The record of how clearly votes are won, beside a run.

Privacy: what it hears and keeps is private. It never speaks: no value of it reaches the run, its progress or its price.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from understudy.privacy.vote_agreement import VoteRecord
from understudy.training.run import Run


class VoteWatch:
    """Hands exact votes to the record, and puts it on disk whenever a checkpoint asks for its state."""

    def __init__(self, run: Run, deviation: float) -> None:
        self._record, self._deviation = VoteRecord(run.private), deviation

    def hear(self, counts_private: Tensor, shown: Tensor) -> None:
        """Histograms (queries, coordinates, bins), and which of their winners are shown.

        Privacy: they go to the private record and nowhere else.
        """
        self._record.add(counts_private.cpu().numpy(), shown.cpu().numpy(), self._deviation)

    def state_dict(self) -> dict[str, Any]:
        """How many queries are on record."""
        self._record.save()
        return {"recorded": self._record.queries}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Nothing: the record on disk is newer than any checkpoint."""
