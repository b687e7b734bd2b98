"""Warm start: each critic plays against its own light, throw-away generator, on its own subset only.

The generators are a bank too: stacked two-layer networks from a latent vector and a label to pixels, clamped to 0..1
with a straight-through gradient, which cannot saturate as a sigmoid does. They are discarded block by block.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from understudy.configs import Config, Count, Natural, NonNegative
from understudy.engines.critics.bank import CriticBank, CriticReport
from understudy.engines.critics.subsets import PrivateRecords, take
from understudy.models.critic import CriticBatch, CriticConfig


class WarmStartConfig(Config):
    """How long and against what critics train before the first query."""

    iterations: Natural = 60
    batch: Count = 32
    block: Count = 125  # critics at a time
    latent: Count = 16
    hidden: Count = 128
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    outside: NonNegative = 1.0  # weight of the pull on pixels outside 0..1
    critic_steps: Count = 1  # for each step of the generators


class StackedGenerators:
    """k two-layer generators as stacked parameters, each with its own Adam (element-wise, so rows never mix)."""

    def __init__(
        self, critics: int, critic: CriticConfig, config: WarmStartConfig, generator: torch.Generator | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.critic, self.config, self.generator = critic, config, generator
        inputs, pixels = config.latent + (critic.classes or 0), torch.Size(critic.shape).numel()
        self.parameters = [
            torch.empty(critics, fan_in + 1, fan_out, device=device)
            .uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
            .requires_grad_()
            for fan_in, fan_out in ((inputs, config.hidden), (config.hidden, pixels))
        ]
        self.optimiser = torch.optim.Adam(self.parameters, lr=config.learning_rate, betas=(0.5, 0.9))

    def raw(self, labels: Tensor | None, count: int) -> Tensor:
        """Pixels (k, count, channels, rows, columns) before clamping, of fresh latent vectors."""
        first, second = self.parameters
        inputs = torch.randn(len(first), count, self.config.latent, device=first.device, generator=self.generator)
        if labels is not None:
            assert self.critic.classes is not None
            inputs = torch.cat([inputs, F.one_hot(labels, self.critic.classes).float()], 2)
        hidden = torch.baddbmm(first[:, -1:], inputs, first[:, :-1]).relu()
        pixels = torch.baddbmm(second[:, -1:], hidden, second[:, :-1])
        return pixels.view(len(first), count, *self.critic.shape)

    def step(self, raw: Tensor, slopes: Tensor) -> None:
        """One Adam step along the critics' slopes, passed straight through the clamp, and the pull back into 0..1."""
        values = raw.detach()
        slopes = slopes + 2 * self.config.outside * (values - values.clamp(0, 1))
        gradients = torch.autograd.grad(raw, self.parameters, slopes / raw.shape[1])
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()


def warm_start(
    bank: CriticBank, records: PrivateRecords, config: WarmStartConfig, generator: torch.Generator | None = None
) -> CriticReport:
    """Trains every critic of the bank against its own generator and returns the last step's figures (K,).

    Privacy: critic k reads subset k only; its generator is seen by nobody else and is thrown away. Random numbers are
    drawn in shapes that depend on no record, so one record changes one critic. Nothing here may be released.
    """
    count = bank.config.critics
    blocks = [slice(start, min(start + config.block, count)) for start in range(0, count, config.block)]
    reports = [_warm_block(bank, block, records, config, generator) for block in blocks]
    return CriticReport(*(torch.cat([getattr(r, name) for r in reports]) for name in ("loss", "gap", "penalty")))


def _warm_block(
    bank: CriticBank, block: slice, records: PrivateRecords, config: WarmStartConfig, generator: torch.Generator | None
) -> CriticReport:
    critics = block.stop - block.start
    makers = StackedGenerators(critics, bank.config.critic, config, generator, bank.device)
    report = CriticReport(*(torch.zeros(critics, device=bank.device) for _ in range(3)))
    for iteration in range(config.iterations):
        drawn = records.table.draw(block, config.batch, generator)
        real, labels = take(records.images, records.labels, drawn)
        raw = makers.raw(labels, config.batch)
        report = bank.train_step(block, CriticBatch(real, raw.detach().clamp(0, 1), labels, labels), generator)
        if (iteration + 1) % config.critic_steps == 0:
            raw = makers.raw(labels, config.batch)
            makers.step(raw, bank.input_gradients(block, raw.detach().clamp(0, 1), labels))
    return report
