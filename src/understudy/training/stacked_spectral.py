"""Spectral normalisation of stacked critics: power iteration, normalised weights, and the way back for gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.models.critic import CONVOLUTIONS, NORMALISE_EPS
from understudy.training.stacked_layout import CriticLayout


@dataclass(frozen=True)
class SpectralState:
    """Singular vectors and inverse singular values of every normalised matrix of k critics, for one pass."""

    left: tuple[Tensor, ...]
    right: tuple[Tensor, ...]
    inverse: tuple[Tensor, ...]


def estimate(layout: CriticLayout, flat: Tensor, vectors: Tensor, *, training: bool) -> SpectralState:
    """Spectral norms of stacked parameters; in training after one power iteration, else with the vectors as they are.

    Returns the new vectors and leaves ``vectors`` alone: who owns them decides whether they are kept.
    """
    lefts, rights, inverses = [], [], []
    for block in layout.blocks:
        matrix, left = block.of(flat), block.left(vectors)
        image = torch.bmm(left.unsqueeze(1), matrix).squeeze(1)
        right = F.normalize(image, dim=1, eps=NORMALISE_EPS)
        norm = image.norm(dim=1)
        if training:
            image = torch.bmm(matrix, right.unsqueeze(2)).squeeze(2)
            left, norm = F.normalize(image, dim=1, eps=NORMALISE_EPS), image.norm(dim=1)
        lefts.append(left)
        rights.append(right)
        inverses.append(norm.clamp_min(NORMALISE_EPS).reciprocal())
    return SpectralState(tuple(lefts), tuple(rights), tuple(inverses))


def write_normalised(layout: CriticLayout, flat: Tensor, spectral: SpectralState, weights: Tensor) -> None:
    """Writes parameters over their spectral norms, and biases as they are, in the type of ``weights``."""
    for block, inverse in zip(layout.blocks, spectral.inverse, strict=True):
        torch.mul(block.of(flat), inverse.view(-1, 1, 1), out=block.of(weights))
    for layer in range(CONVOLUTIONS):
        layout.convolution_bias(weights, layer).copy_(layout.convolution_bias(flat, layer))
    layout.head_bias(weights).copy_(layout.head_bias(flat))


def write_parameter_gradients(
    layout: CriticLayout, spectral: SpectralState, inner: tuple[Tensor, ...], gradients: Tensor, out: Tensor
) -> None:
    """Turns gradients of normalised weights into gradients of parameters, in fp32.

    With W^ = W / s and s = u'Wv, the gradient of W is (G - <G, W^> u v') / s; ``inner`` holds <G, W^> of every block.
    """
    for position, block in enumerate(layout.blocks):
        inverse = spectral.inverse[position]
        target = block.of(out)
        torch.mul(block.of(gradients), inverse.view(-1, 1, 1), out=target)
        scaled = spectral.left[position] * (-inner[position] * inverse).unsqueeze(1)
        target.baddbmm_(scaled.unsqueeze(2), spectral.right[position].unsqueeze(1))
    for layer in range(CONVOLUTIONS):
        layout.convolution_bias(out, layer).copy_(layout.convolution_bias(gradients, layer))


def inner_products(layout: CriticLayout, weights: Tensor, gradients: Tensor, total: Tensor) -> tuple[Tensor, ...]:
    """<G, W^> of every block, from the last to the first, without reading the large matrices.

    A masked layer is linear, so slopes times activations after a layer (``total`` (k,) after the last one) equal slopes
    times activations before it, which is <G, W^> of that layer, plus bias times bias gradient. Only the head and the
    projection, which share their features, are multiplied out.
    """
    inner = []
    for block in layout.blocks[CONVOLUTIONS:]:
        inner.append((block.of(weights).float() * block.of(gradients)).sum((1, 2)))
    convolutions = []
    for layer in reversed(range(CONVOLUTIONS)):
        bias, slope = layout.convolution_bias(weights, layer), layout.convolution_bias(gradients, layer)
        total = total - (bias.float() * slope).sum(1)
        convolutions.append(total)
    return (*reversed(convolutions), *inner)
