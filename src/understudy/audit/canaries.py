"""Canaries: made-up units that a run may or may not have seen, decided by one fair coin for each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.audit.bounds import Numbers
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.data.draws import Bits, coin_flips, uniform_integers
from understudy.errors import InputError

_FEWEST = 20


@dataclass(frozen=True)
class Canaries:
    """Images (m, C, H, W) that nothing in the data resembles, their labels, and which of them take part.

    Privacy: which take part is what an attack guesses; it must reach the run through its data alone.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    included: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.images)

    def patterns(self) -> Numbers:
        """The images (m, pixels) around zero and of norm one: almost at right angles to each other."""
        centred = self.images.reshape(len(self), -1) / 255.0 - 0.5
        return centred / np.linalg.norm(centred, axis=1, keepdims=True)


def make_canaries(domain: Domain, count: int, bits: Bits) -> Canaries:
    """Images of black and white pixels by coin flips, with uniform labels, each included with probability one half."""
    if count < _FEWEST:
        raise InputError(f"canaries: {count}; fewer than {_FEWEST} show nothing, so pass for example --canaries 1000")
    pixels = coin_flips(count * math.prod(domain.shape), 0.5, bits).reshape(count, *domain.shape)
    labels = None if domain.classes is None else uniform_integers(count, domain.classes, bits)
    return Canaries(pixels.astype(np.uint8) * 255, labels, coin_flips(count, 0.5, bits))


def with_canaries(data: ImageDataset, canaries: Canaries, *, as_clients: bool) -> ImageDataset:
    """Public data and the included canaries as one data set; as clients, each canary is a client of its own.

    Declared numbers count half of the canaries, and every one of them as an enrolled client, whoever is included.
    """
    taken = np.flatnonzero(canaries.included)
    declared = {"nominal_records": data.domain.nominal_records + len(canaries) // 2}
    clients = None
    if as_clients:
        owners = data.unit_of_record("client")
        enrolled = data.nominal_units("client")
        declared |= {"nominal_clients": enrolled + len(canaries)}
        clients = np.concatenate([owners, enrolled + taken]).astype(np.int64)
    labels = None
    if data.labels is not None and canaries.labels is not None:
        labels = np.concatenate([data.labels, canaries.labels[taken]])
    domain = Domain.model_validate(data.domain.model_dump() | declared)
    images = np.concatenate([data.images, canaries.images[taken]])
    return ImageDataset(f"{data.name} with canaries of an audit", domain, images, labels, clients)
