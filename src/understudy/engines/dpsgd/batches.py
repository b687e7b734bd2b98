"""Poisson-sampled batches drawn on the device, many steps at a time, as tables of fixed width."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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
    a batch.
    """

    def __init__(self, records: int, rate: float, coins: CoinStream) -> None:
        self._records, self._rate, self._coins = records, rate, coins

    @property
    def steps_at_once(self) -> int:
        """How many steps are drawn together: many, as long as the flips fit well into memory."""
        return max(1, min(_MOST_STEPS, _FLIPS_AT_ONCE // max(1, self._records)))

    def draw(self, steps: int, multiple: int = 1) -> BatchTable:
        """Batches for ``steps`` steps; the width is a multiple of ``multiple``, and at least that.

        Privacy: each step's flips are fresh; no batch is handed out twice.
        """
        taken = self._coins.flip((steps, self._records), self._rate)
        sizes = taken.sum(dim=1)
        step, record = taken.nonzero(as_tuple=True)
        counts = tuple(sizes.tolist())
        width = max(1, math.ceil(max(counts) / multiple)) * multiple
        table = torch.full((steps, width), self._records, device=taken.device)
        starts = sizes.cumsum(dim=0) - sizes
        table[step, torch.arange(len(step), device=taken.device) - starts[step]] = record
        return BatchTable(table, counts, self._records)
