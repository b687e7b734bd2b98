"""The network and the WGAN-GP loss of k critics side by side: all gradients are written out, not traced by autograd.

A critic is piecewise linear, so the gradient penalty needs no second backward pass. With ReLU masks M fixed,
``g = W1' M1 W2' M2 W3' M3 w`` is the slope at an interpolate and, for the direction ``v`` of the penalty's gradient,
``d(v.g)/dW_l = slope_l (outer) tangent_{l-1}``: the slopes are those of the ordinary backward pass and the tangents are
``v`` pushed through the same masked layers. So real, fake and interpolated images share one forward pass, one slope
pass and one weight-gradient product, in which tangents stand where activations stand for real and fake images.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from understudy.engines.critics.layers import (
    PARITIES,
    SpectralState,
    copy_images,
    fold_table,
    inner_products,
    interior,
    parity_kernel,
    parity_patches,
    parity_shape,
    parity_taps,
    write_parameter_gradients,
    write_patches,
)
from understudy.engines.critics.layout import CriticLayout
from understudy.models.critic import CONVOLUTIONS, PADDING, CriticBatch, CriticLossConfig

LAST = CONVOLUTIONS - 1
Shapes = dict[str, tuple[int, ...]]


def buffer_shapes(layout: CriticLayout, images: int) -> Shapes:
    """Shapes, per critic, of all buffers that one pass over ``images`` images needs."""
    shapes: Shapes = {"weights": (layout.size,)}
    scratch = product = 0
    for layer, convolution in enumerate(layout.convolutions):
        shapes[f"input{layer}"] = (images, *convolution.padded_in, convolution.in_channels)
        shapes[f"columns{layer}"] = (images, *convolution.out_size, convolution.row)
        shapes[f"slope{layer}"] = (images, *convolution.out_size, convolution.out_channels)
        product = max(product, images * convolution.pixels * convolution.out_channels)
        if layer == 0:
            continue
        shapes[f"bordered{layer}"] = (images, *convolution.padded_out, convolution.out_channels)
        for parity in PARITIES:
            height, width, taps = parity_shape(convolution, parity)
            scratch = max(scratch, images * height * width * taps * convolution.out_channels)
    shapes["features"] = (images, *layout.convolutions[-1].out_size, layout.convolutions[-1].out_channels)
    return shapes | {"scratch": (scratch,), "product": (product,)}


def bytes_per_critic(layout: CriticLayout, images: int, dtype: torch.dtype) -> int:
    """Memory of a training pass for each critic in it, temporary tensors included."""
    elements = sum(torch.Size(shape).numel() for shape in buffer_shapes(layout, images).values())
    fold = 9 * images * torch.Size(layout.config.shape).numel()
    return (elements + fold) * dtype.itemsize + layout.size * (4 + 2 * dtype.itemsize)


@dataclass(frozen=True)
class CriticReport:
    """Per-critic figures (k,) of one step, on the device.

    Privacy: read from private data and not sanitized; for the private run folder only.
    """

    loss: Tensor
    gap: Tensor  # mean score of real images minus mean score of fake ones
    penalty: Tensor


@dataclass(frozen=True)
class PassShape:
    """How many critics, how many images each, in which type and where, and whether weight gradients are wanted."""

    critics: int
    images: int
    dtype: torch.dtype
    device: torch.device
    training: bool = True


class StackedPass:
    """Buffers and operations for a fixed number of critics and of images per critic; reused from step to step."""

    def __init__(self, layout: CriticLayout, shape: PassShape) -> None:
        self.layout, self.shape = layout, shape
        self.buffers = {
            name: torch.zeros((shape.critics, *size), dtype=shape.dtype, device=shape.device)
            for name, size in buffer_shapes(layout, shape.images).items()
        }
        if shape.training:  # padding is zero from the start and never written
            rows = (shape.critics, layout.size)
            self.buffers["gradients"] = torch.zeros(rows, dtype=shape.dtype, device=shape.device)
            self.buffers["parameter_gradients"] = torch.zeros(rows, device=shape.device)
        self.fold = fold_table(layout.convolutions[0], shape.device)
        self.taps = parity_taps(shape.device)

    def first(self, critics: int) -> StackedPass:
        """The same buffers for fewer critics."""
        if critics == self.shape.critics:
            return self
        fewer = copy(self)
        fewer.shape = replace(self.shape, critics=critics)
        fewer.buffers = {name: buffer[:critics] for name, buffer in self.buffers.items()}
        return fewer

    @property
    def weights(self) -> Tensor:
        """The normalised weights (critics, size) that every operation here multiplies with; the caller writes them."""
        return self.buffers["weights"]

    def _hidden(self, layer: int) -> Tensor:
        """Activations after ``layer``, without border, as a view (critics, images, rows, columns, channels)."""
        if layer == LAST:
            return self.buffers["features"]
        return interior(self.buffers[f"input{layer + 1}"], PADDING, self.layout.convolutions[layer].out_size)

    def _flat_features(self) -> Tensor:
        return self.buffers["features"].flatten(2)

    def _convolve(self, layer: int, first: int, bias: float) -> Tensor:
        """Layer's matrix product for images from ``first`` on; ``bias`` (1 or 0) is what multiplies the bias."""
        convolution = self.layout.convolutions[layer]
        columns = self.buffers[f"columns{layer}"][:, first:]
        write_patches(self.buffers[f"input{layer}"][:, first:], columns, convolution)
        columns[..., convolution.patch] = bias
        rows = columns.shape[1] * convolution.pixels
        product = self._product(rows, convolution.out_channels)
        torch.bmm(columns.flatten(1, 3), self.layout.kernel(self.weights, layer).mT, out=product)
        return product.view(self.shape.critics, -1, *convolution.out_size, convolution.out_channels)

    def _product(self, rows: int, columns: int) -> Tensor:
        """Room for one batched product."""
        critics = self.shape.critics
        return self.buffers["product"].view(-1)[: critics * rows * columns].view(critics, rows, columns)

    def set_images(self, images: Tensor, first: int = 0) -> None:
        """Places images (critics, images, channels, rows, columns) from position ``first`` on."""
        size = self.layout.convolutions[0].in_size
        interior(self.buffers["input0"], PADDING, size)[:, first : first + images.shape[1]] = images.movedim(2, 4)

    def forward(self) -> Tensor:
        """Products (critics, images, 1 + classes) of the features with the head's rows, in fp32."""
        for layer in range(CONVOLUTIONS):
            torch.clamp_min(self._convolve(layer, 0, 1.0), 0.0, out=self._hidden(layer))
        return torch.bmm(self._flat_features(), self.layout.head(self.weights).mT).float()

    def backward(self, seeds: Tensor) -> None:
        """Slopes of all layers for seeds (critics, images, 1 + classes), the weights of the head's rows."""
        projected = torch.bmm(seeds.to(self.shape.dtype), self.layout.head(self.weights))
        slope = self.buffers[f"slope{LAST}"]
        _masked(projected.view_as(slope), self.buffers["features"], slope)
        for layer in range(LAST, 0, -1):
            self._backward_layer(layer)

    def _backward_layer(self, layer: int) -> None:
        """Slopes after layer - 1 from those after ``layer``: a transposed convolution by parities, and the mask."""
        convolution = self.layout.convolutions[layer]
        bordered = self.buffers[f"bordered{layer}"]
        copy_images(self.buffers[f"slope{layer}"], interior(bordered, 1, convolution.out_size))
        kernels = self.layout.kernel(self.weights, layer)
        target, hidden = self.buffers[f"slope{layer - 1}"], self._hidden(layer - 1)
        for (down, across), taps in zip(PARITIES, self.taps, strict=True):
            kernel = parity_kernel(kernels, convolution, taps)
            height, width, _ = parity_shape(convolution, (down, across))
            patches = parity_patches(bordered, self.buffers["scratch"].view(-1), convolution, (down, across))
            product = torch.bmm(patches, kernel, out=self._product(patches.shape[1], convolution.in_channels))
            shape = (self.shape.critics, self.shape.images, height, width, convolution.in_channels)
            part = (..., slice(down, None, 2), slice(across, None, 2), slice(None))
            _masked(product.view(shape), hidden[part], target[part])

    def input_slopes(self, first: int = 0) -> Tensor:
        """Slopes (critics, images, channels, rows, columns) with respect to images from ``first`` on, in fp32."""
        convolution = self.layout.convolutions[0]
        slope = self.buffers["slope0"][:, first:]
        patches = torch.bmm(slope.flatten(1, 3), self.layout.kernel(self.weights, 0))
        patches = patches.view(-1, convolution.pixels * convolution.row)
        gathered = patches.index_select(1, self.fold.view(-1)).view(patches.shape[0], *self.fold.shape)
        slopes = gathered.sum(1, dtype=torch.float32)
        shape = (self.shape.critics, -1, *convolution.in_size, convolution.in_channels)
        return slopes.view(shape).movedim(4, 2)

    def tangents(self, directions: Tensor, first: int) -> None:
        """Pushes directions (critics, images, channels, rows, columns) through the masked layers, from ``first`` on.

        They take the place of these images' activations and patches, so ``weight_gradients`` finds them there.
        """
        self.set_images(directions, first)
        for layer in range(CONVOLUTIONS):
            hidden = self._hidden(layer)[:, first:]
            _masked(self._convolve(layer, first, 0.0), hidden, hidden)

    def weight_gradients(self, seeds: Tensor) -> Tensor:
        """Gradients (critics, size) of the normalised weights, summed over images; without the head's bias."""
        gradients = self.buffers["gradients"]
        for layer in range(CONVOLUTIONS):
            slope, columns = self.buffers[f"slope{layer}"], self.buffers[f"columns{layer}"]
            torch.bmm(slope.flatten(1, 3).mT, columns.flatten(1, 3), out=self.layout.kernel(gradients, layer))
        seeds = seeds.to(self.shape.dtype)
        torch.bmm(seeds.mT, self._flat_features(), out=self.layout.head(gradients))
        return gradients


