"""What each kind of layer gives to the gradient, one unit at a time and without forming it where that is dear.

A layer's input and the gradient at its output become pieces. A piece measures each unit's gradient, and adds the
weighted sum over units to its part of the flat gradient. A unit may have several rows of a batch (the noise draws of
one image, say): its gradient is the sum over its rows, and that is what is measured and weighted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.configs import Precision
from understudy.engines.dpsgd.convolution import Window, coverage, is_constant, on_card, patches, tame
from understudy.engines.dpsgd.products import (
    Measured,
    Rounding,
    arithmetic,
    measure,
    product,
    representable,
    scaled,
    summed_product,
)


class Piece(Protocol):
    """The gradients of one or two parameters, one for each example."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the layer's parameters, in the order of the targets."""
        ...

    def measure(self) -> Measured:
        """Norms of what ``add_weighted`` adds for each example of weight one."""
        ...

    def add_weighted(self, targets: Sequence[Tensor], weights: Tensor) -> None:
        """Add ``sum_i weights_i gradient_i`` to the flat targets; weight zero takes an example out altogether."""
        ...


@dataclass(frozen=True)
class Rows:
    """Gradients that were formed: (N, values), in float32 or better. What is summed is what was measured."""

    names: tuple[str, ...]
    values: Tensor

    def measure(self) -> Measured:
        """The squared norms."""
        if self._by_kernels:
            from understudy.engines.dpsgd.convolution_kernel import squares

            squared = squares(self.values.contiguous())[None]
        else:
            squared = torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64).square()[None]
        return Measured(squared, torch.zeros_like(squared), 0.0, 0.0)

    @property
    def _by_kernels(self) -> bool:
        return self.values.is_cuda and self.values.dtype == torch.float32

    def add_weighted(self, targets: Sequence[Tensor], weights: Tensor) -> None:
        """One matrix-vector product, never in TF32: what was measured is not rounded again."""
        if self._by_kernels:
            from understudy.engines.dpsgd.convolution_kernel import add_weighted

            add_weighted(targets[0], self.values.contiguous(), weights)
            return
        with arithmetic("fp32"):
            targets[0].addmv_(torch.nan_to_num(self.values, 0.0, 0.0, 0.0).mT, weights.to(self.values.dtype))


@dataclass(frozen=True)
class Outer:
    """Gradients ``sum_p left_p (x) right_p`` that are never formed: operands (N, groups, places, values).

    With a second name, that of a bias: ``sum_p left_p``, as if every right_p ended with a one.
    """

    names: tuple[str, ...]
    left: Tensor
    right: Tensor
    precision: Precision

    def measure(self) -> Measured:
        """From Gram matrices or from the products, whichever is cheaper; groups are rows of their own."""
        found = measure(
            self.left.flatten(0, 1), self.right.flatten(0, 1), Rounding.of(self.left, self.precision), self._biased
        )
        squared, spread = (values.view(self.left.shape[:2]).mT for values in (found.squared, found.spread))
        return Measured(squared, spread, found.inexact, found.scaled)

    def add_weighted(self, targets: Sequence[Tensor], weights: Tensor) -> None:
        """One product over all examples and places; the clip factors scale the smaller operand."""
        left = scaled(self.left, weights, self.precision)
        targets[0].add_(summed_product(left, self.right).flatten())
        if self._biased:
            ones = left.new_ones(()).expand(*left.shape[:3], 1)
            targets[1].add_(summed_product(ones, left).flatten())

    @property
    def _biased(self) -> bool:
        return len(self.names) > 1


@dataclass(frozen=True)
class Lookup:
    """Gradients of an embedding: rows ``slopes`` (N, places, values) at ``indices`` (N, places) of its table."""

    names: tuple[str, ...]
    slopes: Tensor
    indices: Tensor

    def measure(self) -> Measured:
        """Slopes that fall on the same row of the table add up: the sum stands at the first place of the row."""
        same = (self.indices.unsqueeze(2) == self.indices.unsqueeze(1)).double()
        first = torch.tril(same, diagonal=-1).sum(dim=2, keepdim=True) == 0
        slopes = self.slopes.double()
        squared = torch.linalg.vector_norm(torch.bmm(same, slopes) * first, dim=(1, 2)).square()
        spread = torch.linalg.vector_norm(slopes, dim=2).sum(dim=1).square()
        return Measured(squared[None], spread[None], 0.0, Rounding.of(self.slopes, "fp32").scaled)

    def add_weighted(self, targets: Sequence[Tensor], weights: Tensor) -> None:
        """Scatter the weighted slopes."""
        weighted = scaled(self.slopes, weights, "fp32").flatten(0, 1)
        table = targets[0].view(-1, self.slopes.shape[2])
        table.index_add_(0, self.indices.flatten(), weighted.to(table.dtype))


