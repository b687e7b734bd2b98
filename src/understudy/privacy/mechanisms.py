"""Mechanisms: the only way from private rows to a value that may be used. Clip each unit, then sum, then add noise.

A mechanism owns its account in the ledger: it takes the executions before it computes the noise and returns each
sanitized value together with the event that describes what it did, so noise and accounting cannot drift apart.

Mechanisms for votes stand at the end: every teacher casts one, votes are counted exactly, then noise is added.

Teachers hold disjoint shards, and each record was assigned to a shard for itself. So a record more or less changes the
votes of one teacher, from anything it may cast to anything else it may cast, and of no other (add-remove). What a
teacher may cast is enforced here, where the votes are counted: a mechanism takes what a teacher computed, turns it into
a vote, and adds it to a tally of whole numbers. Each row of a tally is one query and one execution.

No sampling: all teachers vote on every query, and which queries there are is public. Nothing depends on the votes but
the noisy tally, so the price is fixed beforehand, whatever the teachers say: it is data-independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.files import read_tensors, write_tensors
from understudy.privacy.events import Event
from understudy.privacy.ledger import Account, Ledger
from understudy.privacy.randomness.streams import NoiseStream, Randomness

_ROUNDING = 1e-6  # clipped rows end a hair inside the bound, so that rounding cannot carry one across it
_SUM_ROUNDING = 1e-4  # the same where rows are summed in float32 by whoever holds them: the sum is rounded too
_SMALLEST_CLIP, _LARGEST_CLIP = 1e-30, 1e30  # beyond these float32 holds rows of that length too coarsely
_NON_FINITE_LIMIT = 0.01  # more rows than this share that are not finite mean a broken run, not a noisy one


@dataclass(frozen=True)
class Sanitized:
    """A value that may be used, and the event it cost."""

    value_dp: Tensor
    event: Event


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Scale each row of a (units, values) matrix to an L2 norm of at most ``bound``; a non-finite row becomes zero.

    Privacy: afterwards no unit's row is longer than ``bound``, whatever it held. Computed in float32 or better; rows
    are first scaled by their largest entry, so that squaring neither overflows nor vanishes; norms in float64.
    """
    rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    finite = torch.isfinite(rows).all(dim=1, keepdim=True)
    rows = torch.where(finite, rows, torch.zeros((), dtype=rows.dtype, device=rows.device))
    largest = rows.abs().amax(dim=1, keepdim=True)
    unit_rows = rows / torch.where(largest > 0, largest, torch.ones_like(largest))
    length = torch.linalg.vector_norm(unit_rows, dim=1, keepdim=True, dtype=torch.float64)  # 0, or 1 to sqrt(values)
    too_long = largest.double() * length > bound * (1 - _ROUNDING)
    shortened = unit_rows * (bound * (1 - _ROUNDING) / length.clamp(min=1.0)).to(rows.dtype)
    return torch.where(too_long, shortened, rows)


