"""Randomness for noise, routing and sampling: operating-system entropy, or a seed that marks the run as not releasable.

Privacy: whoever can predict the noise can subtract it. By default every stream is keyed from the operating system, the
key is never logged or saved, and a resumed run draws a new one, so no noise vector is used twice. A seed is for tests
and comparisons only; it stamps the certificate, and ``verify`` refuses the stamp.
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

import torch

OS_ENTROPY = "os-entropy"
SEEDED = "seeded: not for release"


class BitSource(Protocol):
    """Anything that hands out uniformly random bytes."""

    def __call__(self, count: int, /) -> bytes:
        """Return ``count`` random bytes."""
        ...


class Randomness:
    """One source of randomness for a run; hands out bytes and keyed torch generators."""

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._drawn = 0

    @property
    def stamp(self) -> str:
        """What a certificate says about the source."""
        return OS_ENTROPY if self._seed is None else SEEDED

    def bits(self, count: int) -> bytes:
        """``count`` random bytes."""
        if self._seed is None:
            return os.urandom(count)
        self._drawn += 1
        return hashlib.shake_256(f"understudy:{self._seed}:{self._drawn}".encode()).digest(count)

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A torch generator on ``device`` with a fresh 64-bit key of its own."""
        generator = torch.Generator(device=device)
        generator.manual_seed(int.from_bytes(self.bits(8), "little") & (2**63 - 1))
        return generator
