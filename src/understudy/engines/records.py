"""The one door through which private rows reach a device, and the examples that a private step looks at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from understudy.data.dataset import ImageDataset, Unit
from understudy.data.store import StoredImages
from understudy.distributed import ALONE, Team

Selection = slice | NDArray[np.int64]
_ALL = slice(None)
_AT_ONCE = 2**25  # bytes of stored images on their way to a graphics card


class Rows(Protocol):
    """What holds images (N, C, H, W) and labels: a data set, or what somebody put beside one."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """8-bit images."""
        ...

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Their classes, if there are any."""
        ...


def load_rows(data: Rows, device: torch.device, selection: Selection = _ALL) -> tuple[Tensor, Tensor | None]:
    """8-bit images (N, C, H, W) and labels, if there are any, of some records.

    Privacy: nowhere else do private bytes become tensors. Both are private, and so is how many there are; they may go
    into a mechanism, or into what answers through one, and nowhere else. Nothing is spent here.
    """
    images_private = torch.from_numpy(data.images[selection]).to(device)
    return images_private, None if data.labels is None else torch.from_numpy(data.labels[selection]).to(device)


class StoredRows:
    """8-bit images of a data store, read from disk when records are asked for by number; one beyond the last is empty.

    Privacy: as ``load_rows``; what was asked for is known to nobody but this process and its disk.
    """

    def __init__(self, data: Rows, of: NDArray[np.int64] | None = None) -> None:
        self._data, self._of = data, of

    def __len__(self) -> int:
        return len(self._data.images if self._of is None else self._of)

    def __getitem__(self, records_private: Tensor) -> Tensor:
        """The images (..., C, H, W) of records with numbers of any shape (...)."""
        numbers = records_private.flatten()
        chosen = numbers.clamp(max=len(self) - 1).numpy()
        images = torch.from_numpy(self._data.images[chosen if self._of is None else self._of[chosen]])
        images[numbers == len(self)] = 0
        return images.unflatten(0, records_private.shape)