class GaussianMechanism:
    """What all mechanisms share: the account in the ledger, the noise, and the count of broken rows.

    ``event`` is the planned event: its count is the most executions there will be. What it says of the sensitivity must
    be what this mechanism has.
    """

    allowed_sampling: tuple[str, ...] = ()
    sensitivity: str = ""

    def __init__(self, ledger: Ledger, randomness: Randomness, *, clip: float, event: Event) -> None:
        if not _SMALLEST_CLIP <= clip <= _LARGEST_CLIP:
            raise InputError(
                f"clip: {clip} is not a positive bound between {_SMALLEST_CLIP:g} and {_LARGEST_CLIP:g}; pass for "
                "example clip=1"
            )
        name = type(self).__name__
        if event.sampling.kind not in self.allowed_sampling:
            raise InputError(
                f"mechanism: {name} cannot be accounted with {event.sampling.kind!r} sampling; "
                f"it knows {', '.join(self.allowed_sampling)}"
            )
        if event.sensitivity != self.sensitivity:
            raise InputError(f"mechanism: {name} has sensitivity {self.sensitivity}, not {event.sensitivity}")
        self.clip = clip
        self.account: Account = ledger.account(event)
        self._randomness, self._witness = randomness, ledger.witness
        self._streams: dict[torch.device, NoiseStream] = {}
        self._rows: Tensor | None = None  # how many were seen and how many of them were not finite, on the device

    def check_finite(self) -> None:
        """Raise when too many rows were not finite; they counted as zero, so nothing leaked, but nothing was learnt.

        Privacy: the count is private. A run that stops here releases nothing and counts as a run on this data.
        """
        seen, broken = (0, 0) if self._rows is None else self._rows.tolist()
        if broken > _NON_FINITE_LIMIT * seen:
            raise AbortedRun(
                f"training: more than {_NON_FINITE_LIMIT:.0%} of the private rows of {self.account.template.purpose!r} "
                "were not finite, so nothing is released; lower the learning rate or use a higher precision"
            )

    def counts_private(self, device: torch.device) -> Tensor:
        """How many rows were seen, and how many were not finite, to be brought together by several processes.

        Privacy: private, for ``check_finite`` alone.
        """
        if self._rows is None:
            self._rows = torch.zeros(2, dtype=torch.int64, device=device)
        return self._rows

    def _clip(self, rows_private: Tensor) -> Tensor:
        broken = (~torch.isfinite(rows_private)).any(dim=1)
        self._count(torch.ones_like(broken), broken)
        return clip_rows(rows_private, self.clip)

    def _count(self, seen: Tensor, broken: Tensor) -> None:
        """Count rows in place, so that a captured CUDA graph counts them at every replay."""
        if self._rows is None:
            self._rows = torch.zeros(2, dtype=torch.int64, device=seen.device)
        self._rows += torch.stack([seen, broken]).sum(dim=1)

    def _noisy(self, exact: Tensor, deviation: float) -> Tensor:
        """``exact`` plus noise, added in double precision."""
        if exact.device not in self._streams:
            self._streams[exact.device] = self._randomness.noise(exact.device)
        value_dp = torch.add(exact.double(), self._streams[exact.device].draw(exact.shape), alpha=deviation)
        if self._witness is not None:  # an audit; it sees what an attacker might
            self._witness(str(self.account.template.purpose), value_dp)
        return value_dp


class GaussianSum(GaussianMechanism):
    """The noisy sum of clipped units: sum of clip(row, C) + Normal(0, (C * noise_multiplier)^2).

    Privacy: adding or removing one unit moves the sum by at most C (add-remove, sensitivity "C"), so each release is
    one Gaussian of the stated multiplier, subsampled as the event's sampling says. Units arrive in any number of
    pieces; noise is added once, after the last. An empty sum is released like any other.
    """

    allowed_sampling = ("none", "poisson")
    sensitivity = "C"

    def accumulate(self, total: Tensor, rows_private: Tensor, slots: Tensor | None = None) -> None:
        """Add clipped rows to ``total``: (values,) without slots, (cells, values) with a cell number per row.

        Privacy: a row goes into one cell whole, so placing it changes neither its norm nor the sensitivity.
        """
        clipped = self._clip(rows_private).to(total.dtype)
        if slots is None:
            total += clipped.sum(dim=0)
        else:
            total.index_add_(0, slots, clipped)

    def clip_factors(self, norms_private: Tensor, present: Tensor) -> Tensor:
        """For units whose rows are never formed: by what to multiply each before it goes into the sum, in float64.

        ``norms_private`` bounds each row's norm from above; ``present`` says which rows are units at all (the others
        fill up a batch). Factors are at most one.

        Privacy: factor times norm is at most the clip bound, with room for rounding the factor to float32 and, as far
        as it has been seen (2e-5 of the bound for a thousand rows), a float32 sum of the rows. A factor that float32
        could only round coarsely is zero. A norm that is not finite gives factor zero, and whoever sums must then leave
        the row out, whatever it holds; it is counted.
        """
        finite = torch.isfinite(norms_private)
        self._count(present, present & ~finite)
        bound = self.clip * (1 - _SUM_ROUNDING)
        norms = norms_private.double()
        factors = torch.where(norms > bound, bound / norms.clamp(min=bound), 1.0)
        fine = finite & present & (factors >= torch.finfo(torch.float32).tiny)
        return torch.where(fine, factors, torch.zeros_like(factors))

    def release(self, total: Tensor, *, block: int = 1) -> Sanitized:
        """Add the noise to a sum of clipped units; spends one execution first."""
        event = self.account.spend(1, block)
        return Sanitized(self._noisy(total, self.clip * event.noise_multiplier), event)

    def release_once(self, compute_total: Callable[[], Tensor], path: Path) -> Tensor:
        """The noisy sums of a run, kept in ``path``: however often the run is killed, they are drawn and charged once.

        There are as many as the event counts, one after the other in the first dimension where there are several.

        Privacy: the noisy sum is put on disk under a name that nothing reads, then the execution is recorded, then the
        file gets its name. A crash before the record discards it unused; a crash after it finds the result again. A
        recorded execution whose result is gone is not repeated: BudgetError; nor is a result without its record.
        """
        pending = path.with_suffix(".pending")
        deviation = self.clip * self.account.template.noise_multiplier
        if self.account.reserved == 0 and path.exists():
            raise InputError(
                f"ledger: {path} exists, but the ledger does not hold the execution that made it; its spending is "
                "unknown, so the run cannot go on"
            )
        if self.account.reserved == 0:
            write_tensors(pending, {"total_dp": self._noisy(compute_total(), deviation)})
            self.account.spend(self.account.planned)
        if pending.exists():
            pending.replace(path)
        if not path.exists():
            raise BudgetError(
                f"budget: the result of {self.account.template.purpose!r} was paid for, but {path} is gone"
            )
        return read_tensors(path)[0]["total_dp"]


