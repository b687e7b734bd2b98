"""The WGAN-GP loss of k critics side by side, and its gradients by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from understudy.models.critic import CriticBatch, CriticLossConfig
from understudy.training.critic_bank_config import CriticReport
from understudy.training.stacked_critic import StackedPass
from understudy.training.stacked_spectral import SpectralState, inner_products, write_parameter_gradients

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
