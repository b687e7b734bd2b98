"""Critics shared by the processes of a team: whose critic is whose, and how questions and answers travel.

Critic k belongs to process k mod N, and with it the records of subset k: a process holds its own critics and their
records, and no others. The leader says to all of them alike what is done next: train these critics, or answer about
these images. Answers are summed into the leader's: whoever owns the critic that was asked adds what it says, and all
others add zeros.

Privacy: which subset a record is in was drawn once, by the leader, and does not know N. A subset lies in one process,
so critic k is trained by one process, on subset k, chance of its own and public images, after the public schedule: a
record changes what one critic says, as in one process. A sum of one answer and zeros is that answer; it is clipped,
noised and recorded by the leader, once, as in one process. Epsilon does not know N.

What hides what: the processes are all the owner's, and all of them are told who is asked, so that each knows its part.
To somebody who sees when messages pass and how long they are, but cannot read them, they do not tell who is asked: all
processes get the same question and send as much back, and every one works through as many queries, the number of which
is public (``Shard.at_once``), whoever is asked. Training follows a public schedule. Who can read the messages is
outside of the guarantee (``distributed.py``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from understudy.distributed import ALONE, STEP, Team

_SPARE = 5  # queries above what a process expects to be asked, and deviations of that


@dataclass(frozen=True)
class Shard:
    """The critics of one of several processes; alone all of them."""

    subsets: int
    team: Team = ALONE

    @property
    def critics(self) -> range:
        """The numbers of this process's critics; row r of its bank is the r-th of them."""
        return range(self.team.rank, self.subsets, self.team.size)

    def records(self, assignment: Tensor) -> Tensor:
        """The numbers of the records that this process's critics learn from, given the subset of each record.

        Privacy: private. Those of all processes are disjoint, since a record is in one subset and that in one process.
        """
        return torch.nonzero(assignment % self.team.size == self.team.rank)[:, 0]

    def rows(self, critics: slice | Sequence[int]) -> slice | list[int]:
        """The rows of this process's bank that hold the named critics; a range of critics is a range of rows."""
        rank, size = self.team.rank, self.team.size
        if isinstance(critics, slice):
            start, stop, _ = critics.indices(self.subsets)
            return slice(*(max(0, -(-(place - rank) // size)) for place in (start, stop)))
        return [critic // size for critic in critics if critic % size == rank]

    def at_once(self, queries: int) -> int:
        """How many of so many queries this process works through together, asked or not.

        Privacy: a public number, which is enough but for fewer than one step in a million; then there is a second pass.
        """
        share = len(self.critics) / self.subsets
        expected, deviation = queries * share, math.sqrt(queries * share * (1 - share))
        return min(queries, math.ceil(expected + _SPARE * deviation + _SPARE))


class Words:
    """What the leader says to those who share its critics, and what they bring together; alone nothing is said."""

    def __init__(self, team: Team, device: torch.device) -> None:
        self._team, self._device = team, device
        self.heard: dict[str, Any] | None = None  # of a follower: what the leader told instead of a further deed

    def say(self, deed: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
        """Tell everybody what to do, and with which values.

        Privacy: the length of a message follows public numbers alone.
        """
        if self._team.size == 1:
            return
        described = [[list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for tensor in tensors]
        content = torch.frombuffer(bytearray(json.dumps({**deed, "values": described}).encode()), dtype=torch.uint8)
        self._team.give(torch.tensor([STEP, len(content)]))
        self._team.give(content)
        for tensor in tensors:
            self._team.give(tensor.detach().contiguous())

    def hear(self) -> tuple[dict[str, Any], list[Tensor]] | None:
        """What the leader says and the values that belong to it; None where it begins with other work (``heard``)."""
        header = torch.zeros(2, dtype=torch.int64)
        self._team.give(header)
        if int(header[0]) != STEP:
            self.heard = self._team.hear(header)
            return None
        content = torch.zeros(int(header[1]), dtype=torch.uint8)
        self._team.give(content)
        deed: dict[str, Any] = json.loads(bytes(content.tolist()))
        tensors = [
            torch.zeros(shape, dtype=getattr(torch, kind), device=self._device) for shape, kind in deed["values"]
        ]
        for tensor in tensors:
            self._team.give(tensor)
        return deed, tensors

    def sum(self, part: Tensor, counts: Sequence[Tensor]) -> Tensor:
        """Bring the parts of an answer together in the leader's, and what was counted on the way; others keep nothing.

        Privacy: private until the leader has sanitized it; the counts stay private.
        """
        if self._team.size > 1:
            for tensor in (part, *counts):
                self._team.total(tensor)
                if not self._team.leads:
                    tensor.zero_()
        self._team.expect(parts=False)
        return part
