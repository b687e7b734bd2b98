"""What patch features learn, and from what: filters for the patches of dead leaves, which are images of chance alone.

Patches of one mean and one contrast are whitened, so that what all of them have in common does not drown the rest, and
grouped around as many centres as there are filters, a patch and its opposite together (spherical k-means). It is the
smallest network that can be trained without data, and it takes seconds.

Privacy: no record is looked at, and no number that was declared but the channels and the size of an image; the seed is
a constant, so the filters are the same for all data. They cost nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from understudy.engines.dead_leaves import dead_leaves
from understudy.models.patches import FAINT, Patches

_SIDE = 32  # of a dead-leaves image
_PATCHES_A_FILTER, _FEWEST_PATCHES = 160, 4000
_MOST_PATCHES = 80_000
_PATCHES_AN_IMAGE = 40
_AT_ONCE = 4096  # patches that are held against all centres
_ROUNDS = 10  # of k-means
_FLOOR = 0.01  # added to the variance of a direction before it is divided out: fine noise is not blown up


def learn_filters(features: Patches) -> None:
    """Put filters into features that have none.

    In double precision, so that all processors find the same but for the last digits.
    """
    number, channels, side, _ = features.filters.shape
    random = torch.Generator().manual_seed(0)
    count = min(_MOST_PATCHES, max(_FEWEST_PATCHES, _PATCHES_A_FILTER * number))
    patches = _patches(count, channels, side, random)
    whitening = _whitening(patches)
    centres = _centres(patches @ whitening, number, random)
    filters = (centres @ whitening).view(number, channels * side * side)
    filters = filters - filters.mean(dim=1, keepdim=True)
    found = patches @ filters.T
    features.filters.copy_(filters.view_as(features.filters))
    features.offsets.copy_(-found.mean(dim=0))


def _patches(count: int, channels: int, side: int, random: torch.Generator) -> Tensor:
    """At most so many patches (N, values) of mean 0 and contrast 1, each from somewhere in an image; none is blank."""
    images = dead_leaves(count // _PATCHES_AN_IMAGE, (channels, _SIDE, _SIDE), random)
    windows = images.unfold(2, side, 1).unfold(3, side, 1)
    which, down, right = (
        torch.randint(high, (count,), generator=random) for high in (len(images), *windows.shape[2:4])
    )
    patches = windows[which, :, down, right].flatten(1).double() / 255
    patches = patches - patches.mean(dim=1, keepdim=True)
    contrast = patches.square().mean(dim=1, keepdim=True)
    return (patches * (contrast + FAINT**2).rsqrt())[contrast[:, 0] > FAINT**2]


def _whitening(patches: Tensor) -> Tensor:
    """The symmetric map (values, values) after which directions have nearly equal variance."""
    variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    return directions @ torch.diag((variances + _FLOOR).rsqrt()) @ directions.T


def _centres(points: Tensor, number: int, random: torch.Generator) -> Tensor:
    """Directions (number, values) of length 1 around which points, or their opposites, lie."""
    points = functional.normalize(points, dim=1)
    centres = points[torch.randperm(len(points), generator=random)[:number]]
    for _ in range(_ROUNDS):
        sums = torch.zeros_like(centres)
        for some in points.split(_AT_ONCE):
            closeness = some @ centres.T
            nearest = closeness.abs().argmax(dim=1)
            sums.index_add_(0, nearest, some * closeness.gather(1, nearest[:, None]).sign())
        found = sums.norm(dim=1, keepdim=True) > 0
        centres = torch.where(found, functional.normalize(sums, dim=1), centres)
    return centres
