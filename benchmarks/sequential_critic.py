"""One critic at a time, as autograd sees it: what the critic bank is tested against, and its rival in the benchmark."""

from __future__ import annotations

import torch
from torch import Tensor

from understudy.engines.critics.bank import CriticBank
from understudy.engines.critics.layout import CriticLayout
from understudy.models.critic import KERNEL, Critic, CriticBatch, CriticLossConfig


def critic_loss(critic: Critic, batch: CriticBatch, config: CriticLossConfig) -> Tensor:
    """WGAN-GP loss of one critic on one batch, in one forward pass (so one power iteration).

    Privacy: reads real images; the loss and its gradients stay with this critic and are never released.
    """
    assert batch.mix is not None, "mix: the place of each interpolate is needed"
    mix = batch.mix.view(-1, 1, 1, 1)
    interpolates = torch.lerp(batch.real_images, batch.fake_images, mix).requires_grad_()
    images = torch.cat([batch.real_images, batch.fake_images, interpolates])
    labels = None
    if batch.real_labels is not None and batch.fake_labels is not None:
        labels = torch.cat([batch.real_labels, batch.fake_labels, batch.real_labels])
    real, fake, middle = critic(images, labels).chunk(3)
    (slope,) = torch.autograd.grad(middle.sum(), interpolates, create_graph=True)
    penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    loss: Tensor = fake.mean() - real.mean() + config.drift * real.square().mean() + config.penalty * penalty
    return loss


def critic_of(bank: CriticBank, row: int) -> Critic:
    """One critic of a bank as a module: a copy."""
    return unpack(bank.layout, bank.parameters[row], bank.vectors[row])


@torch.no_grad()
def pack(layout: CriticLayout, critic: Critic) -> tuple[Tensor, Tensor]:
    """A module's parameters as a flat row (size,) and its left singular vectors (vectors,)."""
    flat = torch.zeros(1, layout.size)
    for layer, convolution in enumerate(critic.convolutions):
        layout.blocks[layer].of(flat)[0] = convolution.weight.permute(0, 2, 3, 1).flatten(1)
        layout.convolution_bias(flat, layer)[0] = convolution.bias
    rows = [critic.head.weight] + ([critic.projection.weight] if critic.projection is not None else [])
    layout.head(flat)[0] = _feature_order(layout, torch.cat(rows), to_flat=True)
    layout.head_bias(flat)[0] = critic.head.bias[0]
    return flat[0], torch.cat([norm.left for norm in critic.norms])


@torch.no_grad()
def unpack(layout: CriticLayout, flat: Tensor, vectors: Tensor) -> Critic:
    """One critic's flat row and vectors as a module."""
    critic = Critic(layout.config).to(flat.device)
    flat, vectors = flat[None], vectors[None]
    for layer, module in enumerate(critic.convolutions):
        shape = (KERNEL, KERNEL, layout.convolutions[layer].in_channels)
        module.weight.copy_(torch.unflatten(layout.blocks[layer].of(flat)[0], 1, shape).permute(0, 3, 1, 2))
        module.bias.copy_(layout.convolution_bias(flat, layer)[0])
    rows = _feature_order(layout, layout.head(flat)[0], to_flat=False)
    critic.head.weight.copy_(rows[:1])
    critic.head.bias.copy_(layout.head_bias(flat))
    if critic.projection is not None:
        critic.projection.weight.copy_(rows[1:])
    for block, norm in zip(layout.blocks, critic.norms, strict=True):
        norm.left.copy_(block.left(vectors)[0])
    return critic


def _feature_order(layout: CriticLayout, matrix: Tensor, *, to_flat: bool) -> Tensor:
    """Features from (channel, row, column) order of the module to (row, column, channel) of the bank, or back."""
    height, width = layout.convolutions[-1].out_size
    channels = layout.convolutions[-1].out_channels
    if to_flat:
        return torch.unflatten(matrix, -1, (channels, height, width)).permute(0, 2, 3, 1).flatten(1)
    return torch.unflatten(matrix, -1, (height, width, channels)).permute(0, 3, 1, 2).flatten(1)
