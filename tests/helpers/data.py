"""Tiny data sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset, with_clients

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


def dealt(case: str, data: ImageDataset) -> ImageDataset:
    """The data as a case needs them: dealt out to clients for a federated method."""
    clients = case_of(case).clients
    return data if clients is None else with_clients(data, clients)