@dataclass(frozen=True)
class Tapped:
    """What was seen of a layer in one pass: its input and the gradient at its output.

    ``right`` is what a convolution made of its input (see ``convolution``), where it kept it. The rows of a unit follow
    each other.
    """

    layer: nn.Module
    inputs: Tensor
    slopes: Tensor
    precision: Precision
    right: Tensor | None = None
    rows: int = 1  # of each unit

    @property
    def units(self) -> int:
        """How many there are."""
        return len(self.inputs) // self.rows


@dataclass(frozen=True)
class Gradients:
    """The pieces of one layer, and for each unit a value that is finite if all that went in was."""

    pieces: tuple[Piece, ...]
    witness: Tensor | None = None


def gradients_of(tapped: Tapped) -> Gradients:
    """The pieces of a layer of a known kind."""
    return RULES[type(tapped.layer)](tapped)


def _convolution(tapped: Tapped) -> Gradients:
    layer, slopes = tapped.layer, tapped.slopes
    assert isinstance(layer, nn.Conv2d)
    window = Window.of(layer)
    if is_constant(tapped.inputs, window):
        return _constant_planes(tapped)
    if tapped.right is None and on_card(layer) and _is_formed(tapped.rows * slopes[0, 0].numel(), *_sides(layer)):
        return _formed_on_card(tapped)
    left = representable(_by_place(slopes, tapped.rows, window.groups), tapped.precision)
    right = tapped.right
    if right is None:
        cleaned = representable(tame(tapped.inputs), tapped.precision)
        right = patches(cleaned, window, window.places(tapped.inputs))
    pieces = _outer(_names(layer), left, _by_unit(right, tapped.rows), tapped.precision)
    return Gradients(pieces, _witness(tapped, tapped.inputs))


def _formed_on_card(tapped: Tapped) -> Gradients:
    """The gradients of a 3x3 kernel, formed without a copy of any patch."""
    from understudy.engines.dpsgd.convolution_kernel import unit_gradients

    layer = tapped.layer
    assert isinstance(layer, nn.Conv2d)
    images, slopes = (side.contiguous(memory_format=torch.channels_last) for side in (tapped.inputs, tapped.slopes))
    formed = unit_gradients(images, slopes, tapped.rows, layer.stride[0], tapped.precision)
    pieces: tuple[Piece, ...] = (Rows(("weight",), formed.weight.flatten(1)),)
    if layer.bias is not None:
        bias = tapped.slopes.sum(dim=(2, 3), dtype=torch.float32)
        pieces += (Rows(("bias",), _summed(bias, tapped.rows)),)
    return Gradients(pieces, formed.witness)


def _constant_planes(tapped: Tapped) -> Gradients:
    """Planes of one value each (labels, say): the window sees the same everywhere but at the border.

    The gradient of a row is ``(left^T seen) (x) values``, where ``seen`` (places, taps) is one inside the image: of
    rank one.
    """
    layer, values = tapped.layer, tapped.inputs[:, :, 0, 0]
    assert isinstance(layer, nn.Conv2d)
    window = Window.of(layer)
    seen = coverage(window, window.places(tapped.inputs), tapped.inputs)
    seen = functional.pad(seen, (0, 1), value=1.0)  # the last column is for the bias
    left = representable(_by_place(tapped.slopes, 1, window.groups), tapped.precision)
    folded = product(left[:, 0].mT, seen.expand(len(values), -1, -1))  # float32 also where the operands are bfloat16
    precision: Precision = "fp32" if tapped.precision == "bf16" else tapped.precision
    whole = representable(folded[:, :, :-1].reshape(tapped.units, 1, tapped.rows, -1), precision)
    right = representable(tame(values).view(tapped.units, 1, tapped.rows, -1).to(folded.dtype), precision)
    pieces: tuple[Piece, ...] = (Outer(("weight",), whole, right, precision),)
    if layer.bias is not None:
        pieces += (Rows(("bias",), _summed(folded[:, :, -1], tapped.rows)),)
    return Gradients(pieces, _witness(tapped, values))


def _transposed_convolution(tapped: Tapped) -> Gradients:
    """A convolution walked the other way: patches of the output's gradient meet the pixels of the input."""
    layer, slopes = tapped.layer, tapped.slopes
    assert isinstance(layer, nn.ConvTranspose2d)
    window, places = Window.of(layer), (tapped.inputs.shape[2], tapped.inputs.shape[3])
    left = representable(_by_place(tapped.inputs, tapped.rows, window.groups), tapped.precision)
    right = patches(representable(tame(slopes), tapped.precision), window, places)
    pieces = _outer(("weight",), left, _by_unit(right, tapped.rows), tapped.precision)
    if layer.bias is not None:
        pieces += (Rows(("bias",), _summed(slopes.sum(dim=(2, 3), dtype=_wide_type(slopes)), tapped.rows)),)
    return Gradients(pieces, _witness(tapped, slopes))


