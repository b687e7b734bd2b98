"""Private sums shared by the processes of a team: who owns which units, and how their parts come together.

Unit u belongs to process u mod N. In a step the leader sends the weights, and what the public companions are made from;
every process, the leader among them, draws the coins of its own units, adds up their clipped gradients and those of its
part of the companions, and the parts are summed into the leader's. The leader then does what it does alone: spends,
adds noise, learns.

A run is shared piece by piece: the leader says what it begins with (``Sharing``) and takes steps of it; the others help
until it begins with something else. Steps of DP-SGD are one kind of work (``SharedSteps``); sums over all units are
another (``SharedSum``): mean embeddings, and the gradients of a linear teacher.

Privacy: N sums over disjoint sets of units add up to the sum over all. Each unit is in one set, so it takes part with
the accounted rate, by coins that one process draws with entropy of its own, and moves the sum by at most C: the sum has
the law and the sensitivity that it has in one process. Noise is added once, by the leader, to the whole sum, and is
that of one process. No process sees a sanitized value before it is on record in the leader's ledger; followers have no
ledger that they could spend from (``privacy/ledger.py``, ``NoLedger``). Epsilon does not know the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from understudy.distributed import STEP, Team
from understudy.errors import InputError

if TYPE_CHECKING:
    from understudy.privacy.mechanisms import GaussianSum

STEPS = "steps"  # the work that a method's own ``assist`` knows, unless it is told of another


class Assistance(Protocol):
    """What a process that follows does for the leader."""

    def help(self) -> dict[str, Any] | None:
        """Add this process's part until the leader begins with other work; what it told of that, None: of none."""
        ...


@dataclass(frozen=True)
class Sharing:
    """What followers need to take part: plain values to build the work from, and public tensors that change.

    ``told`` is None where they know already, because they had something to make ready at the same time.
    """

    told: Mapping[str, Any] | None = field(default_factory=dict)
    public: Sequence[Tensor] = ()
    work: str = STEPS

    def announce(self, team: Team) -> None:
        """Of the leader: tell the others what is begun with."""
        if self.told is not None:
            team.tell({"work": self.work, **self.told})


class SharedSteps:
    """The messages of one kind of private step; alone there are none.

    Privacy: see the module.
    """

    def __init__(self, team: Team, weights: Tensor | None, sharing: Sharing | None) -> None:
        self._team, self._weights, self._given = team, () if weights is None else (weights,), -1
        self._sharing = sharing or Sharing(None)
        self.heard: dict[str, Any] | None = None  # of a follower: what the leader told instead of a further step
        if team.size > 1 and team.leads:
            if sharing is None:
                raise InputError("processes: these steps cannot be shared by several; leave --processes out")
            sharing.announce(team)
        self._word = team.words

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

        Who left this work for another, since the leader began with one, is called back.

        Privacy: weights are sanitized, all else is public.
        """
        if self._word != self._team.words:
            assert self._sharing.told is not None, "known already, so nothing came between"
            self._sharing.announce(self._team)
            self._word, self._given = self._team.words, -1
        version = sum(tensor._version for tensor in self._sharing.public)
        changed = version != self._given
        self._given = version
        self._team.give(torch.tensor([STEP, int(changed)]))
        self._team.expect(parts=True)
        self._give(drawn, changed)

    def follow(self, drawn: Sequence[Tensor]) -> bool:
        """A follower waits for a step, and puts what it needs into place; False: there is none any more (``heard``)."""
        header = torch.zeros(2, dtype=torch.int64)
        self._team.give(header)
        if int(header[0]) == STEP:
            self._give(drawn, bool(header[1]))
            return True
        self.heard = self._team.hear(header)
        return False

    @torch.no_grad()
    def _give(self, drawn: Sequence[Tensor], changed: bool) -> None:
        for tensor in (*self._weights, *(self._sharing.public if changed else ()), *drawn):
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
        self._team.expect(parts=False)
        if not self._team.leads:
            together.zero_()
            total.zero_()
        for count, part in zip(counts, together.split([len(count) for count in counts]), strict=True):
            count.copy_(part)


class SharedSum:
    """A sum of clipped units, again and again: every process computes that of its own units; alone it is all there is.

    ``own_sum`` computes it, by ``mechanism`` and from the tensors of ``sharing``, of which the leader sends changes.

    Privacy: a unit adds to the sum of one process only, and at most C there, so it moves the whole sum by at most C, as
    in one process. Nothing is spent, and no noise is added, here: the leader does both with what ``take`` gives it.
    """

    def __init__(
        self, team: Team, mechanism: GaussianSum, own_sum: Callable[[], Tensor], sharing: Sharing | None
    ) -> None:
        self._mechanism, self._own_sum = mechanism, own_sum
        self._shared = SharedSteps(team, None, sharing)

    def take(self) -> Tensor:
        """Of the leader: the sum over all units. Privacy: private, to be given to the mechanism."""
        if not self._shared.alone:
            self._shared.begin(())
        return self._part()

    def help(self) -> dict[str, Any] | None:
        """Of a follower: add the sum over its own units, whenever the leader asks.

        Privacy: what it sums goes to the leader, who adds the noise; nothing is spent, learnt or released here.
        """
        while self._shared.follow(()):
            self._part()
        return self._shared.heard

    def _part(self) -> Tensor:
        total = self._own_sum()
        if not self._shared.alone:
            self._shared.end(total, self._mechanism.counts_private(total.device))
        return total
