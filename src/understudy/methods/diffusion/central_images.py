"""Central images: noisy class-wise means of a few Poisson samples, as DP-FETA starts from.

K. Li et al., "From Easy to Hard" (IEEE S&P 2025). Departure: their code divides by the number of images that were
drawn, which is private; here the denominator is the public number that is expected, and what a class has more or fewer
images than that shows as brightness.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.engines.dpsgd.sharing import SharedSum, Sharing
from understudy.engines.records import load_batch
from understudy.privacy.events import PoissonSampling
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.run import Run

_TYPICAL = 0.5  # root mean square of a bright image's pixels; brighter ones are scaled down to it


CENTRAL_IMAGES_SHARED = "central images"  # as work that several processes share


def release_central_images(run: Run) -> tuple[Tensor, Tensor | None]:
    """8-bit images and labels: for each query one noisy mean of each class, at half the resolution and scaled up.

    Privacy: a record's halved image is scaled to norm at most C and added to the sum of its own class, so all classes
    of one query are one Poisson-sampled Gaussian of sensitivity C (add-remove); every query is a further execution. The
    denominator rate * nominal records / classes is public. Drawn once, however often a run is resumed. Of several
    processes each draws the coins of its own records, and adds those.
    """
    domain, event, (_, height, width) = run.plan.domain, run.plan.events[1], run.plan.domain.shape
    rate, halved = _rate(run), _halved(run)
    classes, mechanism = domain.classes or 1, _mechanism(run)

    def compute_totals() -> Tensor:
        totals = _sums(run, mechanism).take()
        mechanism.check_finite()
        return totals

    totals_dp = mechanism.release_once(compute_totals, run.files.central_images).to(run.device)
    means_dp = totals_dp.float() / (rate * domain.nominal_records / classes)
    images = functional.interpolate(means_dp.view(-1, *halved), size=(height, width), mode="bilinear")
    labels = torch.arange(classes, device=run.device).repeat(event.count)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8), labels if domain.labelled else None


def assist_central_images(run: Run) -> SharedSum:
    """In a process that follows: the sums of its own records. Privacy: the leader adds the noise to those of all."""
    return _sums(run, _mechanism(run))


def _sums(run: Run, mechanism: GaussianSum) -> SharedSum:
    event, size, classes = run.plan.events[1], torch.Size(_halved(run)).numel(), run.plan.domain.classes or 1

    def own_sum() -> Tensor:
        coins = run.randomness.coins(run.device)
        batches = PoissonBatches(len(run.data), _rate(run), coins, run.team).draw(event.count)
        totals = torch.zeros(event.count, classes, size, dtype=torch.float64, device=run.device)
        for total, indices_private, size_private in zip(totals, batches.indices, batches.sizes, strict=True):
            taken = indices_private[:size_private]
            for some in taken.split(run.plan.config.runtime.micro_batch):
                images_private, labels_private = load_batch(run.data, some.cpu().numpy(), run.device)
                small = functional.avg_pool2d(images_private, 2, ceil_mode=True, count_include_pad=False)
                mechanism.accumulate(total, small.flatten(1), labels_private)
        return totals

    return SharedSum(run.team, mechanism, own_sum, Sharing(work=CENTRAL_IMAGES_SHARED))


def _mechanism(run: Run) -> GaussianSum:
    clip = _TYPICAL * torch.Size(_halved(run)).numel() ** 0.5
    return GaussianSum(run.ledger, run.randomness, clip=clip, event=run.plan.events[1])


def _halved(run: Run) -> tuple[int, int, int]:
    channels, height, width = run.plan.domain.shape
    return channels, -(-height // 2), -(-width // 2)


def _rate(run: Run) -> float:
    """Drawn as it is accounted."""
    sampling = run.plan.events[1].sampling
    assert isinstance(sampling, PoissonSampling), "planned so"
    return sampling.rate