def load_all(
    data: Rows, device: torch.device, spare: int = 0, of: NDArray[np.int64] | None = None
) -> tuple[Tensor | StoredRows, Tensor | None]:
    """All 8-bit images, to be asked for by number, and labels; with so many empty records at the end.

    They are on the device, except those of a data store where the device is the processor: they stay on disk. Where
    ``of`` names records, there are no others, and the first that it names has number 0.

    Privacy: as ``load_rows``.
    """
    labels = None if data.labels is None else torch.from_numpy(data.labels if of is None else data.labels[of])
    labels = None if labels is None else labels.to(device)
    labels = None if labels is None else torch.cat([labels, labels.new_zeros(spare)]) if spare else labels
    if not isinstance(data.images, StoredImages) or (of is not None and not len(of)):
        images = load_rows(data, device, _ALL if of is None else of)[0]
        return torch.cat([images, images.new_zeros((spare, *images.shape[1:]))]) if spare else images, labels
    if device.type == "cpu":
        return StoredRows(data, of), labels
    count = len(data.images) if of is None else len(of)
    images = torch.zeros((count + spare, *data.images.shape[1:]), dtype=torch.uint8, device=device)
    at_once = max(1, _AT_ONCE // images[0].numel())
    for start in range(0, count, at_once):
        some = slice(start, min(start + at_once, count))
        images[some] = torch.from_numpy(data.images[some if of is None else of[some]]).to(device)
    return images, labels


def load_batch(data: Rows, selection: Selection, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] (N, C, H, W) and labels (zeros for unlabelled data) of some records.

    Privacy: as ``load_rows``.
    """
    images_private, labels_private = load_rows(data, device, selection)
    if labels_private is None:
        labels_private = torch.zeros(len(images_private), dtype=torch.long, device=device)
    return images_private.float() / 255, labels_private


def own_records(data: ImageDataset, unit: Unit, team: Team) -> range | NDArray[np.int64]:
    """Numbers of the records of the units that a process owns: unit u is that of process u mod N; alone all of them.

    Privacy: private. Every unit is one process's, with all its records.
    """
    if unit == "record" or team.size == 1:
        return range(team.rank, len(data), team.size)
    return np.flatnonzero(data.unit_of_record(unit) % team.size == team.rank)


def selection_of(records: range | NDArray[np.int64]) -> Selection:
    """Records by number as an array is asked for them."""
    return slice(records.start, records.stop, records.step) if isinstance(records, range) else records


def _own_people(data: ImageDataset, team: Team) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the records of a process's people, and whom each is of, counted from 0 among these people."""
    records = np.asarray(own_records(data, "person", team), dtype=np.int64)
    return records, data.unit_of_record("person")[records] // team.size


@dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W) in [0, 1], their labels, +1 for records and -1 for public companions, and which units count.

    Each is a unit. Where a unit is a person, ``images`` (N, m, C, H, W) and ``labels`` (N, m) hold m of the person's
    images, and ``weights`` (N, m) what each counts: one over their number, or nothing where a person has fewer.

    Privacy: the first units are private, and so is which of them count.
    """

    images: Tensor
    labels: Tensor | None
    signs: Tensor
    present: Tensor
    weights: Tensor | None = None

    def chunks(self, units: int) -> list[Examples]:
        """The same examples in pieces of about equal size, of at most ``units`` units."""
        pieces = max(1, -(-len(self.images) // units))

        def cut(part: Tensor | None) -> tuple[Tensor | None, ...]:
            return (None,) * pieces if part is None else part.tensor_split(pieces)

        parts = (self.images, self.labels, self.signs, self.present, self.weights)
        return [Examples(*piece) for piece in zip(*map(cut, parts), strict=True)]

    def followed_by(self, others: Examples) -> Examples:
        """These, then the others, as one batch."""

        def joined(ours: Tensor | None, theirs: Tensor | None) -> Tensor | None:
            return None if ours is None or theirs is None else torch.cat([ours, theirs])

        return Examples(
            torch.cat([self.images, others.images]),
            joined(self.labels, others.labels),
            torch.cat([self.signs, others.signs]),
            torch.cat([self.present, others.present]),
            joined(self.weights, others.weights),
        )

    def grouped(self, rows: int) -> Examples:
        """Public examples, ``rows`` of them taken together as one unit, as the images of a person are."""
        if rows == 1:
            return self
        units = len(self.images) // rows
        return Examples(
            self.images.unflatten(0, (units, rows)),
            None if self.labels is None else self.labels.unflatten(0, (units, rows)),
            self.signs[::rows],
            self.present[::rows],
            self.images.new_full((units, rows), 1 / rows, dtype=torch.float32),
        )

    def flat(self) -> Examples:
        """Every image for itself, those of a unit one after the other."""
        if self.weights is None:
            return self
        rows = self.weights.shape[1]
        return Examples(
            self.images.flatten(0, 1),
            None if self.labels is None else self.labels.flatten(),
            self.signs.repeat_interleave(rows),
            self.present.repeat_interleave(rows),
            self.weights.flatten(),
        )


class Records:
    """All private records on the device, with an empty one at the end for the places that a batch does not fill.

    Those of a data store stay on disk where the device is the processor.

    A unit is a record or, where the data are of people, a person, of whom ``images_per_person`` images are shown.
    """

    def __init__(
        self, data: ImageDataset, device: torch.device, number_type: torch.dtype, images_per_person: int = 1
    ) -> None:
        self._images, self._labels = load_all(data, device, spare=1)
        self._type, self._shape = number_type, tuple(data.images.shape[1:])
        self.people = None if data.domain.unit == "record" else People.of(data, device, images_per_person)
        self.filler = len(data.images) if self.people is None else len(self.people.sizes) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record."""
        return self._shape

    def gather(self, indices_private: Tensor, random: torch.Generator | None = None) -> Examples:
        """The units with these numbers; of a person some images, which are drawn afresh.

        Privacy: private, to be clipped one by one; places with the filler's number do not count. Which images of a
        person are shown is secret chance that no other person has a part in, and earns no amplification.
        """
        present, places = indices_private != self.filler, self._places(indices_private)
        signs = torch.ones(len(indices_private), device=indices_private.device)
        if self.people is None:
            return Examples(*self._rows(places), signs, present)
        chosen, weights = self.people.draw(places, random)
        images, labels = self._rows(chosen.flatten())
        together = chosen.shape
        if together[1] == 1:  # one image of everybody: as records are
            return Examples(images, labels, signs, present)
        labels = None if labels is None else labels.unflatten(0, together)
        return Examples(images.unflatten(0, together), labels, signs, present, weights)

    def _places(self, units_private: Tensor) -> Tensor:
        """Where units are held: at their numbers, where all of them are."""
        return units_private

    def _rows(self, records_private: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images in [0, 1] and labels of some records."""
        if isinstance(self._images, StoredRows):
            images = self._images[records_private]
        else:
            images = self._images.index_select(0, records_private)
        images = images.to(self._type) / 255
        return images, None if self._labels is None else self._labels.index_select(0, records_private)


@dataclass(frozen=True)
class People:
    """The records of each person: ``order`` holds those of one after those of another, from ``starts`` on.

    The last person is nobody. Privacy: private, the number of people and of their images included; what is drawn for
    one person, and what it takes to draw it, does not hang on how many images another has.
    """

    order: Tensor
    starts: Tensor
    sizes: Tensor
    shown: int  # images of a person, at most: public

    @classmethod
    def of(cls, data: ImageDataset, device: torch.device, shown: int, team: Team = ALONE) -> People:
        """The table of a data set; of several processes each has that of its own people and records."""
        owners = torch.from_numpy(_own_people(data, team)[1])
        people = int(owners.max()) + 1 if len(owners) else 0
        sizes = torch.bincount(owners, minlength=people + 1)
        nobody = torch.tensor([len(owners)])  # the number of no record
        order = torch.cat([torch.argsort(owners, stable=True), nobody])
        return cls(order.to(device), (sizes.cumsum(0) - sizes).to(device), sizes.to(device), shown)

    @property
    def nobody(self) -> int:
        """The number of no record."""
        return len(self.order) - 1

    def records_of(self, person: int) -> Tensor:
        """Numbers of all records of one person."""
        start = int(self.starts[person])
        return self.order[start : start + int(self.sizes[person])]

    def draw(self, people_private: Tensor, random: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Numbers (people, shown) of distinct records, drawn uniformly from those of each person, and their weights.

        Where a person has fewer, the places left over are nobody's and count nothing. As R. Floyd draws a subset: place
        i takes one of the first n - shown + i + 1, or the last of them where that is taken already.
        """
        sizes, starts = self.sizes[people_private], self.starts[people_private]
        shape, device = (len(people_private), self.shown), self.order.device
        chance = torch.rand(shape, generator=random, device=device, dtype=torch.float64)
        last = (sizes[:, None] - self.shown).clamp(min=0) + torch.arange(self.shown, device=device)
        drawn = torch.minimum((chance * (last + 1)).long(), last)
        positions = last.clone()  # all of them, where there are no more
        for place in range(self.shown):
            taken = (positions[:, :place] == drawn[:, place, None]).any(dim=1) | (sizes <= self.shown)
            positions[:, place] = torch.where(taken, last[:, place], drawn[:, place])
        counted = sizes.clamp(max=self.shown)
        places = torch.arange(self.shown, device=device) < counted[:, None]
        chosen = self.order[torch.where(places, starts[:, None] + positions, self.nobody)]
        return chosen, places / counted.clamp(min=1)[:, None].float()


def people_in_chunks(
    data: ImageDataset, most_records: int, most_people: int, team: Team = ALONE
) -> Iterator[tuple[NDArray[np.int64], Tensor, int]]:
    """Record numbers of some people at a time, whom each is of (counted from 0 in the chunk), and how many people.

    Of several processes each gets its own people.

    Privacy: private. A person is never divided; one with more records than ``most_records`` is a chunk alone.
    """
    own, owners = _own_people(data, team)
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(owners[order]) > 0, True]) if len(order) else np.zeros(1, np.int64)
    first, people = 0, len(starts) - 1
    while first < people:
        last = first + 1
        while last < people and last - first < most_people and starts[last + 1] - starts[first] <= most_records:
            last += 1
        records = order[starts[first] : starts[last]]
        yield own[records], torch.from_numpy(owners[records] - first), last - first
        first = last
