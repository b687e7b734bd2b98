"""Clients for data that name none, so that a federation can be tried on any images, and the data of one without any."""

from __future__ import annotations

import numpy as np

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.data.options import positive_whole
from understudy.errors import InputError


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
    return ImageDataset(data.name, domain, data.images, data.labels, owners)


def no_records(domain: Domain, name: str) -> ImageDataset:
    """A data set without a single record under a declared domain: what a server holds, or a client with no images."""
    labels = np.zeros(0, dtype=np.int64) if domain.labelled else None
    return ImageDataset(name, domain, np.zeros((0, *domain.shape), dtype=np.uint8), labels)
