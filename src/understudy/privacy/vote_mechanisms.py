"""Mechanisms for teachers that vote: every teacher casts one vote, votes are counted exactly, then noise is added.

Teachers hold disjoint shards, and each record was assigned to a shard for itself. So a record more or less changes the
votes of one teacher, from anything it may cast to anything else it may cast, and of no other (add-remove). What a
teacher may cast is enforced here, where the votes are counted: a mechanism takes what a teacher computed, turns it into
a vote, and adds it to a tally of whole numbers. Each row of a tally is one query and one execution.

No sampling: all teachers vote on every query, and which queries there are is public. Nothing depends on the votes but
the noisy tally, so the price is fixed beforehand, whatever the teachers say: it is data-independent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianMechanism, Sanitized
from understudy.privacy.randomness import Randomness


class VoteMechanism(GaussianMechanism):
    """What they share: noise of deviation ``reach * noise_multiplier`` on every number of a tally.

    ``reach`` is how far one teacher can move a row of the tally (its L2 sensitivity).
    """

    allowed_sampling = ("none",)
    reach: float

    def release(self, tally_private: Tensor, *, block: int = 1) -> Sanitized:
        """Add noise to a tally (queries, ...) of whole numbers; spends one execution for each query first.

        Privacy: one teacher moves a row by at most ``reach`` (add-remove), so each row is one unsampled Gaussian event.
        """
        if tally_private.is_floating_point():
            raise InputError(f"votes: a tally of {tally_private.dtype} is not exact; count in whole numbers")
        event = self.account.spend(len(tally_private), block)
        return Sanitized(self._noisy(tally_private, self.reach * event.noise_multiplier), event)

    def _finite(self, values_private: Tensor, dimensions: int) -> Tensor:
        """Values with every vote that holds a non-finite number set to zero; such votes are counted, as private rows.

        The last ``dimensions`` axes belong to one vote.
        """
        finite = torch.isfinite(values_private)
        whole = finite.flatten(-dimensions).all(dim=-1) if dimensions else finite
        self._count(torch.ones_like(whole).flatten(), (~whole).flatten())
        return torch.where(whole.view(*whole.shape, *(1,) * dimensions), values_private, 0.0)


class SignVotes(VoteMechanism):
    """Signs of a teacher's ``top`` largest values: a vote is a vector of ``top`` entries in -1, 0, 1, and zeros.

    Privacy: a vote has norm at most C = sqrt(top). Replaced by the opposite vote on the same places it moves the tally
    by 2 sqrt(top), and no two votes are further apart: sensitivity "2C".
    """

    sensitivity = "2C"

    def __init__(self, ledger: Ledger, randomness: Randomness, *, top: int, event: Event) -> None:
        super().__init__(ledger, randomness, clip=math.sqrt(top), event=event)
        self.top, self.reach = top, 2 * math.sqrt(top)

    def cast(self, slopes_private: Tensor, coins: Tensor | None = None) -> Tensor:
        """Votes (teachers, queries, values) in -1, 0, 1 of gradients of that shape.

        With ``coins``, uniform in 0..1 and of that shape, a sign is drawn: the larger a value beside the largest of its
        row, the surer its sign. Without, it is the sign itself.
        """
        values = self._finite(slopes_private, 1)
        largest, places = values.abs().topk(min(self.top, values.shape[2]), dim=2)
        signs = values.gather(2, places)
        if coins is not None:
            scale = torch.where(largest[..., :1] > 0, largest[..., :1], 1.0)
            drawn = torch.where(coins.gather(2, places) < (1 + signs / scale) / 2, 1.0, -1.0)
            signs = torch.where(largest > 0, drawn, 0.0)
        votes = torch.zeros_like(values, dtype=torch.int8)
        return votes.scatter_(2, places, signs.sign().to(torch.int8))

    def count(self, tally: Tensor, slopes_private: Tensor, coins: Tensor | None = None) -> None:
        """Add the votes of some teachers to ``tally`` (queries, values) of int64."""
        tally += self.cast(slopes_private, coins).sum(dim=0, dtype=torch.int64)


class BinVotes(VoteMechanism):
    """One histogram for each of ``coordinates`` values: a teacher puts each value into one of ``bins`` bins.

    Privacy: a vote is one-hot in every coordinate, so its norm is C = sqrt(coordinates). Replacing it takes one from a
    bin and adds one to another in each coordinate: 2 * coordinates entries move by one, sqrt(2 coordinates) in all
    (sensitivity "sqrt(2)C").
    """

    sensitivity = "sqrt(2)C"

    def __init__(
        self, ledger: Ledger, randomness: Randomness, *, coordinates: int, bins: int, limit: float, event: Event
    ) -> None:
        super().__init__(ledger, randomness, clip=math.sqrt(coordinates), event=event)
        self.bins, self.limit, self.reach = bins, limit, math.sqrt(2 * coordinates)
        self.coordinates = coordinates

    def cast(self, values_private: Tensor) -> Tensor:
        """The bin (teachers, queries, coordinates) of each value; what lies outside goes into the outermost bin.

        A vote that is not finite goes into the middle.
        """
        if values_private.shape[2] != self.coordinates:
            raise InputError(f"votes: {values_private.shape[2]} coordinates, but {self.coordinates} are accounted")
        share = (self._finite(values_private, 1) / self.limit + 1) / 2
        return (share * self.bins).floor().clamp(0, self.bins - 1).long()

    def count(self, tally: Tensor, values_private: Tensor) -> None:
        """Add the votes of some teachers to ``tally`` (queries, coordinates, bins) of int64."""
        chosen = self.cast(values_private).permute(1, 2, 0)
        tally.scatter_add_(2, chosen, torch.ones_like(chosen))

    def middles(self, device: torch.device) -> Tensor:
        """The value (bins,) that a bin stands for: its middle."""
        return ((torch.arange(self.bins, device=device) + 0.5) / self.bins * 2 - 1) * self.limit


class PeakVotes(VoteMechanism):
    """The largest count of each histogram of ``BinVotes``: what a check for consensus looks at.

    Privacy: replacing one vote moves every count of a histogram by at most one, so its largest by at most one; over
    all coordinates that is C = sqrt(coordinates) (sensitivity "C": one unit moves the value by at most C).
    """

    sensitivity = "C"

    def __init__(self, ledger: Ledger, randomness: Randomness, *, coordinates: int, event: Event) -> None:
        super().__init__(ledger, randomness, clip=math.sqrt(coordinates), event=event)
        self.reach = math.sqrt(coordinates)

    def peaks(self, tally: Tensor) -> Tensor:
        """The largest counts (queries, coordinates) of a tally of bins."""
        return tally.amax(dim=2)


class RealVotes(VoteMechanism):
    """How many teachers take each query for real: a vote is 0 or 1.

    Privacy: replacing a teacher's vote moves the count by at most C = 1 (sensitivity "C").
    """

    sensitivity = "C"
    reach = 1.0

    def __init__(self, ledger: Ledger, randomness: Randomness, *, event: Event) -> None:
        super().__init__(ledger, randomness, clip=1.0, event=event)

    def count(self, tally: Tensor, margins_private: Tensor) -> None:
        """Add the votes of some teachers to ``tally`` (queries,) of int64: a margin (teachers, queries) above zero."""
        tally += (self._finite(margins_private, 0) > 0).sum(dim=0, dtype=torch.int64)
