"""DP-SGD on a network: Poisson-sampled records, per-example gradients clipped and summed, noise once a step.

The update is ``(sum of clipped gradients + Normal(0, (C * noise_multiplier)^2)) / B``, then Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from understudy.configs import Precision
from understudy.data.sampling import sampling_rate
from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients
from understudy.engines.dpsgd.optimizer import FlatAdam
from understudy.engines.records import Examples, Reals
from understudy.errors import InputError
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.run import Run

Losses = Callable[[Tensor, Examples], Tensor]  # outputs (N, ...) and records -> losses (N,), each of its own alone

_RESERVATIONS = 200  # the ledger is written about so often in a run
_CPU_ROWS = 128  # examples at a time on a processor, for its caches


@dataclass(frozen=True)
class SgdOptions:
    """What a step does."""

    batch: int  # B: expected records a step
    clip: float  # C
    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)


class PrivateSgd:
    """Trains a network on the records of a run; its parameters are moved into one flat tensor.

    Privacy: a record's gradient depends on its own image and label alone and is clipped to C, so adding or removing it
    moves the sum by at most C (add-remove, sensitivity "C"); it takes part with the event's Poisson rate. The divisor B
    is public. An empty batch is a step: noise alone. Each step spends one execution before its noise is drawn. The
    network after a step is a sanitized value, and so are its optimiser's moments.
    """

    def __init__(self, run: Run, network: nn.Module, settings: SgdOptions, event: Event, losses: Losses) -> None:
        rate = sampling_rate(settings.batch, run.plan.domain.nominal_records)
        if not (isinstance(event.sampling, PoissonSampling) and event.sampling.rate == rate):
            raise InputError(f"event: steps sample with a Poisson rate of {rate:g}, but {event.sampling} is accounted")
        on_card, runtime = run.device.type == "cuda", run.plan.config.runtime
        precision: Precision = runtime.precision if on_card else "fp32"
        self._rows = runtime.micro_batch if on_card else min(runtime.micro_batch, _CPU_ROWS)
        self._batch, self._block = settings.batch, max(1, event.count // _RESERVATIONS)
        flat = FlatParameters(network)
        self._losses, self._gradients = losses, PerExampleGradients(network, flat, precision)
        self._reals = Reals(run.data, run.device, self._gradients.number_type)
        self._batches = PoissonBatches(len(run.data), rate, run.randomness.coins(run.device))
        self._mechanism = GaussianSum(run.ledger, run.randomness, clip=settings.clip, event=event)
        self.optimizer = FlatAdam(flat.values, settings.learning_rate, settings.betas)
        self._total, self._waiting = flat.zeros(), list[Tensor]()
        self._check_network(run)

    @property
    def remaining(self) -> int:
        """Steps that the plan still allows."""
        return self._mechanism.account.remaining

    def check_finite(self) -> None:
        """Stop the run if too many gradients were not finite."""
        self._mechanism.check_finite()

    def take(self) -> None:
        """One step. Privacy: one execution of the event; nothing is left in the sum of a step that broke off."""
        self._total.zero_()
        self._gradients.refresh()
        for indices_private in self._draw().split(self._rows):
            self._add(self._reals.gather(indices_private))
        update_dp = self._mechanism.release(self._total, block=self._block).value_dp
        self.optimizer.step(update_dp / self._batch)

    def _add(self, records_private: Examples) -> None:
        """Add clipped gradients to the total.

        Privacy: the mechanism's clip factors bound each addend by C, rounding included.
        """

        def loss(outputs: Tensor) -> Tensor:
            return self._losses(outputs.float(), records_private)

        def weigh(norms_private: Tensor) -> Tensor:
            return self._mechanism.clip_factors(norms_private, torch.ones_like(norms_private, dtype=torch.bool))

        if len(records_private.images):
            self._gradients.add(self._total, (records_private.images,), loss, weigh)

    def _draw(self) -> Tensor:
        """The records of the next batch; private."""
        if not self._waiting:
            table = self._batches.draw(self._batches.steps_at_once)
            self._waiting = [row[:size] for row, size in zip(table.indices, table.sizes, strict=True)]
        return self._waiting.pop()

    def _check_network(self, run: Run) -> None:
        """Refuse a network that mixes examples, on ten images of noise."""
        shape, random = (10, *run.plan.domain.shape), run.randomness.generator(run.device)
        noise = torch.rand(shape, generator=random, device=run.device).to(self._gradients.number_type)
        self._gradients.check_examples_apart((noise[:5],), (noise[5:],))
