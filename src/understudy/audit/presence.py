"""Who is in a noisy sum: the best linear estimate, from the rows that everybody would have added.

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

import torch
from torch import Tensor

NOISE_LEVELS = (1.0, 0.1, 0.03, 0.01, 0.001, 0.0001)  # of the claimed noise: one that is missing is found by looking
_RIDGE = 1e-12


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
