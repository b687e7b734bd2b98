"""Matrix products of stated precision, and the norms of sums of outer products without forming the sums.

The gradient that one example gives to a weight matrix is ``sum_p left_p (x) right_p`` over the places p where the layer
uses it. Its squared norm is ``sum_pq <left_p, left_q> <right_p, right_q>``: two small Gram matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.configs import Precision

_TF32_DROPPED = 0x1FFF  # the bits of a float32 that a TF32 number does not have
_BF16_DROPPED = 0xFFFF
_CHUNK_VALUES = 2**24  # per-example gradients formed at a time where the Gram matrices would cost more
_FILL = 264  # a matrix product in fewer tiles leaves multiprocessors idle
_TILE = 128
_ALIGNED = 8
_SMALLEST = 2.0**-126  # squares below this may count as zero


@dataclass(frozen=True)
class Rounding:
    """What rounding can do, as bounds that hold for every input.

    ``scaled``: relative error of an operand after it was multiplied by a clip factor. ``step``: relative error of one
    addition of an accumulation (tensor cores may cut off instead of rounding: twice as much).
    """

    scaled: float
    step: float

    @classmethod
    def of(cls, values: Tensor, precision: Precision) -> Rounding:
        """For operands of this type: bfloat16 keeps 8 bits (rounded), TF32 11 (cut off), float32 24, float64 53."""
        if values.dtype == torch.float64:
            return cls(2.0**-52, 2.0**-52)
        if values.dtype == torch.bfloat16:
            return cls(1.001 * 2.0**-8, 2.0**-23)
        return cls(1.001 * 2.0**-10, 2.0**-23) if precision == "tf32" else cls(1.001 * 2.0**-24, 1.001 * 2.0**-24)


@dataclass(frozen=True)
class Measured:
    """Squared norms as computed, (rows, N) in float64, and what they can be wrong by; the rows of one example add up.

    The norm of what is summed is at most ``sqrt(squared + inexact * spread) + scaled * sqrt(spread)``.
    """

    squared: Tensor
    spread: Tensor
    inexact: float
    scaled: float


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Products and convolutions of float32 inside use TF32 or not, as stated; the settings are put back afterwards.

    Privacy: cuDNN's usual kernels for full precision do not repeat themselves in the last bits, so an example's norm
    could follow its neighbours; there the ones that do are taken (``benchmarks/independence.py``).
    """
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    cudnn.allow_tf32, cudnn.deterministic = precision == "tf32", precision == "fp32" or before[2]
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.deterministic = before[1:]


