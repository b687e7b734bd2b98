"""Randomness for noise, routing and sampling: operating-system entropy, or a seed that marks the run as not releasable.

Privacy: whoever can predict the noise can subtract it. By default every stream is keyed from the operating system, the
key is never logged or saved, and a resumed run draws a new one, so no noise vector is used twice. A seed is for tests
and comparisons only; it stamps the certificate, and ``verify`` refuses the stamp.

Words and normal values come from a secret key of 256 bits, by functions made to withstand cryptanalysis. On the CPU a
block of words is SHAKE-256 of the key and the number of the block (FIPS 202, in Python's standard library); on a CUDA
device it is ChaCha20 in one kernel (``chacha_kernel``), which must give a known answer first. Where it does not, or
without Triton, a CUDA device gets the words of the CPU: slower, never weaker.

Privacy: whoever does not know the key cannot tell the words from uniform ones, so noise and draws are those of the
guarantee for anyone with bounded computing power. The key is in memory only. Rounding to double precision stays: that
mechanisms add the noise in double precision and publish single-precision values is a mitigation, not a proof.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
import os
import threading
import warnings
from fractions import Fraction
from types import ModuleType

import torch
from torch import Tensor

from understudy.errors import InputError

OS_ENTROPY = "os-entropy"
SEEDED = "seeded: not for release"
KEY_BYTES = 32
LOW_BITS = 2**63 - 1
_TWISTER_BEGINS, _TWISTER_WORDS = 24, 624  # where the words of the Mersenne twister lie in torch's state, 8 bytes each
_CHACHA_OF_ZEROS = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")  # RFC 8439, A.1


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

    def secret_generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """A torch generator that nobody can try all keys of, for chance in what private units add to a sum.

        Privacy: such chance is dealt out to a batch place by place, so one unit more moves everybody else's. That is no
        loss as long as it is secret: its law is the same for every unit at every place. Who knew it would see the move.
        Torch keeps 32 bits of a seed on the CPU, few enough to try them all; here its whole state is drawn. On a GPU
        the key has 64 bits. Neither is made to withstand cryptanalysis; what is seen of it went through clip and noise.
        """
        key = self.bits(8 + 4 * _TWISTER_WORDS)
        generator = torch.Generator(device=device)
        generator.manual_seed(int.from_bytes(key[:8], "little"))
        if generator.device.type == "cpu":
            state = generator.get_state()
            words = torch.frombuffer(bytearray(key[8:]), dtype=torch.int32).long() & (2**32 - 1)
            state[_TWISTER_BEGINS : _TWISTER_BEGINS + 8 * _TWISTER_WORDS] = words.view(torch.uint8)
            generator.set_state(state)
        return generator


def own_seed(seed: int | None, rank: int) -> int | None:
    """The seed of one of several processes of a seeded run; without a seed each draws from its operating system.

    Privacy: no two processes may draw the same numbers.
    """
    if seed is None or rank == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"understudy:{seed}:process {rank}".encode()).digest()[:8], "little")


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


class KeyedWords:
    """A stream of uniformly random 64-bit words; nothing is ever handed out twice."""

    def __init__(self, key: bytes, device: torch.device) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"key: {len(key)} bytes, but {KEY_BYTES} are needed")
        self._key, self._device = key, device
        self._used = 0  # blocks of this stream
        self._lock, self._process = threading.Lock(), os.getpid()
        self._kernel = _chacha(device)
        words = torch.frombuffer(bytearray(key), dtype=torch.int32)
        self._key_on_device = words.to(device) if self._kernel else None

    def words(self, count: int) -> Tensor:
        """``count`` words on the device as int64, each of the 2**64 patterns equally likely."""
        if self._kernel is not None:
            first = self._take(-(-count // self._kernel.WORDS))
            drawn: Tensor = self._kernel.random_words(self._key_on_device, first, count)
            return drawn
        return self._hashed(count).to(self._device)

    def normals(self, count: int) -> Tensor:
        """``count`` standard normal values on the device, in double precision."""
        if self._kernel is not None:
            first = self._take(-(-count // self._kernel.WORDS))
            drawn: Tensor = self._kernel.random_normals(self._key_on_device, first, count)
            return drawn
        pairs = -(-count // 2)
        return _box_muller(self._hashed(2 * pairs).view(2, pairs))[:count].to(self._device)

    def _hashed(self, count: int) -> Tensor:
        """Words on the CPU: one block of the stream, as long as it is needed."""
        if count == 0:
            return torch.empty(0, dtype=torch.int64)
        block = hashlib.shake_256(self._key + self._take(1).to_bytes(16, "little")).digest(8 * count)
        return torch.frombuffer(bytearray(block), dtype=torch.int64)

    def _take(self, blocks: int) -> int:
        """The number of the first of so many blocks that nobody else gets: no other thread, and no forked process."""
        if os.getpid() != self._process:
            raise RuntimeError("a stream of noise was carried into a forked process, which would repeat it")
        with self._lock:
            first, self._used = self._used, self._used + blocks
        return first


def _box_muller(words: Tensor) -> Tensor:
    """Normal values (2n,) from words (2, n): a radius from the first row, an angle from the second."""
    uniform = words.bitwise_and(LOW_BITS).double()
    radius = uniform[0].add_(0.5).mul_(2.0**-63).log_().mul_(-2).sqrt_()
    angle = uniform[1].mul_(2 * math.pi * 2.0**-63)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


@functools.cache
def _chacha(device: torch.device) -> ModuleType | None:
    """The kernel for this device, or None where words come from the CPU."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from understudy.privacy.randomness import chacha_kernel

    if not _answers_as_known(chacha_kernel, device):
        warnings.warn(f"randomness: the kernel does not work on {device}; noise comes from the CPU", stacklevel=2)
        return None
    return chacha_kernel


def _answers_as_known(kernel: ModuleType, device: torch.device) -> bool:
    """Whether the kernel gives the first words of RFC 8439 under a key of zeros, and normal values at all.

    Privacy: tried before the first noise of a process; a kernel that fails must not make any.
    """
    zeros = torch.zeros(KEY_BYTES // 4, dtype=torch.int32, device=device)
    try:
        words = kernel.random_words(zeros, 0, 4).cpu().numpy().tobytes()
        normals = kernel.random_normals(zeros, 0, 9).cpu()
    except Exception:  # a compiler or driver that is missing or too old: its own kinds of errors
        return False
    return bool(words == _CHACHA_OF_ZEROS and torch.isfinite(normals).all() and len(normals.unique()) == len(normals))