def _linear(tapped: Tapped) -> Gradients:
    layer, count = tapped.layer, tapped.units
    assert isinstance(layer, nn.Linear)
    right = tame(tapped.inputs).reshape(count, 1, -1, layer.in_features)
    left = tapped.slopes.reshape(count, 1, -1, layer.out_features)
    left, right = (representable(side, tapped.precision) for side in (left, right))
    return Gradients(_outer(_names(layer), left, right, tapped.precision), _witness(tapped, tapped.inputs))


def _embedding(tapped: Tapped) -> Gradients:
    layer, count = tapped.layer, tapped.units
    assert isinstance(layer, nn.Embedding)
    indices = tapped.inputs.reshape(count, -1)
    slopes = _wide(tapped.slopes).reshape(count, -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        slopes = torch.where((indices == layer.padding_idx).unsqueeze(2), torch.zeros_like(slopes), slopes)
    return Gradients((Lookup(("weight",), slopes, indices),))


def _group_norm(tapped: Tapped) -> Gradients:
    layer = tapped.layer
    assert isinstance(layer, nn.GroupNorm)
    normal = functional.group_norm(_wide(tapped.inputs), layer.num_groups, eps=layer.eps)
    return Gradients(_affine(tapped, normal, tuple(range(2, normal.dim()))))


def _layer_norm(tapped: Tapped) -> Gradients:
    layer = tapped.layer
    assert isinstance(layer, nn.LayerNorm)
    normal = functional.layer_norm(_wide(tapped.inputs), layer.normalized_shape, eps=layer.eps)
    dims = tuple(range(1, normal.dim() - len(layer.normalized_shape)))
    return Gradients(_affine(tapped, normal, dims))


def _affine(tapped: Tapped, normal: Tensor, places: tuple[int, ...]) -> tuple[Piece, ...]:
    """A scale and a shift after a normalisation, summed over the places that share them."""
    slopes = _wide(tapped.slopes)
    values = {"weight": normal * slopes, "bias": slopes}
    return tuple(
        Rows((name,), _summed((value.sum(dim=places) if places else value).flatten(1), tapped.rows))
        for name, value in values.items()
        if getattr(tapped.layer, name) is not None
    )


RULES: dict[type[nn.Module], Callable[[Tapped], Gradients]] = {
    nn.Conv2d: _convolution,
    nn.ConvTranspose2d: _transposed_convolution,
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
}


def _outer(names: tuple[str, ...], left: Tensor, right: Tensor, precision: Precision) -> tuple[Piece, ...]:
    """The gradient as it is measured best."""
    if not _is_formed(left.shape[2], left.shape[3], right.shape[3]):
        return (Outer(names, left, right, precision),)
    formed = product(left.flatten(0, 1).mT, right.flatten(0, 1))
    pieces: tuple[Piece, ...] = (Rows(names[:1], formed.view(len(left), -1)),)
    if len(names) > 1:
        pieces += (Rows(names[1:], left.sum(dim=2, dtype=_wide_type(left)).flatten(1)),)
    return pieces


def _is_formed(places: int, wide: int, deep: int) -> bool:
    """The gradient is formed where that takes no more room than what it is made of."""
    return places > 1 and wide * deep <= places * (wide + deep)


def _sides(layer: nn.Conv2d) -> tuple[int, int]:
    return layer.out_channels, layer.weight[0].numel()


def _names(layer: nn.Conv2d | nn.Linear) -> tuple[str, ...]:
    return ("weight",) if layer.bias is None else ("weight", "bias")


def _by_place(images: Tensor, rows: int, groups: int) -> Tensor:
    """(units, groups, rows * places, channels / groups) of (N, C, H, W); a view of images that lie channels last."""
    places = images.permute(0, 2, 3, 1).reshape(len(images) // rows, -1, images.shape[1])
    return torch.unflatten(places, 2, (groups, -1)).transpose(1, 2)


def _by_unit(operand: Tensor, rows: int) -> Tensor:
    """(units, groups, rows * places, values) of (N, groups, places, values)."""
    if rows == 1:
        return operand
    units = operand.unflatten(0, (-1, rows)).transpose(1, 2)
    return units.flatten(2, 3)


def _summed(values: Tensor, rows: int) -> Tensor:
    """Values (N, ...) summed over the rows of each unit."""
    return values.contiguous() if rows == 1 else values.unflatten(0, (-1, rows)).sum(dim=1)


def _witness(tapped: Tapped, values: Tensor) -> Tensor:
    """A sum (units,) that is not finite as soon as one of a unit's values is not."""
    sums = values.sum(dim=tuple(range(1, values.dim())), dtype=_wide_type(values))
    return _summed(sums, tapped.rows)


def _wide(values: Tensor) -> Tensor:
    return values.to(_wide_type(values))


def _wide_type(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32
