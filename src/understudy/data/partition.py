"""Disjoint subsets for critics and teachers: each unit goes to one of K subsets, independently and uniformly."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from understudy.data.dataset import ImageDataset, Unit
from understudy.data.domain import positive_whole
from understudy.data.npz import array_names, read_array, write_arrays
from understudy.data.sampling import Bits, uniform_integers
from understudy.errors import InputError

_ARRAYS = ("assignment", "subsets", "unit", "fingerprint")


@dataclass(frozen=True, eq=False)
class Partition:
    """Which subset each record belongs to.

    Privacy: every unit (a record, or a client or person with all records) is assigned independently of all others, so
    adding or removing one unit changes one subset and leaves the others as they are (privacy.md, section 2). A shuffled
    split into equal parts would not do: there one unit moves others. Subsets may be empty. Assignment, sizes and the
    saved file are private and stay in the run folder.
    """

    assignment: NDArray[np.int64]  # subset of each record
    subsets: int
    unit: Unit = "record"

    def __post_init__(self) -> None:
        if self.subsets < 1:
            raise InputError(f"subsets: {self.subsets}; pass at least 1")
        numbers = self.assignment
        if numbers.ndim != 1 or numbers.dtype != np.int64:
            raise InputError(f"partition: assignment is {numbers.dtype} of shape {numbers.shape}; draw it again")
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < self.subsets):
            raise InputError(f"partition: a record lies outside the {self.subsets} subsets; draw it again")

    @classmethod
    def draw(cls, data: ImageDataset, subsets: int, *, unit: Unit = "record", bits: Bits = os.urandom) -> Partition:
        """Assign every unit of ``data`` to one of ``subsets`` subsets.

        Privacy: ``subsets`` is held against the declared number of units, never the true one. ``bits`` must be
        operating-system entropy in a run that is released.
        """
        nominal = data.nominal_units(unit)
        subsets = positive_whole("subsets", subsets, example=100)
        if subsets > nominal:
            raise InputError(
                f"subsets: {subsets}, but only {nominal} nominal {unit}s are declared; pass at most {nominal}"
            )
        unit_of_record = data.unit_of_record(unit)
        units = int(unit_of_record.max()) + 1 if unit_of_record.size else 0
        return cls(uniform_integers(units, subsets, bits)[unit_of_record], subsets, unit)

    def check(self, data: ImageDataset) -> None:
        """Refuse a partition that does not fit ``data``, or that spreads one unit over two subsets."""
        if len(self.assignment) != len(data):
            raise InputError("partition: made for another data set; start a new run")
        units = data.unit_of_record(self.unit)
        _, first = np.unique(units, return_index=True)
        if not np.array_equal(self.assignment, self.assignment[first][units]):
            raise InputError(f"partition: a {self.unit} lies in two subsets, so the guarantee fails; start a new run")

    def save(self, path: Path, data: ImageDataset) -> None:
        """Write the partition into the private run folder (numbers and text only), in one step."""
        self.check(data)
        write_arrays(
            path,
            {
                "assignment": self.assignment,
                "subsets": np.array(self.subsets, dtype=np.int64),
                "unit": np.array(self.unit),
                "fingerprint": np.array(data.fingerprint()),
            },
        )

    @classmethod
    def load(cls, path: Path, data: ImageDataset) -> Partition:
        """Read a partition back for the very same data."""
        if not path.is_file():
            raise InputError(f"{path}: the partition of this run is missing; start a new run")
        if set(array_names(path)) != set(_ARRAYS):
            raise InputError(f"{path}: not a partition; start a new run")
        assignment, subsets, unit, fingerprint = (read_array(path, name) for name in _ARRAYS)
        if unit.item() not in get_args(Unit):
            raise InputError(f"{path}: unknown unit {unit.item()!r}; start a new run")
        if fingerprint.item() != data.fingerprint():
            raise InputError(f"{path}: the data changed since the partition was drawn; restore it or start a new run")
        partition = cls(assignment, int(subsets.item()), unit.item())
        partition.check(data)
        return partition
