"""Patch features: how much an image looks, here and there, like each of some patches that were learnt elsewhere.

A. Coates, H. Lee, A. Y. Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning" (AISTATS 2011). A
patch p around each pixel is brought to mean 0 and contrast 1, and filters w with offsets b are held against it:

    relu(w.p + b - t)  and  relu(-w.p - b - t),

averaged over the cells of a coarse grid. The filters learn from images of chance (``engines/teacher/patches.py``), so
they are public; a release holds them. All the rest is a function of one image; so is the normalisation at the end,
which takes the mean and the deviation over the features of that image and never over a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.models.scattering import in_pieces

_AT_ONCE = 2**22  # numbers held for a chunk of images
_CELL = 8  # pixels, about, of a side of a cell of the grid
_SIDE, _SIDE_OF_SMALL, _SMALL = 6, 4, 16  # pixels of a patch; of one in images with fewer pixels than that
_THRESHOLD = 0.75  # t, in deviations of what a filter finds in a patch
FAINT = 10 / 255  # contrast of a patch that counts as little more than noise
_SMALLEST_VARIANCE = 1e-5  # over all features of an image: a blank one has features of zero


def cells(pixels: int) -> int:
    """Of the grid, along a side of so many pixels."""
    return max(2, round(pixels / _CELL))


class Patches(nn.Module):
    """Normalised maps (N, 2 * number, rows, columns) of images (N, C, H, W) in [0, 1], two for each filter.

    ``mirrored``: what an image and its mirror image show is averaged, so that neither side is preferred; for pictures
    of things, not of writing. Without filters, before any were learnt or read, all features are zero.
    """

    filters: Tensor
    offsets: Tensor

    def __init__(self, shape: tuple[int, int, int], number: int = 256, mirrored: bool = False) -> None:
        super().__init__()
        channels, height, width = self.shape = shape
        self.mirrored, self.maps = mirrored, 2 * number
        self.grid = cells(height), cells(width)
        side = _SIDE if min(height, width) >= _SMALL else _SIDE_OF_SMALL
        self.register_buffer("filters", torch.zeros(number, channels, side, side))  # the sum of each is zero
        self.register_buffer("offsets", torch.zeros(number))

    @property
    def count(self) -> int:
        """How many features an image has."""
        return self.maps * self.grid[0] * self.grid[1]

    def forward(self, images: Tensor) -> Tensor:
        """Features of images, in chunks that fit in memory; each image's are a function of that image alone."""
        if not len(images):
            return torch.empty((0, self.maps, *self.grid), device=images.device)
        held = self.maps * self.shape[1] * self.shape[2]
        plain = images.float().clone(memory_format=torch.contiguous_format)  # convolutions round by how images lie
        return in_pieces(plain, max(1, _AT_ONCE // held), self._normalised)

    def _normalised(self, images: Tensor) -> Tensor:
        found = self._found(images)
        if self.mirrored:
            found = (found + self._found(images.flip(3))) / 2
        return functional.group_norm(found, 1, eps=_SMALLEST_VARIANCE)

    def _found(self, images: Tensor) -> Tensor:
        """How strongly each filter answers in each cell, and its opposite."""
        side = self.filters.shape[-1]
        mean, square = (
            functional.avg_pool2d(values.mean(dim=1, keepdim=True), side, stride=1)
            for values in (images, images.square())
        )
        contrast = (square - mean.square()).clamp(min=0) + FAINT**2
        answers = functional.conv2d(images, self.filters) * contrast.rsqrt() + self.offsets[:, None, None]
        both = (functional.relu(sign * answers - _THRESHOLD) for sign in (1, -1))
        return torch.cat([functional.adaptive_avg_pool2d(each, self.grid) for each in both], dim=1)
