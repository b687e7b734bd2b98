"""Randomness for noise, routing and sampling: operating-system entropy, or a seed that marks the run as not releasable.

Privacy: whoever can predict the noise can subtract it. By default every stream is keyed from the operating system, the
key is never logged or saved, and a resumed run draws a new one, so no noise vector is used twice. A seed is for tests
and comparisons only; it stamps the certificate, and ``verify`` refuses the stamp.
"""

from __future__ import annotations

import hashlib
import math
import os
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.privacy.randomness.words import KEY_BYTES, LOW_BITS, KeyedWords

OS_ENTROPY = "os-entropy"
SEEDED = "seeded: not for release"


class BitSource(Protocol):
    """Anything that hands out uniformly random bytes."""

    def __call__(self, count: int, /) -> bytes:
        """Return ``count`` random bytes."""
        ...


class NoiseStream:
    """Standard normal values in double precision from one keyed stream: what mechanisms add to private values.

    Privacy: torch's own generators keep 32 bits of their key on the CPU and 64 on a GPU, are not made to withstand
    someone who sees a part of their output, and single-precision normals end at 5.8 deviations, where the certified
    tail does not. So values come from a cryptographic stream (``KeyedWords``), in double precision, out to 9.4
    deviations; what lies beyond has probability 5e-21.
    """

    def __init__(self, key: bytes, device: torch.device) -> None:
        self._words = KeyedWords(key, device)

    def draw(self, shape: torch.Size) -> Tensor:
        """Fresh values of that shape; none is ever drawn twice."""
        return self._words.normals(shape.numel()).view(shape)


class CoinStream:
    """Independent coin flips from one keyed stream, on the device: who takes part in a Poisson-sampled batch.

    Privacy: a flip compares 63 uniform bits with ``floor(rate * 2**63)``, so it comes up with a probability that is
    never above ``rate`` and less than 2**-63 below it; no floating-point key rounds it up. Bits from ``KeyedWords``.
    """

    def __init__(self, key: bytes, device: torch.device) -> None:
        self._words, self._device = KeyedWords(key, device), device

    def flip(self, shape: tuple[int, ...], rate: float) -> Tensor:
        """Truth values of that shape, each true with probability ``rate``."""
        if not 0 <= rate <= 1:
            raise InputError(f"rate: {rate} does not lie in 0..1; pass a sampling rate such as 0.01")
        threshold = int(Fraction(rate) * 2**63)
        if threshold == 2**63:
            return torch.ones(shape, dtype=torch.bool, device=self._device)
        return (self._words.words(math.prod(shape)) & LOW_BITS).view(shape) < threshold


class Randomness:
    """One source of randomness for a run; hands out bytes, noise and coin streams, and keyed torch generators."""

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

    def noise(self, device: torch.device) -> NoiseStream:
        """A noise stream on ``device`` with a fresh key of its own."""
        return NoiseStream(self.bits(KEY_BYTES), device)

    def coins(self, device: torch.device) -> CoinStream:
        """A stream of coin flips on ``device`` with a fresh key of its own."""
        return CoinStream(self.bits(KEY_BYTES), device)

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A torch generator with a fresh key, for what nobody needs to keep secret (latents, weights, batches).

        Never for noise, and not for routing or sampling either: those use ``noise``, ``coins`` and ``bits``.
        """
        generator = torch.Generator(device=device)
        generator.manual_seed(int.from_bytes(self.bits(8), "little"))
        return generator