class GaussianAnswers(GaussianMechanism):
    """One noisy answer per query: clip(row, C) + Normal(0, (2 * C * noise_multiplier)^2), fresh noise in every row.

    Privacy: a query is answered from one subset of the units; another subset, or the same one with a unit more or less,
    gives another row within C of zero, so two answers differ by at most 2C (sensitivity "2C"). With secret and
    independent, uniform routing over K subsets each answer is one ``routed`` event (the proof is in docs/privacy.md).
    """

    allowed_sampling = ("none", "routed", "revealed")
    sensitivity = "2C"

    def answer(self, rows_private: Tensor, *, block: int = 1) -> Sanitized:
        """Sanitize a (queries, values) matrix, one execution per row; the answers keep the order of the queries."""
        drawn_together = getattr(self.account.template.sampling, "rows", len(rows_private))
        if len(rows_private) != drawn_together:
            raise InputError(f"mechanism: {len(rows_private)} answers to one draw, but {drawn_together} are accounted")
        event = self.account.spend(len(rows_private), block)
        deviation = 2 * self.clip * event.noise_multiplier
        return Sanitized(self._noisy(self._clip(rows_private), deviation).float(), event)


class GaussianBlocks(GaussianMechanism):
    """One noisy matrix from a whole batch: clip(block, C) in each row + Normal(0, (2 * C * noise_multiplier)^2).

    A block may be any function of the units of its own cell; cells are disjoint (classes, say). One matrix is one
    execution, however many blocks it has.

    Privacy: let f(S) be the clipped matrix of a batch S. A unit lies in one cell, so f(S + unit) and f(S) differ in
    one row, and both rows lie within C of zero: |f(S + unit) - f(S)| <= 2C (sensitivity "2C"). With Poisson sampling at
    rate q and given the other units' draws S, the laws with and without the unit are (1-q) N(f(S)) + q N(f(S + unit))
    and N(f(S)), where N has deviation 2C * noise_multiplier. Shifting and turning brings them to the pair of the
    Poisson-sampled Gaussian at a distance of at most 1/noise_multiplier, and a shorter distance is a longer one with
    noise added. Hockey-stick divergences are jointly convex, so the average over S obeys the bound of each S, in both
    directions. So one matrix is one execution of a ``poisson`` event (of a ``none`` event where all units take part).
    """

    allowed_sampling = ("none", "poisson")
    sensitivity = "2C"

    def answer(self, blocks_private: Tensor, *, block: int = 1) -> Sanitized:
        """Sanitize a (blocks, values) matrix as one execution; ``block`` executions are reserved with one write."""
        event = self.account.spend(1, block)
        deviation = 2 * self.clip * event.noise_multiplier
        return Sanitized(self._noisy(self._clip(blocks_private), deviation).float(), event)


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
