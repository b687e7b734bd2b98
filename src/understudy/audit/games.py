"""Games: the real mechanisms, samplers and routers of a method, fed with the worst neighbours there can be.

A trial is one data set with or without one unit, and all that a plan does to it. Many trials are played side by side:
each has its own coordinate, cell or row, where its unit moves the exact value as far as the mechanism lets it. Rows
come in far longer than the clip bound, so what is audited includes the clipping. Noise is independent from place to
place if the mechanism keeps its word; whoever plays checks that, too.

A game returns for every trial the log-likelihood ratio of "with" against "without" under the claim: the best test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from understudy.audit.bounds import Numbers
from understudy.configs import MethodConfig
from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.engines.embedding.means import release_means
from understudy.engines.teacher.training import SoftmaxRows, softmax_gradients
from understudy.federated.updates import chosen_clients
from understudy.files import read_tensors
from understudy.privacy.budget import NoBudget
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianBlocks, GaussianSum
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.folder import RunFolder
from understudy.runs.run import Run

Included = NDArray[np.bool_]
CPU = torch.device("cpu")
CLIP = 0.7  # neither 1 nor a power of two, so that a forgotten bound shows
TOO_LONG = 50.0  # rows are longer than the bound by this factor
_SHAPE = (1, 8, 8)
_IMAGES = 2  # of a person


class Game(Protocol):
    """One kind of access to data, as often as its event says."""

    def play(self, event: Event, included: Included) -> Numbers:
        """Log-likelihood ratios, one for each trial; ``included`` says in which of them the unit takes part.

        Privacy: the units are made up; no data of anybody are read.
        """
        ...


@dataclass(frozen=True)
class Bench:
    """A place to play: an empty ledger and fresh randomness."""

    folder: Path
    ledger: Ledger
    randomness: Randomness

    def planned(self, event: Event, executions: int) -> Event:
        """The event with room in the plan for so many executions."""
        return event.model_copy(update={"count": executions, "planned": None, "executed": None})


@contextmanager
def bench() -> Iterator[Bench]:
    """A bench in a temporary folder."""
    with TemporaryDirectory(prefix="understudy-audit-") as name:
        folder = Path(name)
        yield Bench(folder, Ledger.create(RunFolder(folder).ledger), Randomness())


def log_ratios(outputs: Numbers, shift: float, rate: float = 1.0) -> Numbers:
    """log of (1 - rate) + rate * Normal(shift, 1) / Normal(0, 1), at outputs in deviations of the noise."""
    exponent = shift * outputs - shift**2 / 2
    if rate == 1:
        return exponent
    return np.logaddexp(np.log1p(-rate), np.log(rate) + exponent)


class SampledSum:
    """``GaussianSum`` on Poisson batches, as DP-SGD uses it: clip factors, a flat total, one noise a step.

    The unit of trial i has a gradient along coordinate i.
    """

    def play(self, event: Event, included: Included) -> Numbers:
        """All steps of the plan. Privacy: made-up units."""
        assert isinstance(event.sampling, PoissonSampling)
        trials_of, ratios = torch.from_numpy(np.flatnonzero(included)), np.zeros(len(included))
        with bench() as place:
            planned = place.planned(event, event.count)
            mechanism = GaussianSum(place.ledger, place.randomness, clip=CLIP, event=planned)
            batches = PoissonBatches(len(trials_of), event.sampling.rate, place.randomness.coins(CPU))
            table = batches.draw(event.count)
            for indices, size in zip(table.indices, table.sizes, strict=True):
                summed = _summed(mechanism, trials_of[indices[:size]], len(included))
                total_dp = mechanism.release(summed, block=event.count).value_dp
                outputs = total_dp.numpy() / (CLIP * event.noise_multiplier)
                ratios += log_ratios(outputs, 1 / event.noise_multiplier, event.sampling.rate)
        return ratios


def _summed(mechanism: GaussianSum, drawn: Tensor, trials: int) -> Tensor:
    """Clipped gradients of drawn units, each along its own coordinate."""
    norms = torch.full((len(drawn),), TOO_LONG * CLIP, dtype=torch.float64)
    factors = mechanism.clip_factors(norms, torch.ones(len(drawn), dtype=torch.bool))
    return torch.zeros(trials, dtype=torch.float64).index_add_(0, drawn, factors * norms)


class SampledClients:
    """``GaussianSum`` of the updates of secretly chosen clients, as federated averaging uses it.

    The client of trial i sends an update along coordinate i; without its data it sends zeros.
    """

    def play(self, event: Event, included: Included) -> Numbers:
        """All rounds of the plan. Privacy: made-up clients."""
        assert isinstance(event.sampling, PoissonSampling)
        rate, trials, ratios = event.sampling.rate, len(included), np.zeros(len(included))
        updates = torch.eye(trials) * torch.from_numpy(included).float() * (TOO_LONG * CLIP)
        with bench() as place:
            planned = place.planned(event, event.count)
            mechanism = GaussianSum(place.ledger, place.randomness, clip=CLIP, event=planned)
            for _ in range(event.count):
                chosen = chosen_clients(place.randomness.coins(CPU).flip((trials,), rate))
                total = torch.zeros(trials, dtype=torch.float64)
                mechanism.accumulate(total, updates[chosen])
                outputs = mechanism.release(total, block=event.count).value_dp.numpy() / (CLIP * event.noise_multiplier)
                ratios += log_ratios(outputs, 1 / event.noise_multiplier, rate)
        return ratios


class SampledBlocks:
    """``GaussianBlocks`` on Poisson batches: a drawn unit turns the whole block of its own cell round."""

    def play(self, event: Event, included: Included) -> Numbers:
        """All steps of the plan. Privacy: made-up units."""
        assert isinstance(event.sampling, PoissonSampling)
        trials_of, ratios = torch.from_numpy(np.flatnonzero(included)), np.zeros(len(included))
        direction = torch.full((4,), 0.5)
        with bench() as place:
            planned = place.planned(event, event.count)
            mechanism = GaussianBlocks(place.ledger, place.randomness, clip=CLIP, event=planned)
            batches = PoissonBatches(len(trials_of), event.sampling.rate, place.randomness.coins(CPU))
            table = batches.draw(event.count)
            for indices, size in zip(table.indices, table.sizes, strict=True):
                lengths = torch.full((len(included), 1), -TOO_LONG * CLIP)
                lengths[trials_of[indices[:size]]] *= -1
                value_dp = mechanism.answer(lengths * direction).value_dp
                outputs = ((value_dp @ direction).double().numpy() + CLIP) / (2 * CLIP * event.noise_multiplier)
                ratios += log_ratios(outputs, 1 / event.noise_multiplier, event.sampling.rate)
        return ratios


class TaughtSum:
    """``softmax_gradients``: a teacher's noisy sums over all records, clipped as outer products.

    The record of trial i has a feature i far longer than the bound and no other. The teacher knows nothing yet, so that
    it is as wrong about each as it can be in one direction; only the bias is moved by all of them.
    """

    def play(self, event: Event, included: Included) -> Numbers:
        """All steps of the plan. Privacy: made-up records."""
        trials, trials_of = len(included), torch.from_numpy(np.flatnonzero(included))
        features = torch.zeros(len(trials_of), trials)
        features[torch.arange(len(trials_of)), trials_of] = TOO_LONG
        records = SoftmaxRows(features, torch.zeros(len(trials_of), dtype=torch.long))
        weights, ratios = torch.zeros(2, trials + 1), np.zeros(trials)
        with bench() as place:
            planned = place.planned(event, event.count)
            mechanism = GaussianSum(place.ledger, place.randomness, clip=CLIP, event=planned)
            for _ in range(event.count):
                summed = softmax_gradients(mechanism, weights, records)
                total_dp = mechanism.release(summed, block=event.count).value_dp.numpy()[:, :-1]
                outputs = (total_dp[1] - total_dp[0]) / 2**0.5 / (CLIP * event.noise_multiplier)
                ratios += log_ratios(outputs, 1 / event.noise_multiplier)
        return ratios


class LongFeatures:
    """Features far longer than the bound, the same for every image."""

    size_share, count = 0.02, 3

    def __call__(self, images: Tensor) -> Tensor:
        """Rows (images, 3) of length ``TOO_LONG``."""
        return torch.full((len(images), 3), TOO_LONG / 3**0.5)


class ReleasedEmbedding:
    """``release_means``: the one noisy class-wise sum of a run. Trial i is class i, with one record or none.

    A person has several records, each of another class of the trial's own: they are clipped together or not at all.
    """

    def play(self, event: Event, included: Included) -> Numbers:
        """One release. Privacy: made-up records."""
        of_people, units = event.unit == "person", np.flatnonzero(included)
        cells = _IMAGES if of_people else 1
        labels = (cells * units[:, None] + np.arange(cells)).flatten()
        with bench() as place:
            domain = Domain(
                shape=_SHAPE,
                classes=cells * len(included),
                nominal_records=cells * len(included),
                nominal_people=len(included) if of_people else None,
            )
            images = np.zeros((len(labels), *_SHAPE), dtype=np.uint8)
            people = units.repeat(cells).astype(np.int64) if of_people else None
            data = ImageDataset("made up by an audit", domain, images, labels.astype(np.int64), people=people)
            plan = Plan("audit", MethodConfig(), domain, NoBudget(), (event,), 1.0, 1, 0, 0.0, 0.0)
            run = Run(place.folder, plan, data, place.ledger, place.randomness, CPU)
            release_means(run, LongFeatures(), event)
            total_dp = read_tensors(run.files.embedding)[0]["total_dp"]
        rows = total_dp.numpy().reshape(len(included), -1)
        outputs = rows.sum(axis=1) / rows.shape[1] ** 0.5 / event.noise_multiplier
        return log_ratios(outputs, 1 / event.noise_multiplier)