def _masked(values: Tensor, activations: Tensor, out: Tensor) -> None:
    """Writes values where the activation is above zero, and zero elsewhere."""
    torch.ops.aten.threshold_backward.grad_input(values, activations, 0.0, grad_input=out)


SMALLEST_NORM = 1e-12


def selectors(shape: torch.Size, labels: Tensor | None, rows: int, device: torch.device) -> Tensor:
    """Which rows of the head score each image (critics, images, rows): the first, and that of its label."""
    chosen = torch.zeros(*shape, rows, device=device)
    if labels is not None:
        chosen.scatter_(2, labels.unsqueeze(2) + 1, 1.0)
    chosen[..., 0] = 1.0
    return chosen


def loss_and_gradients(
    stacked: StackedPass, spectral: SpectralState, batch: CriticBatch, active: Tensor, config: CriticLossConfig
) -> tuple[Tensor, CriticReport]:
    """Parameter gradients (k, size) in fp32, and each critic's figures; inactive critics get zero gradients.

    ``stacked`` holds the normalised weights of ``spectral``. Images lie as real, fake, interpolates.

    Privacy: reads real images. Row k of every result depends on row k of the inputs alone.
    """
    size = batch.real_images.shape[1]
    chosen = _place_images(stacked, batch)
    bias = stacked.layout.head_bias(stacked.weights).float().unsqueeze(1)
    scores = (stacked.forward() * chosen).sum(2) + bias
    real, fake = scores[:, :size], scores[:, size : 2 * size]
    share = active.view(-1, 1).float() / size
    coefficients = torch.cat([(2 * config.drift * real - 1) * share, share.expand_as(fake)], 1)
    seeds = torch.cat([chosen[:, : 2 * size] * coefficients.unsqueeze(2), chosen[:, 2 * size :]], 1)
    stacked.backward(seeds)
    slopes = stacked.input_slopes(2 * size)
    norms = slopes.flatten(2).norm(dim=2)
    pull = 2 * config.penalty * (norms - 1) * share
    stacked.tangents(slopes * (pull / norms.clamp_min(SMALLEST_NORM)).view(*norms.shape, 1, 1, 1), 2 * size)
    total = (coefficients * (scores[:, : 2 * size] - bias)).sum(1) + (pull * norms).sum(1)
    gradients = _parameter_gradients(stacked, spectral, seeds, total)
    stacked.layout.head_bias(gradients).copy_(coefficients.sum(1))
    gap, penalty = real.mean(1) - fake.mean(1), (norms - 1).square().mean(1)
    loss = config.drift * real.square().mean(1) - gap + config.penalty * penalty
    return gradients, CriticReport(loss, gap, penalty)


