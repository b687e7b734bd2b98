"""The discriminator step of DP-SGD: Poisson-sampled reals and a fixed number of fakes, clipped one by one, noised once.

The update is ``(sum of clipped gradients + Normal(0, (C * noise_multiplier)^2)) / 2B``, then Adam. The sum is one CUDA
graph on a graphics card and the same code, run eagerly, on a processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from understudy.configs import Precision
from understudy.data.sampling import sampling_rate
from understudy.engines.config import Adversary
from understudy.engines.dpsgd.batches import BatchTable, PoissonBatches
from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients
from understudy.engines.dpsgd.graph import CapturedSum
from understudy.engines.dpsgd.optimizer import FlatAdam
from understudy.engines.dpsgd.pairs import PairLengths, PairOptions, PairRecorder
from understudy.engines.records import Examples, Fakes, Reals, join
from understudy.errors import BudgetError, InputError
from understudy.models.generator import Generator
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.loop import Stateful
from understudy.runs.run import Run

_RESERVATIONS = 200  # the ledger is written about so often in a run
_CPU_ROWS = 64  # examples at a time on a processor, for its caches
_SPARE_DEVIATIONS = 2  # places for more reals than expected; what does not fit takes a pass of its own
_ROUND = 32


@dataclass(frozen=True)
class StepOptions:
    """What a discriminator step does; with ``private=False`` (method ``gan``) the same without clipping and noise."""

    batch: int  # B: expected reals a step, and exactly so many fakes
    clip: float  # C
    learning_rate: float
    betas: tuple[float, float]
    private: bool = True
    loss: Adversary = "logistic"
    weight_bound: float | None = None  # every weight is cut to it after a step (a critic's Lipschitz constant)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch: {self.batch}; pass an expected number of reals of at least 1")


class DiscriminatorStep:
    """Takes discriminator steps inside a run; the discriminator's parameters are moved into one flat tensor.

    Privacy: adding or removing a record changes at most one clipped addend, so the sum by at most C (add-remove,
    sensitivity "C"), and a record takes part with the event's Poisson rate. The number of fakes and the divisor 2B are
    public and do not follow the drawn batch. An empty batch is a step: fakes and noise. Each step spends one execution
    of the event before its noise is drawn. The discriminator after a step is a sanitized value.
    """

    def __init__(
        self, run: Run, discriminator: nn.Module, generator: Generator, settings: StepOptions, event: Event | None
    ) -> None:
        self._settings, self._device = settings, run.device
        self._rate = _checked_rate(run, settings, event)
        runtime = run.plan.config.runtime
        precision: Precision = runtime.precision if run.device.type == "cuda" else "fp32"
        self._rows = runtime.micro_batch if run.device.type == "cuda" else min(runtime.micro_batch, _CPU_ROWS)
        self._discriminator, self._flat = discriminator, FlatParameters(discriminator)
        self._gradients = PerExampleGradients(discriminator, self._flat, precision)
        self._reals = Reals(run.data, run.device, self._gradients.number_type)
        self._fakes = Fakes(generator, self._gradients.number_type, labelled=run.data.labels is not None)
        self._mechanism: GaussianSum | None = None
        if event is not None:
            self._mechanism = GaussianSum(run.ledger, run.randomness, clip=settings.clip, event=event)
            self._block = max(1, event.count // _RESERVATIONS)
        self._batches = PoissonBatches(len(run.data), self._rate, run.randomness.coins(run.device))
        self._random = run.randomness.generator(run.device)
        self._total = self._flat.zeros()
        self._seen_private = torch.zeros(3, dtype=torch.float64, device=run.device)
        self._optimizer = FlatAdam(self._flat.values, settings.learning_rate, settings.betas)
        self._pairs: PairLengths | None = None
        self._waiting: list[tuple[Tensor, int, Tensor, Tensor]] = []
        self._captured: CapturedSum | None = None
        self._check_network()

    def take(self, count: int = 1) -> None:
        """Take ``count`` steps; raises BudgetError, and takes none, if the plan does not hold so many.

        Privacy: ``count`` executions of the event.
        """
        if self._mechanism is not None and count > self._mechanism.account.remaining:
            raise BudgetError(
                f"budget: {count} more discriminator steps were asked for, but only {self.remaining} of the "
                f"{self._mechanism.account.planned} planned are left; nothing was spent on them"
            )
        for _ in range(count):
            if self._pairs is not None:
                self._pairs.measure()
            self._sum_gradients()
            self._update()

    def listen(self, run: Run, recorder: PairRecorder, pairs: int) -> PairLengths:
        """From now on, measure before each step how much ``pairs`` units drawn for that purpose would move the sum.

        Privacy: the lengths are private and go to the recorder alone; the steps are the same as without it.
        """
        settings = PairOptions(pairs, self._settings.clip, self._settings.loss)
        random = run.randomness.generator(run.device)
        self._pairs = PairLengths(self._gradients, self._reals, settings, recorder, random)
        return self._pairs

    @property
    def remaining(self) -> int | None:
        """Steps that the plan still allows; None without privacy."""
        return None if self._mechanism is None else self._mechanism.account.remaining

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep. Privacy: sanitized values only."""
        return {"discriminator": self._discriminator, "optimizer": self._optimizer}

    def diagnostics(self) -> dict[str, float]:
        """Mean gradient norm and clipped share of all examples since the last call; checks that they were finite.

        Privacy: private, for ``run.diagnose`` alone.
        """
        if self._mechanism is None:
            return {}
        self._mechanism.check_finite()
        seen, clipped, norms = self._seen_private.tolist()
        self._seen_private.zero_()
        return {"gradient_norm": norms / max(1.0, seen), "clipped": clipped / max(1.0, seen)}

    # --- the sum

    def _sum_gradients(self) -> None:
        """The clipped gradients of one batch as the new total: what a failed step may have left behind is forgotten."""
        if not self._waiting:
            self._draw_ahead()
        self._total.zero_()
        indices_private, size_private, latent, labels = self._waiting.pop()
        if self._device.type != "cuda":
            self._add(indices_private[:size_private], (latent, labels))
            return
        if self._captured is None:
            self._captured = CapturedSum(self._add, self._capacity, (latent, labels), self._total, self._reals.filler)
        self._captured.replay(indices_private, size_private, (latent, labels))

    def _add(self, indices_private: Tensor, drawn: tuple[Tensor, Tensor] | None) -> None:
        """Add the clipped gradients of some reals and of the fakes from ``drawn`` to the total, in micro-batches."""
        self._gradients.refresh()
        examples = self._reals.gather(indices_private)
        if drawn is not None:
            self._fakes.refresh()
            examples = join(examples, self._fakes.render(*drawn))
        for some in examples.chunks(self._rows):
            if len(some.images):
                self._add_chunk(some)

    def _add_chunk(self, examples: Examples) -> None:
        def weigh(norms_private: Tensor) -> Tensor:
            assert self._mechanism is not None
            factors = self._mechanism.clip_factors(norms_private, examples.present)
            self._note(norms_private, factors, examples.present)
            return factors

        weights = weigh if self._mechanism is not None else examples.present.to(self._total.dtype)
        loss = partial(examples.losses, self._settings.loss)
        self._gradients.add(self._total, (examples.images, examples.labels), loss, weights)

    def _note(self, norms_private: Tensor, factors: Tensor, present: Tensor) -> None:
        norms_private = torch.where(factors > 0, norms_private, 0.0)
        self._seen_private += torch.stack([present, present & (factors < 1), norms_private]).sum(dim=1)

    @property
    def _capacity(self) -> int:
        """Places for reals in one pass, from public numbers; rounded so that reals and fakes fill whole tiles."""
        expected = self._settings.batch
        wanted = 2 * expected + _SPARE_DEVIATIONS * math.sqrt(expected)
        return math.ceil(wanted / _ROUND) * _ROUND - expected

    def _draw_ahead(self) -> None:
        """Batches, latent values and labels for the next steps, all fresh and independent; aborts a broken run."""
        if self._mechanism is not None:
            self._mechanism.check_finite()
        steps = self._batches.steps_at_once
        table: BatchTable = self._batches.draw(steps, self._capacity)
        latent, labels = self._fakes.draw(steps * self._settings.batch, self._random)
        drawn = zip(latent.chunk(steps), labels.chunk(steps), strict=True)
        self._waiting = [(table.indices[step], table.sizes[step], *fakes) for step, fakes in enumerate(drawn)]

    # --- the update

    def _update(self) -> None:
        """Noise once, divide by 2B, one step of Adam; cutting the weights afterwards is post-processing."""
        update_dp = self._total
        if self._mechanism is not None:
            update_dp = self._mechanism.release(self._total, block=self._block).value_dp
        self._optimizer.step(update_dp / (2 * self._settings.batch))
        if self._settings.weight_bound is not None:
            self._flat.values.clamp_(-self._settings.weight_bound, self._settings.weight_bound)

    def _check_network(self) -> None:
        """Refuse a discriminator that mixes examples, on five generated ones."""
        latent, labels = self._fakes.draw(10, self._random)
        fakes = self._fakes.render(latent, labels)
        given = [
            (fakes.images[rows], None if fakes.labels is None else fakes.labels[rows])
            for rows in (slice(5), slice(5, 10))
        ]
        self._gradients.check_examples_apart(given[0], given[1])


def _checked_rate(run: Run, settings: StepOptions, event: Event | None) -> float:
    """The rate that is accounted is the rate that is drawn."""
    rate = sampling_rate(settings.batch, run.data.domain.nominal_records)
    if settings.private != (event is not None):
        raise InputError("event: private steps need the event that they are accounted with, and only they")
    if event is not None and not (isinstance(event.sampling, PoissonSampling) and event.sampling.rate == rate):
        raise InputError(f"event: steps sample with a Poisson rate of {rate:g}, but {event.sampling} is accounted")
    return rate