def representable(values: Tensor, precision: Precision) -> Tensor:
    """The values as products take them: in TF32 the low bits are cut off here, so that no product rounds them again."""
    if precision != "tf32" or values.dtype != torch.float32:
        return values
    return (values.contiguous().view(torch.int32) & ~_TF32_DROPPED).view(torch.float32)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Batched matrix product of bfloat16 or float32, accumulated and returned in float32 (of float64 in float64)."""
    if left.dtype != torch.bfloat16:
        return torch.bmm(left, right)
    if left.is_cuda and hasattr(torch.ops.aten.bmm, "dtype"):
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())  # exact products of bfloat16 values, also in TF32


def measure(left: Tensor, right: Tensor, rounding: Rounding, biased: bool = False) -> Measured:
    """Norms of ``sum_p left_p (x) right_p`` for (N, places, values) operands; ``biased`` adds a one to every right_p.

    Privacy: clipping divides by the norm that follows from this, so it must not come out too small. With
    E = sum_p |left_p||right_p| (``spread`` is E^2) an accumulation over k terms moves a Gram entry by at most
    ``k step |x_p||x_q|``, so the squared norm by at most ``(k + k') step E^2``; a product formed over L places errs by
    at most ``L step E``. Scaling ``left`` and rounding it again moves the sum by at most ``scaled E``. Squares too
    small to be represented are covered by a floor under every ``|x_p|``.
    """
    places, (wide, deep), one = left.shape[1], (left.shape[2], right.shape[2]), float(biased)
    inexact = (wide + deep + 8) * rounding.step
    if places == 1:
        norms = [torch.linalg.vector_norm(side, dim=(1, 2), dtype=torch.float64) for side in (left, right)]
        squared = norms[0].square() * (norms[1].square() + one)
        return _measured(squared, squared, 8 * rounding.step, rounding.scaled)
    if 8 * places**2 < wide * deep:
        grams = gram(left), gram(right)
        joint = torch.addcmul(grams[0], *grams) if biased else grams[0] * grams[1]
        squared = joint.sum(dim=(1, 2), dtype=torch.float64)
        lengths = [each.diagonal(dim1=1, dim2=2) for each in grams]
        formed = 0.0
    else:
        squared = _squares_of_products(left, right, biased)
        lengths = [torch.linalg.vector_norm(side, dim=2, dtype=_sum_type(side)).square() for side in (left, right)]
        formed = places * rounding.step
    floors = [values * _SMALLEST / rounding.step for values in (wide, deep)]
    spread = ((lengths[0] + floors[0]) * (lengths[1] + (floors[1] + one))).sqrt().sum(dim=1, dtype=torch.float64)
    return _measured(squared, spread.square(), inexact, rounding.scaled + formed)


def _measured(squared: Tensor, spread: Tensor, inexact: float, scaled: float) -> Measured:
    """``spread`` is itself off by a share of ``inexact``."""
    return Measured(squared[None], spread[None], inexact * (1 + inexact), scaled * (1 + inexact))


def gram(rows: Tensor) -> Tensor:
    """Gram matrices (N, places, places) of (N, places, values).

    On a graphics card products are fast only for a multiple of 8 columns. Where the memory behind the last example
    allows it, the missing columns are read from the rows that follow (the next example's) and dropped again.
    """
    count, places, values = rows.shape
    whole = -(-places // _ALIGNED) * _ALIGNED
    end = rows.storage_offset() + (count - 1) * rows.stride(0) + (whole - 1) * rows.stride(1) + values
    if not rows.is_cuda or whole == places or end * rows.element_size() > rows.untyped_storage().nbytes():
        return product(rows, rows.mT)
    longer = rows.as_strided((count, whole, values), rows.stride())
    return product(rows, longer.mT)[:, :, :places]


def _sum_type(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32


def _squares_of_products(left: Tensor, right: Tensor, biased: bool) -> Tensor:
    """Squared norms of the products themselves, a few examples at a time."""
    chunk = max(1, _CHUNK_VALUES // (left.shape[2] * right.shape[2]))
    squares = []
    for some, others in zip(left.split(chunk), right.split(chunk), strict=True):
        formed = torch.linalg.vector_norm(product(some.mT, others), dim=(1, 2), dtype=torch.float64).square()
        if biased:
            formed = formed + torch.linalg.vector_norm(some.double().sum(dim=1), dim=1).square()
        squares.append(formed)
    return torch.cat(squares)


def not_above(weights: Tensor, precision: Precision) -> Tensor:
    """Weights that the products' operands can hold exactly.

    Privacy: bits are cut off, so no clip factor grows when it meets operands of lower precision.
    """
    if precision != "bf16":
        return weights
    return (weights.float().view(torch.int32) & ~_BF16_DROPPED).view(torch.float32).to(weights.dtype)


def scaled(values: Tensor, weights: Tensor, precision: Precision) -> Tensor:
    """Each example times its weight (see ``not_above``), rounded once; weight zero makes zero of whatever it held."""
    weighted = values * weights.to(values.dtype).view(-1, *(1,) * (values.dim() - 1))
    return representable(weighted.nan_to_num_(0.0, 0.0, 0.0), precision)


def summed_product(left: Tensor, right: Tensor) -> Tensor:
    """``sum over examples and places of left (x) right``: (groups, wide, deep) from (N, groups, places, values)."""
    groups, wide, deep = left.shape[1], left.shape[3], right.shape[3]
    sides = [side.transpose(0, 1).reshape(groups, -1, side.shape[3]) for side in (left, right)]
    parts = _parts(len(left), groups, wide, deep) if left.is_cuda else 1
    sides = [side.reshape(groups * parts, -1, side.shape[2]) for side in sides]
    return product(sides[0].mT, sides[1]).view(groups, parts, wide, deep).sum(dim=1)


def _parts(examples: int, groups: int, wide: int, deep: int) -> int:
    """In how many parts to cut a long sum, so that its few output tiles keep the whole device busy."""
    tiles = groups * -(-wide // _TILE) * -(-deep // _TILE)
    parts = 1
    while tiles * parts < _FILL and examples % (2 * parts) == 0 and parts < 8:
        parts *= 2
    return parts
