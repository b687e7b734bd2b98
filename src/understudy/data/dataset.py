"""``ImageDataset``: private images in memory, together with the domain that was declared for them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from understudy.data.domain import Domain, positive_whole
from understudy.errors import InputError

Unit = Literal["record", "client", "person"]
STORED_RANGE = (0.0, 255.0)


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images as 8-bit integers (N, channels, height, width) with optional labels, clients and people.

    Values live in 0..255 whatever the source held, because released images do; ``from_arrays`` maps a declared range
    to it. Arrays are not copied: do not change them afterwards. Networks take channels first, so that is how ``images``
    are stored; ``pictures`` shows the same memory with channels last, as ``Release.sample`` gives images.

    Privacy: ``images``, ``pictures``, ``labels``, ``client_ids``, ``people`` and ``len()`` are private. Only ``domain``
    and ``name`` are public, and nothing here compares the nominal records, clients or people of ``domain`` with the
    true counts.
    """

    name: str
    domain: Domain
    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None = None
    client_ids: NDArray[np.int64] | None = None
    people: NDArray[np.int64] | None = None  # whom each record is of; a person with all records is a unit

    def __post_init__(self) -> None:
        _check_images(self.images, self.domain)
        _check_labels(self.labels, self.domain, len(self.images))
        for name, column, whom in (("client_ids", self.client_ids, "clients"), ("people", self.people, "people")):
            if column is not None:
                _check_dtype(name, column, np.int64)
                check_column(name, column, len(self.images))
                if column.size and column.min() < 0:
                    raise InputError(f"{name}: found {column.min()}; number the {whom} from 0")

    @property
    def pictures(self) -> NDArray[np.uint8]:
        """The images with channels last, (N, H, W) or (N, H, W, 3), as a release draws them. Privacy: private."""
        return self.images[:, 0] if self.images.shape[1] == 1 else self.images.transpose(0, 2, 3, 1)

    def __len__(self) -> int:
        """The true number of records. Privacy: private; rates and normalisers use ``domain.nominal_records``."""
        return len(self.images)

    def __repr__(self) -> str:
        """Public facts only, so that a log line cannot give away the true number of records."""
        return f"ImageDataset({self.name!r}, {'; '.join(self.domain.assumed_public())})"

    def subset(self, indices: NDArray[Any]) -> ImageDataset:
        """The records at ``indices`` (none is allowed) under the same declared domain."""
        return ImageDataset(
            self.name,
            self.domain,
            self.images[indices],
            None if self.labels is None else self.labels[indices],
            None if self.client_ids is None else self.client_ids[indices],
            None if self.people is None else self.people[indices],
        )

    def unit_of_record(self, unit: Unit) -> NDArray[np.int64]:
        """For each record the number of its unit, counted from 0 without gaps. Privacy: private."""
        if unit == "record":
            return np.arange(len(self), dtype=np.int64)
        return np.unique(self._units(unit), return_inverse=True)[1].astype(np.int64)

    def nominal_units(self, unit: Unit) -> int:
        """The declared, public number of units: what rates and subset counts are held against."""
        if unit == "record":
            return self.domain.nominal_records
        self._units(unit)
        nominal = self.domain.nominal_clients if unit == "client" else self.domain.nominal_people
        if nominal is None:
            name = "nominal_clients" if unit == "client" else "nominal_people"
            raise InputError(f"unit: {unit!r} was asked, but {name} was not declared; pass {name}=N")
        return nominal

    def fingerprint(self) -> str:
        """SHA-256 of the records in order, to recognise the same data on resume.

        Privacy: private (it confirms a guess of the data); it stays in the run folder.
        """
        digest = hashlib.sha256()
        told = () if self.people is None else (self.people,)  # data without people keep the fingerprint they had
        for column in (self.images, self.labels, self.client_ids, *told):
            header = "none" if column is None else f"{column.dtype.str}{column.shape}"
            digest.update(header.encode() + b"\n")
            if column is not None:
                digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def _units(self, unit: Unit) -> NDArray[np.int64]:
        column = self.client_ids if unit == "client" else self.people
        if column is None:
            kind, way_out = ("clients", "clients=True") if unit == "client" else ("people", "person=column:NAME, say,")
            raise InputError(
                f"unit: {unit!r} was asked, but the data set has no {kind}; load it with {way_out} or use 'record'"
            )
        return column


