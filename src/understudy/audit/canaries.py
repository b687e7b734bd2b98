"""Canaries, made-up units that a run may or may not have seen, and the best estimate of which are in a noisy sum.

An attacker who knows all units but not who took part sees s = sum over units j of b_j c_j + noise, with known rows c_j
and secret shares b_j of means p_j and deviations v_j. With V = diag(v) and one row of C (units, values) for each unit,
the linear estimate of least mean square error is

    b - p = V^2 C (C' V^2 C + noise^2)^-1 (s - C' p),

which looks through units that resemble each other, as a product of s with each row alone would not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from understudy.audit.bounds import Numbers
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.data.sampling import Bits, coin_flips, uniform_integers
from understudy.errors import InputError

NOISE_LEVELS = (1.0, 0.1, 0.03, 0.01, 0.001, 0.0001)  # of the claimed noise: one that is missing is found by looking
_FEWEST = 20
_RIDGE = 1e-12


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
    """Public data and the included canaries as one data set; each canary is a client, or a person, of its own.

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
    people = None
    if data.domain.nominal_people is not None:
        others = data.unit_of_record("person")
        declared |= {"nominal_people": data.domain.nominal_people + len(canaries) // 2}
        people = np.concatenate([others, len(data) + taken]).astype(np.int64)
    labels = None
    if data.labels is not None and canaries.labels is not None:
        labels = np.concatenate([data.labels, canaries.labels[taken]])
    domain = Domain.model_validate(data.domain.model_dump() | declared)
    images = np.concatenate([data.images, canaries.images[taken]])
    return ImageDataset(f"{data.name} with canaries of an audit", domain, images, labels, clients, people)


@dataclass(frozen=True)
class Units:
    """Rows (units, values) that may be in a sum, with the mean and the deviation of how often each of them is."""

    rows: Tensor
    mean: float
    deviation: float

    @classmethod
    def by_coin(cls, rows: Tensor, chance: float) -> Units:
        """Units that are in the sum once, each with the same chance."""
        return cls(rows, chance, math.sqrt(chance * (1 - chance)))


def presence(total_dp: Tensor, units: Sequence[Units], noise: float) -> Tensor:
    """How much of each of the first units a noisy sum holds, beyond the mean and up to a factor: (noise levels, units).

    ``noise`` is the claimed deviation; there is one estimate for each share of it in ``NOISE_LEVELS``.
    """
    rest = total_dp.detach().cpu().double() - sum(each.mean * each.rows.double().sum(dim=0) for each in units)
    known = [each.rows.double() * each.deviation for each in units if each.deviation > 0]
    rows, wanted = torch.cat(known), len(units[0].rows)
    if len(rows) <= rows.shape[1]:
        lengths, axes = torch.linalg.eigh(rows @ rows.T)
        along, back = axes.T @ (rows @ rest), axes[:wanted]
    else:
        lengths, axes = torch.linalg.eigh(rows.T @ rows)
        along, back = axes.T @ rest, rows[:wanted] @ axes
    floors = [(level * noise) ** 2 + _RIDGE for level in NOISE_LEVELS]
    return torch.stack([back @ (along / (lengths.clamp(min=0) + floor)) for floor in floors])
