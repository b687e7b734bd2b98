"""Private steps shared by the processes of a team: who owns which units, and how their sums come together.

Unit u belongs to process u mod N. In a step the leader sends the weights, and what the public companions are made from;
every process, the leader among them, draws the coins of its own units, adds up their clipped gradients and those of its
part of the companions, and the parts are summed into the leader's. The leader then does what it does alone: spends,
adds noise, learns.

Privacy: N sums over disjoint sets of units add up to the sum over all. Each unit is in one set, so it takes part with
the accounted rate, by coins that one process draws with entropy of its own, and moves the sum by at most C: the sum has
the law and the sensitivity that it has in one process. Noise is added once, by the leader, to the whole sum, and is
that of one process. No process sees a sanitized value before it is on record in the leader's ledger; followers have no
ledger that they could spend from (``privacy/ledger.py``, ``NoLedger``). Epsilon does not know the number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from understudy.distributed import Team
from understudy.errors import InputError

_STEP = 1


@dataclass(frozen=True)
class Sharing:
    """What followers need to take part: plain values to build the step from, and public tensors that change."""

    told: Mapping[str, Any] = field(default_factory=dict)
    public: Sequence[Tensor] = ()


class SharedSteps:
    """The messages of one kind of private step; alone there are none.

    Privacy: see the module.
    """

    def __init__(self, team: Team, weights: Tensor, sharing: Sharing | None) -> None:
        self._team, self._weights, self._given = team, weights, -1
        self._public = () if sharing is None else sharing.public
        if team.size > 1 and team.leads:
            if sharing is None:
                raise InputError("processes: these steps cannot be shared by several; leave --processes out")
            team.tell(sharing.told)

    @property
    def alone(self) -> bool:
        """Whether there is nobody to share with."""
        return self._team.size == 1

    def own(self, units: int) -> slice:
        """Which of so many companions are this process's."""
        first, last = (units * rank // self._team.size for rank in (self._team.rank, self._team.rank + 1))
        return slice(first, last)

    def part_of(self, expected: float) -> float:
        """This process's part of an expected number of units; alone all of it."""
        return expected / self._team.size if self._team.size > 1 else expected

    def begin(self, drawn: Sequence[Tensor]) -> None:
        """The leader begins a step: weights, public tensors that changed since the last, what companions are made of.

        Privacy: weights are sanitized, all else is public.
        """
        version = sum(tensor._version for tensor in self._public)
        changed = version != self._given
        self._given = version
        self._team.give(torch.tensor([_STEP, int(changed)]))
        self._give(drawn, changed)

    def follow(self, drawn: Sequence[Tensor]) -> bool:
        """A follower waits for a step, and puts what it needs into place; False: there is none any more."""
        header = torch.zeros(2, dtype=torch.int64)
        self._team.give(header)
        if int(header[0]) == _STEP:
            self._give(drawn, bool(header[1]))
        return int(header[0]) == _STEP

    @torch.no_grad()
    def _give(self, drawn: Sequence[Tensor], changed: bool) -> None:
        for tensor in (self._weights, *(self._public if changed else ()), *drawn):
            whole = tensor.data.contiguous()
            self._team.give(whole)
            if not self._team.leads and whole.data_ptr() != tensor.data_ptr():
                tensor.data.copy_(whole)

    def end(self, total: Tensor, *counts: Tensor) -> None:
        """Bring the parts of a sum, and what was counted on the way, together in the leader's; others keep nothing.

        Privacy: private until the leader has added noise to it; the counts stay private.
        """
        self._team.total(total)
        together = torch.cat([count.double() for count in counts])
        self._team.total(together)
        if not self._team.leads:
            together.zero_()
            total.zero_()
        for count, part in zip(counts, together.split([len(count) for count in counts]), strict=True):
            count.copy_(part)