def _place_images(stacked: StackedPass, batch: CriticBatch) -> Tensor:
    """Sets real, fake and interpolated images, and returns their selectors of head rows."""
    real, fake = batch.real_images, batch.fake_images
    assert batch.mix is not None
    stacked.set_images(real)
    stacked.set_images(fake, real.shape[1])
    mix = batch.mix.view(*batch.mix.shape, 1, 1, 1)
    stacked.set_images(torch.lerp(real, fake, mix), 2 * real.shape[1])
    labels = None
    if stacked.layout.head_rows > 1:
        assert batch.real_labels is not None, "real_labels: these critics have classes"
        assert batch.fake_labels is not None, "fake_labels: these critics have classes"
        labels = torch.cat([batch.real_labels, batch.fake_labels, batch.real_labels], 1)
    shape = torch.Size((real.shape[0], 3 * real.shape[1]))
    return selectors(shape, labels, stacked.layout.head_rows, real.device)


def _parameter_gradients(stacked: StackedPass, spectral: SpectralState, seeds: Tensor, total: Tensor) -> Tensor:
    """Weight gradients of the pass, taken back through the spectral norm."""
    layout, weights = stacked.layout, stacked.weights
    gradients = stacked.weight_gradients(seeds)
    inner = inner_products(layout, weights, gradients, total)
    out = stacked.buffers["parameter_gradients"]
    write_parameter_gradients(layout, spectral, inner, gradients, out)
    return out
