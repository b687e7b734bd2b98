"""Disjoint subsets as a padded table on the device, and batches drawn inside each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.engines.records import StoredRows
from understudy.errors import InputError


@dataclass(frozen=True)
class SubsetTable:
    """The records of each subset: ``members`` (K, longest) padded with zeros, and ``sizes`` (K,).

    Privacy: both are private; they stay in the run folder.
    """

    members: Tensor
    sizes: Tensor

    @classmethod
    def from_assignment(cls, assignment: Tensor, subsets: int) -> SubsetTable:
        """From each record's subset index (records,), every index in 0..subsets-1; a subset may stay empty.

        Privacy: that no record is in two subsets, on which the guarantee rests, is checked whenever a table is made.
        """
        if len(assignment) and (int(assignment.min()) < 0 or int(assignment.max()) >= subsets):
            raise InputError(f"assignment: a subset index lies outside 0..{subsets - 1}; draw it for {subsets} subsets")
        sizes = torch.bincount(assignment, minlength=subsets)
        order = torch.argsort(assignment, stable=True)
        starts = sizes.cumsum(0) - sizes
        places = torch.arange(len(order), device=order.device) - starts[assignment[order]]
        members = order.new_zeros(subsets, max(1, int(sizes.max())))
        members[assignment[order], places] = order
        table = cls(members, sizes)
        table.check_disjoint(len(assignment))
        return table

    def check_disjoint(self, records: int) -> None:
        """Every record occurs in exactly one row, once."""
        used = torch.arange(self.members.shape[1], device=self.sizes.device) < self.sizes[:, None]
        times = torch.bincount(self.members[used], minlength=records)
        if len(times) != records or not bool((times == 1).all()):
            raise InputError("partition: subsets are not disjoint, so the guarantee fails; start a new run")

    def to(self, device: torch.device) -> SubsetTable:
        """The same table on a device."""
        return SubsetTable(self.members.to(device), self.sizes.to(device))

    @property
    def nonempty(self) -> Tensor:
        """Which subsets (K,) hold any record: the ``active`` of a bank."""
        return self.sizes > 0

    def draw(self, critics: slice | Tensor, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Record indices (k, batch), uniform with replacement inside each subset; -1 where a subset is empty.

        Privacy: row k depends on subset k and on randomness of fixed shape; the draw is never released.
        """
        sizes = self.sizes[critics].unsqueeze(1)
        uniform = torch.rand(len(sizes), batch, device=sizes.device, generator=generator)
        places = (uniform * sizes).long().minimum(sizes - 1).clamp_min(0)
        return torch.where(sizes > 0, self.members[critics].gather(1, places), -1)


@dataclass(frozen=True)
class PrivateRecords:
    """All records: images (records, channels, rows, columns) on the device, or those of a data store on disk; labels,
    and who belongs to which subset.
    """

    images: Tensor | StoredRows
    labels: Tensor | None
    table: SubsetTable


def take(images: Tensor | StoredRows, labels: Tensor | None, records: Tensor) -> tuple[Tensor, Tensor | None]:
    """Images (k, batch, ...) as floats in 0..1, and labels, of drawn records; zeros where the index is -1.

    Privacy: returns private records, each to the critic in whose row it was drawn and to no other.
    """
    if isinstance(images, Tensor) and not len(images):  # a data set may be empty, as a neighbour of one record is
        images = images.new_zeros((1, *images.shape[1:]))
        labels = labels.new_zeros(1) if labels is not None else None
    found = records >= 0
    places = records.clamp_min(0)
    chosen = images[places]
    chosen = chosen.float() / 255 if chosen.dtype == torch.uint8 else chosen.float()
    chosen = chosen * found.view(*found.shape, *([1] * (chosen.dim() - found.dim())))
    return chosen, torch.where(found, labels[places], 0) if labels is not None else None
