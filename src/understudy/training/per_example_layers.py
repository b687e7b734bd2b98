"""What each kind of layer gives to the gradient, one example at a time and without forming it where that is dear.

A layer's input and the gradient at its output become pieces. A piece knows a bound of each example's squared norm, and
adds the weighted sum over examples to its part of the flat gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.training.per_example_patches import Pair, Window, coverage, patches
from understudy.training.per_example_products import (
    Precision,
    Rounding,
    product,
    representable,
    scaled,
    squared_norm_bounds,
    summed_product,
)


class Piece(Protocol):
    """The gradients of one parameter, one for each example."""

    def squared_bounds(self) -> Tensor:
        """(N,) float64: at least the squared norm of what ``add_weighted`` adds for an example of weight one."""
        ...

    def add_weighted(self, target: Tensor, weights: Tensor) -> None:
        """Add ``sum_i weights_i gradient_i`` to the flat ``target``; weight zero takes an example out altogether."""
        ...


@dataclass(frozen=True)
class Rows:
    """Gradients that were formed: (N, values), in float32 or better. What is summed is what was measured."""

    values: Tensor

    def squared_bounds(self) -> Tensor:
        """The squared norms."""
        return torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64).square()

    def add_weighted(self, target: Tensor, weights: Tensor) -> None:
        """One matrix-vector product."""
        target.addmv_(torch.nan_to_num(self.values, 0.0, 0.0, 0.0).mT, weights.to(self.values.dtype))


@dataclass(frozen=True)
class Outer:
    """Gradients ``sum_p left_p (x) right_p`` that are never formed: operands (N, groups, places, values)."""

    left: Tensor
    right: Tensor
    precision: Precision

    def squared_bounds(self) -> Tensor:
        """From Gram matrices or from the products, whichever is cheaper."""
        bounds = squared_norm_bounds(
            self.left.flatten(0, 1), self.right.flatten(0, 1), Rounding.of(self.left, self.precision)
        )
        return bounds.view(self.left.shape[:2]).sum(dim=1)

    def add_weighted(self, target: Tensor, weights: Tensor) -> None:
        """One product over all examples and places; the clip factors scale the smaller operand."""
        target += summed_product(scaled(self.left, weights, self.precision), self.right).flatten()


@dataclass(frozen=True)
class Lookup:
    """Gradients of an embedding: rows ``slopes`` (N, places, values) at ``indices`` (N, places) of its table."""

    slopes: Tensor
    indices: Tensor
    rows: int

    def squared_bounds(self) -> Tensor:
        """Slopes that fall on the same row of the table add up: the sum stands at the first place of the row."""
        same = (self.indices.unsqueeze(2) == self.indices.unsqueeze(1)).double()
        first = torch.tril(same, diagonal=-1).sum(dim=2, keepdim=True) == 0
        slopes = self.slopes.double()
        norms = torch.linalg.vector_norm(torch.bmm(same, slopes) * first, dim=(1, 2))
        spread = torch.linalg.vector_norm(slopes, dim=2).sum(dim=1)
        return (norms + Rounding.of(self.slopes, "fp32").scaled * spread).square()

    def add_weighted(self, target: Tensor, weights: Tensor) -> None:
        """Scatter the weighted slopes."""
        weighted = scaled(self.slopes, weights, "fp32").flatten(0, 1)
        target.view(self.rows, -1).index_add_(0, self.indices.flatten(), weighted.to(target.dtype))


@dataclass(frozen=True)
class Tapped:
    """What was seen of a layer in one pass: its input and the gradient at its output."""

    layer: nn.Module
    inputs: Tensor
    slopes: Tensor
    precision: Precision


@dataclass
class Gradients:
    """The pieces of one layer, by the name of the parameter, and which examples were finite on the way."""

    pieces: dict[str, Piece]
    finite: Tensor | None = None


def gradients_of(tapped: Tapped) -> Gradients:
    """The pieces of a layer of a known kind."""
    return RULES[type(tapped.layer)](tapped)


def _convolution(tapped: Tapped) -> Gradients:
    layer, slopes = tapped.layer, tapped.slopes
    assert isinstance(layer, nn.Conv2d)
    window, places = Window.of(layer), _places(slopes)
    left = representable(_by_place(slopes, window.groups), tapped.precision)
    if window.groups == 1 and tapped.inputs.stride()[2:] == (0, 0):
        weight, finite = _constant_planes(tapped.inputs, left, coverage(window, places, tapped.inputs))
    else:
        inputs, finite = _tame(tapped.inputs)
        right = patches(representable(inputs, tapped.precision), window, places)
        weight = _outer(left, right, tapped.precision)
    return Gradients({**_bias(layer, slopes), "weight": weight}, finite)


def _constant_planes(planes: Tensor, left: Tensor, seen: Tensor) -> tuple[Piece, Tensor]:
    """Planes of one value each (labels, say): the window sees the same everywhere but at the border.

    The gradient is ``(left^T seen) (x) values``, where ``seen`` (places, taps) is one inside the image: of rank one.
    """
    values, finite = _tame(planes[:, :, 0, 0])
    folded = product(left[:, 0].mT, seen.expand(len(values), -1, -1)).flatten(1)
    return Outer(folded[:, None, None], values[:, None, None].to(folded.dtype), "fp32"), finite


def _transposed_convolution(tapped: Tapped) -> Gradients:
    """A convolution walked the other way: patches of the output's gradient meet the pixels of the input."""
    layer = tapped.layer
    assert isinstance(layer, nn.ConvTranspose2d)
    window = Window.of(layer)
    slopes, finite = _tame(tapped.slopes)
    left = representable(_by_place(tapped.inputs, window.groups), tapped.precision)
    right = patches(representable(slopes, tapped.precision), window, _places(tapped.inputs))
    return Gradients({**_bias(layer, tapped.slopes), "weight": _outer(left, right, tapped.precision)}, finite)


