"""Poisson-sampled batches drawn on the device, many steps at a time, as tables of fixed width."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.distributed import ALONE, Team
from understudy.privacy.randomness.streams import CoinStream

_FLIPS_AT_ONCE = 2**22
_MOST_STEPS = 64


@dataclass(frozen=True, repr=False)
class BatchTable:
    """The batches of some steps: record numbers (steps, width), filled up with ``filler``, and how many are real.

    Privacy: both are private; the drawn sizes must not reach any shape, normaliser or message that is not private too.
    """

    indices: Tensor
    sizes: tuple[int, ...]
    filler: int


class PoissonBatches:
    """Draws batches in which each record occurs independently with one public rate.

    Privacy: the law that amplification by Poisson sampling (adjacency add-remove) needs. The realised rate is never
    above ``rate`` (see ``CoinStream``). Nothing is cut off: a table is as wide as its largest batch. An empty batch is
    a batch. In a team of N, process r draws the coins of the records whose number leaves r modulo N: every record has
    exactly one coin, wherever it is drawn.
    """

    def __init__(self, records: int, rate: float, coins: CoinStream, team: Team = ALONE) -> None:
        self._records, self._rate, self._coins, self._team = records, rate, coins, team

    @property
    def steps_at_once(self) -> int:
        """How many steps are drawn together: many, as long as the flips fit well into memory."""
        return max(1, min(_MOST_STEPS, _FLIPS_AT_ONCE // max(1, -(-self._records // self._team.size))))

    def draw(self, steps: int, multiple: int = 1) -> BatchTable:
        """Batches for ``steps`` steps; the width is a multiple of ``multiple``, and at least that.

        Privacy: each step's flips are fresh; no batch is handed out twice.
        """
        own = len(range(self._team.rank, self._records, self._team.size))
        taken = self._coins.flip((steps, own), self._rate)
        sizes = taken.sum(dim=1)
        step, record = taken.nonzero(as_tuple=True)
        if self._team.size > 1:
            record = record * self._team.size + self._team.rank
        counts = tuple(sizes.tolist())
        width = max(1, math.ceil(max(counts) / multiple)) * multiple
        table = torch.full((steps, width), self._records, device=taken.device)
        starts = sizes.cumsum(dim=0) - sizes
        table[step, torch.arange(len(step), device=taken.device) - starts[step]] = record
        return BatchTable(table, counts, self._records)