def check_column(name: str, column: NDArray[Any], records: int) -> None:
    """One value per record."""
    if column.ndim != 1:
        raise InputError(f"{name}: shape {column.shape}; pass one whole number per record, shape ({records},)")
    if len(column) != records:
        raise InputError(f"{name}: {len(column)} values for {records} images; pass one per image")


def _check_dtype(name: str, array: NDArray[Any], dtype: type[np.generic]) -> None:
    found = getattr(array, "dtype", type(array).__name__)
    if found != dtype:
        raise InputError(f"{name}: type {found}, expected {np.dtype(dtype)}; build the set with from_arrays")


def _check_images(images: NDArray[Any], domain: Domain) -> None:
    _check_dtype("images", images, np.uint8)
    if images.ndim != 4 or images.shape[1:] != domain.shape:
        expected = "x".join(map(str, domain.shape))
        raise InputError(f"images: shape {images.shape}, but {expected} was declared; pass shape (N, {expected})")
    if domain.value_range != STORED_RANGE:
        raise InputError(
            f"value_range: {domain.value_range}, but images are stored in 0..255; from_arrays maps a declared range"
        )


def _check_labels(labels: NDArray[Any] | None, domain: Domain, records: int) -> None:
    if labels is None:
        if domain.classes is not None:
            raise InputError(f"labels: none, but classes={domain.classes} was declared; pass labels or leave it out")
        return
    if domain.classes is None:
        raise InputError("classes: labels were passed, but the classes were not declared; pass classes=N")
    _check_dtype("labels", labels, np.int64)
    check_column("labels", labels, records)
    check_label_range(labels, domain.classes)


def check_label_range(labels: NDArray[np.int64], classes: int) -> None:
    """Labels are 0..classes-1; anything else is an error, never a silent new class."""
    if not labels.size:
        return
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0:
        raise InputError(f"labels: found {lowest}, but labels run from 0 to {classes - 1}; renumber or drop them")
    if highest >= classes:
        raise InputError(
            f"labels: found {highest}, but classes={classes} was declared; pass classes={highest + 1} or drop them"
        )


def with_clients(data: ImageDataset, clients: int | None) -> ImageDataset:
    """The data with ``clients`` enrolled; records of data without clients are dealt out in turn: a simulation.

    Privacy: the number of enrolled clients is declared and public. What is protected is all that one client holds; who
    holds what after dealing is arbitrary, so such a run shows how a federation works and protects nobody in particular.
    """
    if clients is None:
        if data.client_ids is None or data.domain.nominal_clients is None:
            raise InputError("clients: the data name none; pass --clients N to deal the records out to N of them")
        return data
    enrolled = positive_whole("clients", clients, example=100)
    domain = Domain.model_validate(data.domain.model_dump() | {"nominal_clients": enrolled})
    owners = data.client_ids
    if owners is None:
        owners = np.arange(len(data), dtype=np.int64) % enrolled
    return ImageDataset(data.name, domain, data.images, data.labels, owners, data.people)


def check_enrolled(data: ImageDataset, enrolled: int) -> None:
    """Refuse data of more clients than are enrolled, before a run begins.

    Privacy: enrolment is public and part of the contract with every client, unlike a nominal number of records; data
    that break it are not trained on at all. Who hears of it is the owner of the data.
    """
    if data.client_ids is not None and len(np.unique(data.client_ids)) > enrolled:
        raise InputError(
            f"clients: the data hold {len(np.unique(data.client_ids))} clients, but nominal_clients={enrolled} are"
            " enrolled; declare nominal_clients as the number of enrolled clients"
        )


def no_records(domain: Domain, name: str) -> ImageDataset:
    """A data set without a single record under a declared domain: what a server holds, or a client with no images."""
    labels = np.zeros(0, dtype=np.int64) if domain.labelled else None
    return ImageDataset(name, domain, np.zeros((0, *domain.shape), dtype=np.uint8), labels)
