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
from understudy.engines.records import load_batch
from understudy.privacy.events import PoissonSampling
from understudy.privacy.mechanisms import GaussianSum
from understudy.runs.run import Run

_TYPICAL = 0.5  # root mean square of a bright image's pixels; brighter ones are scaled down to it


def release_central_images(run: Run) -> tuple[Tensor, Tensor | None]:
    """8-bit images and labels: for each query one noisy mean of each class, at half the resolution and scaled up.

    Privacy: a record's halved image is scaled to norm at most C and added to the sum of its own class, so all classes
    of one query are one Poisson-sampled Gaussian of sensitivity C (add-remove); every query is a further execution. The
    denominator rate * nominal records / classes is public. Drawn once, however often a run is resumed.
    """
    domain = run.plan.domain
    event = run.plan.events[1]
    assert isinstance(event.sampling, PoissonSampling), "planned so"
    rate = event.sampling.rate  # drawn as it is accounted
    classes, (channels, height, width) = domain.classes or 1, domain.shape
    halved = (channels, -(-height // 2), -(-width // 2))
    clip = _TYPICAL * torch.Size(halved).numel() ** 0.5
    mechanism = GaussianSum(run.ledger, run.randomness, clip=clip, event=event)

    def compute_totals() -> Tensor:
        batches = PoissonBatches(len(run.data), rate, run.randomness.coins(run.device)).draw(event.count)
        size = torch.Size(halved).numel()
        totals = torch.zeros(event.count, classes, size, dtype=torch.float64, device=run.device)
        for total, indices_private, size_private in zip(totals, batches.indices, batches.sizes, strict=True):
            taken = indices_private[:size_private]
            for some in taken.split(run.plan.config.runtime.micro_batch):
                images_private, labels_private = load_batch(run.data, some.cpu().numpy(), run.device)
                small = functional.avg_pool2d(images_private, 2, ceil_mode=True, count_include_pad=False)
                mechanism.accumulate(total, small.flatten(1), labels_private)
        mechanism.check_finite()
        return totals

    totals_dp = mechanism.release_once(compute_totals, run.files.central_images).to(run.device)
    means_dp = totals_dp.float() / (rate * domain.nominal_records / classes)
    images = functional.interpolate(means_dp.view(-1, *halved), size=(height, width), mode="bilinear")
    labels = torch.arange(classes, device=run.device).repeat(event.count)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8), labels if domain.labelled else None
