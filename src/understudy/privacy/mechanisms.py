"""Mechanisms: the only way from private rows to a value that may be used. Clip each unit, then sum, then add noise.

A mechanism owns its account in the ledger: it takes the executions before it computes the noise and returns each
sanitized value together with the event that describes what it did, so noise and accounting cannot drift apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from understudy.errors import BudgetError, InputError, UnderstudyError
from understudy.files import read_tensors, write_tensors
from understudy.privacy.events import Event
from understudy.privacy.ledger import Account, Ledger
from understudy.privacy.randomness import Randomness

_ROUNDING = 1e-6  # clipped rows end a hair inside the bound, so that rounding cannot carry one across it
_NON_FINITE_LIMIT = 0.01  # more rows than this share that are not finite mean a broken run, not a noisy one


@dataclass(frozen=True)
class Sanitized:
    """A value that may be used, and the event it cost."""

    value_dp: Tensor
    event: Event


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Scale each row of a (units, values) matrix to an L2 norm of at most ``bound``; a non-finite row becomes zero.

    Privacy: afterwards no unit's row is longer than ``bound``, whatever it held. Computed in float32 or better; rows
    are first scaled by their largest entry, so that squaring neither overflows nor vanishes.
    """
    rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
    finite = torch.isfinite(rows).all(dim=1, keepdim=True)
    rows = torch.where(finite, rows, torch.zeros((), dtype=rows.dtype, device=rows.device))
    largest = rows.abs().amax(dim=1, keepdim=True)
    unit_rows = rows / torch.where(largest > 0, largest, torch.ones_like(largest))
    length = torch.linalg.vector_norm(unit_rows, dim=1, keepdim=True)  # between 1 and sqrt(values), or 0
    too_long = largest.double() * length.double() > bound * (1 - _ROUNDING)
    shortened = unit_rows * (bound * (1 - _ROUNDING) / length.clamp(min=1.0))
    return torch.where(too_long, shortened, rows)


@dataclass(frozen=True)
class MechanismConfig:
    """What a mechanism is planned to do: its clip bound C, the event of one execution, how often, and what for."""

    clip: float
    event: Event
    planned: int
    purpose: str


class GaussianMechanism:
    """What both mechanisms share: the account in the ledger, the noise, and the count of broken rows."""

    allowed_sampling: tuple[str, ...] = ()

    def __init__(self, ledger: Ledger, randomness: Randomness, config: MechanismConfig) -> None:
        if not (math.isfinite(config.clip) and config.clip > 0):
            raise InputError(f"clip: {config.clip} is not a positive finite bound; pass for example clip=1")
        if config.event.sampling.kind not in self.allowed_sampling:
            raise InputError(
                f"mechanism: {type(self).__name__} cannot be accounted with {config.event.sampling.kind!r} sampling; "
                f"it knows {', '.join(self.allowed_sampling)}"
            )
        self.clip = config.clip
        self.account: Account = ledger.account(config.event, config.planned, config.purpose)
        self._randomness = randomness
        self._generators: dict[torch.device, torch.Generator] = {}
        self._rows_seen = 0
        self._rows_broken: Tensor | None = None

    def check_finite(self) -> None:
        """Raise when too many rows were not finite; they counted as zero, so nothing leaked, but nothing was learnt.

        Privacy: the count is private. A run that stops here releases nothing and counts as a run on this data.
        """
        broken = 0 if self._rows_broken is None else int(self._rows_broken)
        if broken > _NON_FINITE_LIMIT * self._rows_seen:
            raise UnderstudyError(
                f"training: more than {_NON_FINITE_LIMIT:.0%} of the private rows of {self.account.template.purpose!r} "
                "were not finite, so nothing is released; lower the learning rate or use a higher precision"
            )

    def _clip(self, rows_private: Tensor) -> Tensor:
        broken = (~torch.isfinite(rows_private)).any(dim=1).sum()
        self._rows_broken = broken if self._rows_broken is None else self._rows_broken + broken
        self._rows_seen += len(rows_private)
        return clip_rows(rows_private, self.clip)

    def _noise(self, like: Tensor, deviation: float) -> Tensor:
        if like.device not in self._generators:
            self._generators[like.device] = self._randomness.generator(like.device)
        generator = self._generators[like.device]
        return deviation * torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


class GaussianSum(GaussianMechanism):
    """The noisy sum of clipped units: sum of clip(row, C) + Normal(0, (C * noise_multiplier)^2).

    Privacy: adding or removing one unit moves the sum by at most C (add-remove, sensitivity "C"), so each release is
    one Gaussian of the stated multiplier, subsampled as the event's sampling says. Units arrive in any number of
    pieces; noise is added once, after the last. An empty sum is released like any other.
    """

    allowed_sampling = ("none", "poisson")

    def accumulate(self, total: Tensor, rows_private: Tensor, slots: Tensor | None = None) -> None:
        """Add clipped rows to ``total``: (values,) without slots, (cells, values) with a cell number per row.

        Privacy: a row goes into one cell whole, so placing it changes neither its norm nor the sensitivity.
        """
        clipped = self._clip(rows_private).to(total.dtype)
        if slots is None:
            total += clipped.sum(dim=0)
        else:
            total.index_add_(0, slots, clipped)

    def release(self, total: Tensor, *, block: int = 1) -> Sanitized:
        """Add the noise to a sum made by ``accumulate``; spends one execution first."""
        event = self.account.spend(1, block)
        return Sanitized(self._noisy(total), event)

    def release_once(self, compute_total: Callable[[], Tensor], path: Path) -> Tensor:
        """The one noisy sum of a run, kept in ``path``: however often the run is killed, it is drawn and charged once.

        Privacy: the noisy sum is put on disk under a name that nothing reads, then the execution is recorded, then the
        file gets its name. A crash before the record discards it unused; a crash after it finds the result again. A
        recorded execution whose result is gone is not repeated: BudgetError; nor is a result without its record.
        """
        pending = path.with_suffix(".pending")
        if self.account.reserved == 0 and path.exists():
            raise InputError(
                f"ledger: {path} exists, but the ledger does not hold the execution that made it; its spending is "
                "unknown, so the run cannot go on"
            )
        if self.account.reserved == 0:
            write_tensors(pending, {"total_dp": self._noisy(compute_total())})
            self.account.spend(1)
        if pending.exists():
            pending.replace(path)
        if not path.exists():
            raise BudgetError(
                f"budget: the result of {self.account.template.purpose!r} was paid for, but {path} is gone"
            )
        return read_tensors(path)[0]["total_dp"]

    def _noisy(self, total: Tensor) -> Tensor:
        return total + self._noise(total, self.clip * self.account.template.noise_multiplier)


class GaussianAnswers(GaussianMechanism):
    """One noisy answer per query: clip(row, C) + Normal(0, (2 * C * noise_multiplier)^2), fresh noise in every row.

    Privacy: a query is answered from one subset of the units; another subset, or the same one with a unit more or less,
    gives another row within C of zero, so two answers differ by at most 2C (sensitivity "2C"). With secret and
    independent, uniform routing over K subsets each answer is one ``routed`` event (the proof is in docs/privacy.md).
    """

    allowed_sampling = ("none", "routed", "revealed")

    def answer(self, rows_private: Tensor, *, block: int = 1) -> Sanitized:
        """Sanitize a (queries, values) matrix, one execution per row; the answers keep the order of the queries."""
        event = self.account.spend(len(rows_private), block)
        clipped = self._clip(rows_private)
        return Sanitized(clipped + self._noise(clipped, 2 * self.clip * event.noise_multiplier), event)
