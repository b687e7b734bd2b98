"""ChaCha20 on a CUDA device, as one Triton kernel that writes random words or standard normal values.

D. J. Bernstein, "ChaCha, a variant of Salsa20" (2008); constants and layout of the state as in RFC 8439, with a block
counter of 64 bits and a nonce of zeros: every stream has a key of its own. Importing this needs Triton, which torch's
builds for CUDA bring along.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 8  # words of 64 bits in a block
_BLOCKS = 128  # ChaCha blocks for each program
_ROUNDS = tl.constexpr(10)  # double rounds
_LOW_BITS = tl.constexpr((1 << 63) - 1)
_UNIT = tl.constexpr(2.0**-63)
_TURN = tl.constexpr(2.0**-63 * 6.283185307179586)


def random_words(key: Tensor, first_block: int, count: int) -> Tensor:
    """``count`` words as int64, any of the 2**64 patterns; ``key`` is (8,) int32 on the device."""
    return _launch(key, first_block, torch.empty(count, dtype=torch.int64, device=key.device), normal=False)


def random_normals(key: Tensor, first_block: int, count: int) -> Tensor:
    """``count`` standard normal values in double precision, one for each word (Box and Muller's transform)."""
    return _launch(key, first_block, torch.empty(count, dtype=torch.float64, device=key.device), normal=True)


def _launch(key: Tensor, first_block: int, out: Tensor, *, normal: bool) -> Tensor:
    if key.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("noise drawn inside a CUDA graph would be the same at every replay")
    programs = -(-out.numel() // (WORDS * _BLOCKS))
    kernel: Any = _fill
    if programs:
        kernel[(programs,)](out, key, first_block, out.numel(), normal=normal, blocks=_BLOCKS)
    return out


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _key_word(key, place: tl.constexpr, like):
    return like + tl.load(key + place).to(tl.uint32, bitcast=True)


@triton.jit
def _store_pair(out, place, count, first, second, normal: tl.constexpr):
    if normal:
        uniform = ((first & _LOW_BITS).to(tl.float64) + 0.5) * _UNIT
        radius = tl.sqrt(-2.0 * tl.log(uniform))
        angle = (second & _LOW_BITS).to(tl.float64) * _TURN
        tl.store(out + place, radius * tl.cos(angle), mask=place < count)
        tl.store(out + place + 1, radius * tl.sin(angle), mask=place + 1 < count)
    else:
        tl.store(out + place, first.to(tl.int64, bitcast=True), mask=place < count)
        tl.store(out + place + 1, second.to(tl.int64, bitcast=True), mask=place + 1 < count)


@triton.jit
def _joined(low, high):
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@triton.jit(do_not_specialize=["first_block", "count"])
def _fill(out, key, first_block, count, normal: tl.constexpr, blocks: tl.constexpr):
    number = tl.program_id(0).to(tl.int64) * blocks + tl.arange(0, blocks)
    counter = (number + first_block).to(tl.uint64)
    zero = tl.zeros((blocks,), dtype=tl.uint32)
    c0, c1, c2, c3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0, k1, k2, k3 = _key_word(key, 0, zero), _key_word(key, 1, zero), _key_word(key, 2, zero), _key_word(key, 3, zero)
    k4, k5, k6, k7 = _key_word(key, 4, zero), _key_word(key, 5, zero), _key_word(key, 6, zero), _key_word(key, 7, zero)
    n0, n1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, n0, n1, zero, zero
    for _ in tl.static_range(_ROUNDS):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    place = number * 8
    _store_pair(out, place, count, _joined(x0 + c0, x1 + c1), _joined(x2 + c2, x3 + c3), normal)
    _store_pair(out, place + 2, count, _joined(x4 + k0, x5 + k1), _joined(x6 + k2, x7 + k3), normal)
    _store_pair(out, place + 4, count, _joined(x8 + k4, x9 + k5), _joined(x10 + k6, x11 + k7), normal)
    _store_pair(out, place + 6, count, _joined(x12 + n0, x13 + n1), _joined(x14, x15), normal)
