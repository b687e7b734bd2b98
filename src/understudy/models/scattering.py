"""Scattering features: what wavelets, absolute values and local averages leave of an image, with nothing learnt.

J. Bruna, S. Mallat, "Invariant Scattering Convolution Networks", IEEE PAMI 2013. Morlet wavelets psi of J scales and L
directions and a Gaussian phi as wide as the largest scale give, of each channel x of an image,

    S0 = x * phi,    S1 = |x * psi_a| * phi,    S2 = ||x * psi_a| * psi_b| * phi  where b has a larger scale than a,

each kept at every 2^J-th pixel: 1 + JL + L^2 J(J-1)/2 maps. All of it is a public function of one image; so is the
normalisation after it, which takes means and deviations over groups of maps of that image and never over a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.errors import InputError

_AT_ONCE = 2**24  # numbers held for the second order of a chunk of images
_MAPS_A_GROUP = 3  # at least
_SMALLEST_VARIANCE = 1e-5  # of a group: a blank image has features of zero


class Scattering(nn.Module):
    """Normalised scattering maps (N, maps, rows, columns) of images (N, C, H, W) in [0, 1]; it has no parameters.

    Convolutions are products of spectra. The image is reflected at its edges up to a multiple of 2^(J+1) and by another
    2^J on every side, which is cut off again, so that nothing wraps around. What a wavelet of scale j leaves holds no
    frequency that every 2^j-th pixel could not show, so only those are computed.
    """

    wavelets: Tensor
    low_pass: Tensor

    def __init__(self, shape: tuple[int, int, int], scales: int = 2, directions: int = 8) -> None:
        super().__init__()
        self.shape, self.scales, self.directions = shape, scales, directions
        channels, height, width = shape
        self.maps = channels * (1 + scales * directions + directions**2 * scales * (scales - 1) // 2)
        self.groups = next(self.maps // size for size in range(_MAPS_A_GROUP, self.maps + 1) if self.maps % size == 0)
        coarse = 2**scales
        inner = tuple(-(-side // (2 * coarse)) * 2 * coarse for side in (height, width))
        self.grid = inner[0] // coarse, inner[1] // coarse
        self._padding = _reflection(width, inner[1], coarse) + _reflection(height, inner[0], coarse)
        if max(self._padding[:2]) >= width or max(self._padding[2:]) >= height:
            raise InputError(f"scattering: images of {height}x{width} pixels are too small for {scales} scales")
        size = inner[0] + 2 * coarse, inner[1] + 2 * coarse
        filters = [_wavelets(size, scale, directions) for scale in range(scales)]
        self.register_buffer("wavelets", torch.stack(filters), persistent=False)  # (J, L, height, width)
        self.register_buffer("low_pass", _spectrum(_gabor(size, 0.8 * 2 ** (scales - 1))), persistent=False)

    @property
    def count(self) -> int:
        """How many features an image has."""
        return self.maps * self.grid[0] * self.grid[1]

    def forward(self, images: Tensor) -> Tensor:
        """Features of images, in chunks that fit in memory; each image's are a function of that image alone."""
        if not len(images):
            return torch.empty((0, self.maps, *self.grid), device=images.device)
        held = self.shape[0] * self.directions**2 * self.low_pass.numel()
        return in_pieces(images, max(1, _AT_ONCE // held), self._normalised)

    def _normalised(self, images: Tensor) -> Tensor:
        padded = functional.pad(images.float(), self._padding, mode="reflect").flatten(0, 1)
        maps = self._maps(torch.fft.fft2(padded))
        return functional.group_norm(
            maps.reshape(len(images), self.maps, *self.grid), self.groups, eps=_SMALLEST_VARIANCE
        )

    def _maps(self, spectra: Tensor) -> Tensor:
        """All maps (planes, maps of a plane, rows, columns) of spectra (planes, height, width)."""
        found = [self._averaged(spectra[:, None], 0)]
        for first in range(self.scales):
            waves = self._moduli(spectra[:, None], 0, first)
            found.append(self._averaged(waves, first))
            for second in range(first + 1, self.scales):
                found.append(self._averaged(self._moduli(waves[:, :, None], first, second), second).flatten(1, 2))
        return torch.cat(found, dim=1)

    def _moduli(self, spectra: Tensor, fineness: int, scale: int) -> Tensor:
        """Spectra of the absolute values left by the wavelets of a scale; ``fineness``: every 2^f-th pixel is given."""
        filters = _periodised(self.wavelets[scale], 2**fineness)
        left = _periodised(spectra * filters, 2 ** (scale - fineness)) / 4 ** (scale - fineness)
        return torch.fft.fft2(torch.fft.ifft2(left).abs())

    def _averaged(self, spectra: Tensor, fineness: int) -> Tensor:
        """Local averages at every 2^J-th pixel, without the reflected margin."""
        coarser = self.scales - fineness
        smooth = _periodised(spectra * _periodised(self.low_pass, 2**fineness), 2**coarser) / 4**coarser
        return torch.fft.ifft2(smooth).real[..., 1:-1, 1:-1]


def in_pieces(images: Tensor, at_once: int, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """What is computed of images, so many at once; on a graphics card never fewer, since kernels follow the shape.

    So features are the same bits whatever piece an image falls into.
    """
    found, count = [], len(images)
    for piece in images.split(at_once):
        missing = at_once - len(piece) if images.is_cuda else 0
        found.append(compute(torch.cat([piece, piece.new_zeros(missing, *piece.shape[1:])]) if missing else piece))
    return torch.cat(found)[:count]


def _periodised(spectra: Tensor, factor: int) -> Tensor:
    """The sum of a spectrum's ``factor`` parts along either side: the spectrum of every ``factor``-th pixel, scaled."""
    if factor == 1:
        return spectra
    height, width = spectra.shape[-2] // factor, spectra.shape[-1] // factor
    return spectra.unflatten(-1, (factor, width)).unflatten(-3, (factor, height)).sum(dim=(-4, -2))


def _reflection(side: int, inner: int, margin: int) -> tuple[int, int]:
    """How many pixels are reflected before and after a side."""
    before = (inner - side) // 2
    return before + margin, inner - side - before + margin


def _wavelets(size: tuple[int, int], scale: int, directions: int) -> Tensor:
    """Spectra (L, height, width) of the Morlet wavelets of a scale."""
    angles = [math.pi * direction / directions for direction in range(directions)]
    return torch.stack([_spectrum(_morlet(size, 2.0**scale, angle, 4 / directions)) for angle in angles])


def _spectrum(filtering: Tensor) -> Tensor:
    """The spectrum of a filter that equals its conjugate turned by half a turn, so that it is real."""
    return torch.fft.fft2(filtering).real.float()


def _morlet(size: tuple[int, int], scale: float, angle: float, slant: float) -> Tensor:
    """A wave under a bell, less as much of the bell as makes its sum zero."""
    frequency = 3 * math.pi / (4 * scale)
    wave, bell = _gabor(size, 0.8 * scale, angle, frequency, slant), _gabor(size, 0.8 * scale, angle, 0.0, slant)
    return wave - bell * (wave.sum() / bell.sum())


def _gabor(
    size: tuple[int, int], deviation: float, angle: float = 0.0, frequency: float = 0.0, slant: float = 1.0
) -> Tensor:
    """A wave along ``angle`` under a Gaussian bell, which is ``1 / slant`` times as wide across; periodic.

    Computed on the processor wherever the features are to be: the shapes of a release are asked for without any device.
    """
    places = [torch.arange(-2 * side, 3 * side, dtype=torch.float64, device="cpu") for side in size]
    down, right = torch.meshgrid(*places, indexing="ij")
    along = math.cos(angle) * right + math.sin(angle) * down
    across = slant * (math.cos(angle) * down - math.sin(angle) * right)
    wave = torch.exp((-along.square() - across.square()) / (2 * deviation**2) + 1j * frequency * along)
    periods = wave.unflatten(1, (5, size[1])).unflatten(0, (5, size[0]))
    return periods.sum(dim=(0, 2)) * slant / (2 * math.pi * deviation**2)