def _linear(tapped: Tapped) -> Gradients:
    layer, count = tapped.layer, len(tapped.inputs)
    assert isinstance(layer, nn.Linear)
    inputs, finite = _tame(tapped.inputs)
    right = inputs.reshape(count, 1, -1, layer.in_features)
    left = tapped.slopes.reshape(count, 1, -1, layer.out_features)
    pieces: dict[str, Piece] = {} if layer.bias is None else {"bias": Rows(_wide(left).sum(dim=(1, 2)))}
    pieces["weight"] = _outer(
        representable(left, tapped.precision), representable(right, tapped.precision), tapped.precision
    )
    return Gradients(pieces, finite)


def _embedding(tapped: Tapped) -> Gradients:
    layer, count = tapped.layer, len(tapped.inputs)
    assert isinstance(layer, nn.Embedding)
    indices = tapped.inputs.reshape(count, -1)
    slopes = _wide(tapped.slopes).reshape(count, -1, layer.embedding_dim)
    if layer.padding_idx is not None:
        slopes = torch.where((indices == layer.padding_idx).unsqueeze(2), torch.zeros_like(slopes), slopes)
    return Gradients({"weight": Lookup(slopes, indices, layer.num_embeddings)})


def _group_norm(tapped: Tapped) -> Gradients:
    layer = tapped.layer
    assert isinstance(layer, nn.GroupNorm)
    normal = functional.group_norm(_wide(tapped.inputs), layer.num_groups, eps=layer.eps)
    return Gradients(_affine(layer, normal, _wide(tapped.slopes), tuple(range(2, normal.dim()))))


def _layer_norm(tapped: Tapped) -> Gradients:
    layer = tapped.layer
    assert isinstance(layer, nn.LayerNorm)
    normal = functional.layer_norm(_wide(tapped.inputs), layer.normalized_shape, eps=layer.eps)
    dims = tuple(range(1, normal.dim() - len(layer.normalized_shape)))
    return Gradients(_affine(layer, normal, _wide(tapped.slopes), dims))


def _affine(layer: nn.Module, normal: Tensor, slopes: Tensor, places: tuple[int, ...]) -> dict[str, Piece]:
    """A scale and a shift after a normalisation, summed over the places that share them."""
    values = {"weight": normal * slopes, "bias": slopes}
    return {
        name: Rows((value.sum(dim=places) if places else value).flatten(1))
        for name, value in values.items()
        if getattr(layer, name) is not None
    }


RULES: dict[type[nn.Module], Callable[[Tapped], Gradients]] = {
    nn.Conv2d: _convolution,
    nn.ConvTranspose2d: _transposed_convolution,
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
}


def _outer(left: Tensor, right: Tensor, precision: Precision) -> Piece:
    """The gradient is formed where that takes no more room than what it is made of."""
    places, wide, deep = left.shape[2], left.shape[3], right.shape[3]
    if places > 1 and wide * deep <= places * (wide + deep):
        formed = product(left.flatten(0, 1).mT, right.flatten(0, 1))
        return Rows(formed.view(len(left), -1))
    return Outer(left, right, precision)


def _bias(layer: nn.Conv2d | nn.ConvTranspose2d, slopes: Tensor) -> dict[str, Piece]:
    if layer.bias is None:
        return {}
    return {"bias": Rows(slopes.sum(dim=(2, 3), dtype=_wide_type(slopes)))}


def _by_place(images: Tensor, groups: int) -> Tensor:
    """(N, groups, places, channels / groups) of (N, C, H, W); a view of images that lie channels last."""
    rows = images.permute(0, 2, 3, 1).flatten(1, 2)
    return torch.unflatten(rows, 2, (groups, -1)).transpose(1, 2)


def _places(images: Tensor) -> Pair:
    return images.shape[2], images.shape[3]


def _tame(values: Tensor) -> tuple[Tensor, Tensor]:
    """The values with examples that are not finite set to zero, and which are: no product may meet a NaN."""
    finite = torch.isfinite(values.sum(dim=tuple(range(1, values.dim())), dtype=_wide_type(values)))
    flags = finite.view(-1, *(1,) * (values.dim() - 1))
    return torch.where(flags, values, values.new_zeros(())), finite


def _wide(values: Tensor) -> Tensor:
    return values.to(_wide_type(values))


def _wide_type(values: Tensor) -> torch.dtype:
    return torch.float64 if values.dtype == torch.float64 else torch.float32
