"""Hermite features: how often each pixel, and each group of pixels, takes which values.

Mehler's formula writes a Gaussian kernel of one number as a sum over polynomials: with rho in (0, 1),

    exp(-rho (x - y)^2 / (1 - rho^2)) = sum over c = 0, 1, ... of h_c(x) h_c(y),
    h_c(x) = (1 - rho^2)^(1/4) rho^(c/2) / sqrt(2^c c!) * H_c(x) * exp(-rho x^2 / (1 + rho)),

where H_c is the Hermite polynomial of order c. At x = y the sum of all squares is 1, so the features up to any order
have norm at most 1, and the first few of them carry almost all of it.

The *sum kernel* takes h_0..h_order of each of D pixels, divided by sqrt(D): the law of each pixel. The *product kernel*
takes all products of h_0..h_order over the pixels of a group, divided by the square root of the number of groups: the
joint law of the pixels of each group. The groups are drawn without looking at the data. Both have norm at most 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from understudy.engines.dpsgd.sharing import Sharing
from understudy.files import read_tensors, write_tensors
from understudy.methods.embedding.dp_hp import HermiteConfig
from understudy.runs.run import Run


def hermite_features(values: Tensor, order: int, length_scale: float) -> Tensor:
    """h_0 to h_order of each value, in a new last dimension; the kernel is exp(-(x - y)^2 / (2 length_scale^2)).

    With g_c = H_c / sqrt(2^c c!) the recurrence is g_(c+1) = x g_c sqrt(2/(c+1)) - g_(c-1) sqrt(c/(c+1)).
    """
    rho = math.sqrt(length_scale**4 + 1) - length_scale**2
    previous, current = torch.zeros_like(values), (1 - rho**2) ** 0.25 * (-rho / (1 + rho) * values.square()).exp()
    features = [current]
    for degree in range(order):
        step, back = math.sqrt(2 * rho / (degree + 1)), rho * math.sqrt(degree / (degree + 1))
        previous, current = current, step * values * current - back * previous
        features.append(current)
    return torch.stack(features, dim=-1)


class HermiteFeatures:
    """Hermite features of images, of norm at most one; the constant last feature counts records.

    Privacy: each image is mapped by itself with public constants. The squared norm is at most (1 - a) for the features
    (a mix of two parts of squared norm at most one each, in shares that add up to one) plus a for the constant: a
    record moves a class-wise sum by at most 1, and the clipping of the mechanism takes nothing away.
    """

    def __init__(self, groups: Tensor, pixels: int, settings: HermiteConfig) -> None:
        self._groups, self._pixels, self._settings = groups, pixels, settings

    @classmethod
    def of_run(cls, run: Run, settings: HermiteConfig) -> HermiteFeatures:
        """The groups of pixels of this run: drawn without the data and kept, because the noisy sums belong to them."""
        path, pixels = run.files.groups, run.plan.domain.values
        if not path.exists():
            keys = torch.rand(settings.groups or 0, pixels, generator=run.randomness.generator())
            write_tensors(path, {"groups": keys.argsort(dim=1)[:, : settings.group_pixels].contiguous()})
        return cls(read_tensors(path)[0]["groups"].to(run.device), pixels, settings)

    @classmethod
    def of_shape(cls, run: Run, groups: list[int], settings: HermiteConfig) -> HermiteFeatures:
        """Features of a process that helps: the leader fills in the groups."""
        empty = torch.zeros(groups, dtype=torch.long, device=run.device)
        return cls(empty, run.plan.domain.values, settings)

    @property
    def sharing(self) -> Sharing:
        """For processes that help: the groups, which the leader sends."""
        return Sharing({"groups": list(self._groups.shape)}, [self._groups] if len(self._groups) else [])

    @property
    def size_share(self) -> float:
        """The part of a record's squared norm that counts its class."""
        return self._settings.size_share

    @property
    def count(self) -> int:
        """Features of pixels, of groups, and the constant one."""
        products = len(self._groups) * (self._settings.group_order + 1) ** self._groups.shape[1]
        return self._pixels * (self._settings.order + 1) + products + 1

    def __call__(self, images: Tensor) -> Tensor:
        """Features (N, count) of images (N, C, H, W) in [0, 1]."""
        settings, values = self._settings, images.flatten(1) - 0.5
        share = settings.group_share if len(self._groups) else 0.0
        single = hermite_features(values, settings.order, settings.length_scale).flatten(1)
        parts = [single * math.sqrt((1 - self.size_share) * (1 - share) / self._pixels)]
        if len(self._groups):
            scale = math.sqrt((1 - self.size_share) * share / len(self._groups))
            parts.append(self._products(values).flatten(1) * scale)
        parts.append(torch.full((len(images), 1), self.size_share**0.5, device=images.device))
        return torch.cat(parts, dim=1)

    def _products(self, values: Tensor) -> Tensor:
        """All products of features over the pixels of each group: (N, groups, (order + 1)^pixels of a group)."""
        single = hermite_features(values, self._settings.group_order, self._settings.length_scale)
        product = single[:, self._groups[:, 0]]
        for column in range(1, self._groups.shape[1]):
            product = (product[..., :, None] * single[:, self._groups[:, column], None, :]).flatten(2)
        return product
