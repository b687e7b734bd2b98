"""One private step of DP-SGD: Poisson-sampled units, their gradients clipped one by one and summed, then noise once.

The update is ``(sum of clipped gradients + Normal(0, (C * noise_multiplier)^2)) / divisor``. With companions the
sum is one CUDA graph on a graphics card, without them one for each micro-batch; on a processor the same code is run
eagerly.

Who takes steps says what a network is shown of an example and what its loss is (``Objective``), and may send public
examples along with every batch (``Companions``), as the generated images that a discriminator sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from understudy.configs import Precision
from understudy.data.sampling import SPARE_DEVIATIONS, check_sum, places_in_pass, sampling_rate
from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.engines.dpsgd.captured import CapturedSum
from understudy.engines.dpsgd.gradients import FlatParameters, Loss, PerExampleGradients
from understudy.engines.dpsgd.sharing import SharedSteps, Sharing
from understudy.engines.records import Examples, Records
from understudy.errors import BudgetError, InputError
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.run import Run

Inputs = tuple[Tensor | None, ...]
Drawn = tuple[Tensor, ...]  # what companions are made from, one row for each
Objective = Callable[[Examples, torch.Generator], tuple[Inputs, Loss]]  # see ``PrivateStep``

_RESERVATIONS = 200  # the ledger is written about so often in a run
_CPU_ROWS = 64  # examples at a time on a processor, for its caches
_ROUND = 32
_PROBES = 10
_TINY = 1e-8


class Companions(Protocol):
    """Public examples that go along with every batch, always equally many.

    Privacy: neither their number nor what they are made from may follow the drawn batch or any private value.
    """

    @property
    def count(self) -> int:
        """How many there are in a step."""
        ...

    def draw(self, count: int, random: torch.Generator) -> Drawn:
        """What ``count`` of them are made from."""
        ...

    def render(self, *drawn: Tensor) -> Examples:
        """The examples themselves, in the number type of ``step_precision``; captured, so nothing may wait here."""
        ...


@dataclass(frozen=True)
class Descent:
    """Plain gradient descent, whose rate falls to ``last_rate`` in a straight line over the first ``steps``."""

    last_rate: float
    steps: int


@dataclass(frozen=True)
class StepOptions:
    """What a step does; with ``private=False`` (method ``gan``) the same without clipping and noise."""

    batch: int  # B: expected units a step
    clip: float  # C
    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    rows: int = 1  # that a network is shown of each image, one after the other
    images_per_person: int = 1  # where the units are people: so many images of each, at most
    private: bool = True
    descent: Descent | None = None  # instead of Adam
    weight_bound: float | None = None  # every weight is cut to it after a step (a critic's Lipschitz constant)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch: {self.batch}; pass an expected number of units of at least 1")
        if self.private:
            check_sum(self.batch)
        if self.rows < 1:
            raise InputError(f"rows: {self.rows}; show at least one row of each unit")


def step_precision(run: Run) -> Precision:
    """The precision of the products of a step: as the run asks for on a graphics card, full on a processor."""
    precision: Precision = run.plan.config.runtime.precision if run.device.type == "cuda" else "fp32"
    return precision


class PrivateStep:
    """Takes private steps inside a run; the network's parameters are moved into one flat tensor.

    An objective says what the network is shown of images, ``rows`` rows of each, and the loss of its answers; chance
    that it needs comes from the generator that it is given. ``records`` may be other than the images themselves: what
    a fixed function of each image made of it.

    A unit is a record or, where the data are of people, a person with some of its images, whose losses are averaged.

    Privacy: a unit's gradient is summed over its rows, depends on that unit alone (and on chance that is independent of
    all data, secret, and fresh for every row) and is clipped to C, once, so adding or removing one moves the sum
    by at most C (add-remove, sensitivity "C"), and it takes part with the event's Poisson rate. The number of
    companions and the divisor, B and that number, are public and do not follow the drawn batch. An empty batch is a
    step: companions and noise. Each step spends one execution of the event before its noise is drawn. The network after
    a step is a sanitized value, and so are its optimiser's moments.
    """

    def __init__(
        self,
        run: Run,
        network: nn.Module,
        objective: Objective,
        options: StepOptions,
        event: Event | None,
        companions: Companions | None = None,
        records: Records | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self._options, self._objective, self._companions = options, objective, companions
        self._device, rate = run.device, _checked_rate(run, options, event)
        at_once = run.plan.config.runtime.micro_batch
        rows = at_once if run.device.type == "cuda" else min(at_once, _CPU_ROWS)
        self._together = options.images_per_person if run.plan.domain.unit == "person" else 1
        self._at_once = max(1, rows // (options.rows * self._together))
        self._flat = FlatParameters(network)
        self._gradients = PerExampleGradients(network, self._flat, step_precision(run), options.rows * self._together)
        self._records = records or Records(run.data, run.device, self._gradients.number_type, self._together)
        self._mechanism: GaussianSum | None = None
        if event is not None:
            self._mechanism = GaussianSum(run.ledger, run.randomness, clip=options.clip, event=event)
            self._block = max(1, event.count // _RESERVATIONS)
        self._batches = PoissonBatches(self._records.filler, rate, run.randomness.coins(run.device), run.team)
        self._random = run.randomness.secret_generator(run.device)
        self._total = self._flat.zeros()
        self._seen_private = torch.zeros(3, dtype=torch.float64, device=run.device)
        self.optimizer = _optimizer(self._flat.values, options)
        self._listeners: list[Callable[[], None]] = []
        self._waiting: list[tuple[Tensor, int, Drawn]] = []
        self._captured: CapturedSum | None = None
        self._shared = SharedSteps(run.team, self._flat.values, sharing)
        self._check_network(run)

    def take(self, count: int = 1) -> None:
        """Take ``count`` steps; raises BudgetError, and takes none, if the plan does not hold so many.

        Privacy: ``count`` executions of the event.
        """
        if self._mechanism is not None and count > self._mechanism.account.remaining:
            raise BudgetError(
                f"budget: {count} more {self._mechanism.account.template.purpose} were asked for, but only "
                f"{self.remaining} of the {self._mechanism.account.planned} planned are left; nothing was spent on them"
            )
        for _ in range(count):
            for listener in self._listeners:
                listener()
            self._sum_gradients()
            self._update()

    @property
    def remaining(self) -> int | None:
        """Steps that the plan still allows; None without privacy."""
        return None if self._mechanism is None else self._mechanism.account.remaining

    def check_finite(self) -> None:
        """Stop the run if too many gradients were not finite."""
        if self._mechanism is not None:
            self._mechanism.check_finite()

    def diagnostics(self) -> dict[str, float]:
        """Mean gradient norm and clipped share of all examples since the last call; checks that they were finite.

        Privacy: private, for ``run.diagnose`` alone.
        """
        if self._mechanism is None:
            return {}
        self.check_finite()
        seen, clipped, norms = self._seen_private.tolist()
        self._seen_private.zero_()
        return {"gradient_norm": norms / max(1.0, seen), "clipped": clipped / max(1.0, seen)}

    # --- looking on

    def listen(self, listener: Callable[[], None]) -> None:
        """Call somebody before each step, at the weights that it is taken from.

        Privacy: a listener may look at private units, as ``norms_private`` does; none of it may come back into a step.
        """
        self._listeners.append(listener)

    @property
    def units_private(self) -> int:
        """How many units there are, which is private; this number itself stands for a place that holds none."""
        return self._records.filler

    def norms_private(self, indices_private: Tensor) -> Tensor:
        """What the gradients of some units would be clipped by at these weights: bounds of norms, NaN for a broken one.

        Privacy: private. Nothing is summed and nothing is spent, so it must not reach a weight, message or decision.
        """
        self._gradients.refresh()
        chunks = self._records.gather(indices_private, self._random).chunks(self._at_once)
        return torch.cat([self._gradients.norms(*self._shown(some)) for some in chunks])

    # --- the sum

    def help(self) -> dict[str, Any] | None:
        """Of a follower: add this process's part to every step of the leader; what that tells instead of a further one.

        Privacy: what it sums goes to the leader, who adds the noise; nothing is spent, learnt or released here.
        """
        drawn = () if self._companions is None else self._companions.draw(self._public * self._together, self._random)
        while self._shared.follow(drawn):
            self._sum_own(drawn)
        return self._shared.heard

    def _sum_gradients(self) -> None:
        """The clipped gradients of one batch as the new total: what a failed step may have left behind is forgotten."""
        if not self._waiting:
            self._draw_ahead()
        drawn = self._waiting[-1][2]
        if not self._shared.alone:
            self._shared.begin(drawn)
        self._sum_own(drawn)

    def _sum_own(self, drawn: Drawn) -> None:
        """The same of this process's units and companions alone, then together with those of the others, if any."""
        if not self._waiting:
            self._draw_ahead()
        self._total.zero_()
        indices_private, size_private, _ = self._waiting.pop()
        if self._shared.alone:
            self._add_drawn(indices_private, size_private, drawn)
            return
        own = self._shared.own(self._public)
        rows = slice(own.start * self._together, own.stop * self._together)
        mine = tuple(part[rows] for part in drawn) if own.stop > own.start else ()
        self._add_drawn(indices_private, size_private, mine)
        broken = () if self._mechanism is None else (self._mechanism.counts_private(self._device),)
        self._shared.end(self._total, self._seen_private, *broken)

    def _add_drawn(self, indices_private: Tensor, size_private: int, drawn: Drawn) -> None:
        if self._device.type != "cuda":
            self._add(indices_private[:size_private], drawn)
            return
        if self._captured is None:
            self._captured = CapturedSum(
                self._add, self._capacity, drawn, self._total, self._records.filler, self._random
            )
        self._captured.replay(indices_private, size_private, drawn)

    def _add(self, indices_private: Tensor, drawn: Drawn) -> None:
        """Add the clipped gradients of some units, and of the companions made from ``drawn``, in micro-batches."""
        self._gradients.refresh()
        examples = self._records.gather(indices_private, self._random)
        if self._companions is not None and drawn:
            examples = examples.followed_by(self._companions.render(*drawn).grouped(self._together))
        for some in examples.chunks(self._at_once):
            if len(some.images):
                self._add_chunk(some)

    def _add_chunk(self, examples: Examples) -> None:
        def weigh(norms_private: Tensor) -> Tensor:
            assert self._mechanism is not None
            factors = self._mechanism.clip_factors(norms_private, examples.present)
            self._note(norms_private, factors, examples.present)
            return factors

        weights = weigh if self._mechanism is not None else examples.present.to(self._total.dtype)
        self._gradients.add(self._total, *self._shown(examples), weights)

    def _shown(self, examples: Examples) -> tuple[Inputs, Loss]:
        """The network's inputs, and their loss in float32; of a person's images each counts its part."""
        images = examples.flat()
        inputs, loss = self._objective(images, self._random)
        if images.weights is None:
            return inputs, lambda outputs: loss(outputs.float())
        parts = images.weights.repeat_interleave(self._options.rows)
        return inputs, lambda outputs: loss(outputs.float()) * parts

    def _note(self, norms_private: Tensor, factors: Tensor, present: Tensor) -> None:
        norms_private = torch.where(factors > 0, norms_private, 0.0)
        self._seen_private += torch.stack([present, present & (factors < 1), norms_private]).sum(dim=1)

    @property
    def _public(self) -> int:
        """Companions in a step."""
        return 0 if self._companions is None else self._companions.count

    @property
    def _capacity(self) -> int:
        """Places for units in one pass, from public numbers; rounded so that units and companions fill whole tiles.

        Without companions a pass is one micro-batch, repeated until all units have had their turn.
        """
        own = self._shared.own(self._public)
        public, expected = own.stop - own.start, self._shared.part_of(self._options.batch)
        if self._companions is None:
            return places_in_pass(expected, self._at_once)
        wanted = expected + public + SPARE_DEVIATIONS * math.sqrt(expected)
        return math.ceil(wanted / _ROUND) * _ROUND - public

    def _draw_ahead(self) -> None:
        """Batches and companions for the next steps, all fresh and independent; aborts a broken run."""
        self.check_finite()
        steps = self._batches.steps_at_once
        table = self._batches.draw(steps, self._capacity)
        drawn = (
            ()
            if self._companions is None
            else self._companions.draw(steps * self._public * self._together, self._random)
        )
        parts = [part.chunk(steps) for part in drawn]
        self._waiting = [
            (table.indices[step], table.sizes[step], tuple(part[step] for part in parts)) for step in range(steps)
        ]

    # --- the update

    def _update(self) -> None:
        """Noise once, divide by a public number, one step; cutting the weights then is post-processing."""
        update_dp = self._total
        if self._mechanism is not None:
            update_dp = self._mechanism.release(self._total, block=self._block).value_dp
        self.optimizer.step(update_dp / (self._options.batch + self._public))
        if self._options.weight_bound is not None:
            self._flat.values.clamp_(-self._options.weight_bound, self._options.weight_bound)

    def _check_network(self, run: Run) -> None:
        """Refuse a network that mixes examples, on public ones: companions, or images of noise."""
        if self._companions is not None:
            examples = self._companions.render(*self._companions.draw(_PROBES, self._random))
        else:
            noise = torch.rand((_PROBES, *self._records.shape), generator=self._random, device=self._device)
            ones = torch.ones(_PROBES, device=self._device)
            labels = ones.long() - 1 if run.data.labels is not None else None
            examples = Examples(noise.to(self._gradients.number_type), labels, ones, ones.bool())
        shown = (self._objective(some, self._random)[0] for some in examples.chunks(_PROBES // 2))
        first, second = (
            tuple(None if part is None else part[:: self._options.rows] for part in inputs) for inputs in shown
        )
        self._gradients.check_examples_apart(first, second)


def _checked_rate(run: Run, options: StepOptions, event: Event | None) -> float:
    """The rate that is accounted is the rate that is drawn."""
    rate = sampling_rate(options.batch, run.data.domain.nominal_units)
    if options.private != (event is not None):
        raise InputError("event: private steps need the event that they are accounted with, and only they")
    if event is not None and not (isinstance(event.sampling, PoissonSampling) and event.sampling.rate == rate):
        raise InputError(f"event: steps sample with a Poisson rate of {rate:g}, but {event.sampling} is accounted")
    return rate


# --- the optimiser


def _optimizer(values: Tensor, options: StepOptions) -> FlatAdam | FlatDescent:
    """As the options say."""
    if options.descent is not None:
        return FlatDescent(values, options.learning_rate, options.descent)
    return FlatAdam(values, options.learning_rate, options.betas)


class FlatDescent:
    """Gradient descent on one flat tensor, in place.

    Privacy: it sees sanitized updates only.
    """

    def __init__(self, values: Tensor, rate: float, descent: Descent) -> None:
        self._values, self.rate, self._descent = values, rate, descent
        self.steps = 0

    def step(self, update_dp: Tensor) -> None:
        """One step against the (averaged, noisy) gradient."""
        fallen = min(1.0, self.steps / self._descent.steps)
        self.steps += 1
        rate = self.rate + fallen * (self._descent.last_rate - self.rate)
        self._values.add_(update_dp.to(self._values.dtype), alpha=-rate)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue where a checkpoint stood."""
        self.steps = int(state["steps"])


class FlatAdam:
    """Adam (Kingma, Ba 2015) with bias correction on one flat tensor, in place: a few operations, whatever the network.

    ``torch.optim.Adam(fused=True)`` on that tensor saves 2 of 9 ms a step (1.7 million weights, one thread), but rounds
    one weight in six differently, and its state would have to be converted to the keys that checkpoints hold.

    Privacy: it sees sanitized updates only, so its moments may be kept.
    """

    def __init__(self, values: Tensor, learning_rate: float, betas: tuple[float, float]) -> None:
        self._values, self.rate, self._betas = values, learning_rate, betas
        self._first, self._second = torch.zeros_like(values), torch.zeros_like(values)
        self.steps = 0

    def step(self, update_dp: Tensor) -> None:
        """One step against the (averaged, noisy) gradient."""
        self.steps += 1
        first, second = self._betas
        update_dp = update_dp.to(self._values.dtype)
        self._first.lerp_(update_dp, 1 - first)
        self._second.mul_(second).addcmul_(update_dp, update_dp, value=1 - second)
        correction = math.sqrt(1 - second**self.steps)
        scale = self._second.sqrt().add_(_TINY * correction)
        self._values.addcdiv_(self._first, scale, value=-self.rate * correction / (1 - first**self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Moments and the number of steps."""
        return {"first": self._first, "second": self._second, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Continue where a checkpoint stood."""
        self._first.copy_(state["first"])
        self._second.copy_(state["second"])
        self.steps = int(state["steps"])
