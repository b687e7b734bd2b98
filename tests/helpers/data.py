"""Tiny data sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset, with_clients
from understudy.data.domain import Domain

from .cases import CLASSES, RECORDS, case_of


def tiny_data(kind: str = "labelled", *, records: int = RECORDS, nominal: int = RECORDS, seed: int = 0) -> ImageDataset:
    """Random 8x8 images: ``labelled`` (grey, three classes), ``unlabelled`` (grey) or ``rgb`` (three classes)."""
    random = np.random.default_rng(seed)
    shape = (records, 8, 8, 3) if kind == "rgb" else (records, 8, 8)
    images = random.integers(0, 256, shape, dtype=np.uint8)
    if kind == "unlabelled":
        return from_arrays(images, records=nominal)
    return from_arrays(images, random.integers(0, CLASSES, records), classes=CLASSES, records=nominal)


def with_labels(labels: Sequence[int]) -> ImageDataset:
    """One record for each label (none for none), under the declared domain of ``tiny_data``."""
    data = tiny_data(records=max(1, len(labels)))
    return ImageDataset(data.name, data.domain, data.images[: len(labels)], np.array(labels, dtype=np.int64))


def of_people(sizes: Sequence[int], *, nominal: int = 10, kind: str = "labelled", seed: int = 0) -> ImageDataset:
    """One person for each number, with so many images of any class; their records lie in no order.

    Whose images are whose hangs on ``seed`` and the person's place in ``sizes`` alone, so that somebody can be removed.
    """
    none = tiny_data(kind, records=1)
    parts = [tiny_data(kind, records=size, seed=1000 * seed + number) for number, size in enumerate(sizes)]
    images = np.concatenate([none.images[:0], *(part.images for part in parts)])
    labels = None
    if none.labels is not None:
        labels = np.concatenate([none.labels[:0], *(part.labels for part in parts if part.labels is not None)])
    domain = Domain.model_validate(none.domain.model_dump() | {"nominal_people": nominal})
    people = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    data = ImageDataset("people", domain, images, labels, people=people)
    return data.subset(np.random.default_rng(seed).permutation(len(people)))


def without_person(data: ImageDataset, person: int) -> ImageDataset:
    """The neighbour of a data set in which one person with all images is gone."""
    assert data.people is not None
    return data.subset(np.flatnonzero(data.people != person))


def dealt(case: str, data: ImageDataset) -> ImageDataset:
    """The data as a case needs them: dealt out to clients for a federated method."""
    clients = case_of(case).clients
    return data if clients is None else with_clients(data, clients)
