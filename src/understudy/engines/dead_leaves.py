"""Dead leaves: images of chance alone, from which networks and filters learn what edges, shades and textures look like.

Shapes of all sizes cover each other, each in a colour of its own. Such images have the outlines, the occlusions and the
spectrum of photographs, and nothing of any data set: A. B. Lee, D. Mumford, J. Huang, "Occlusion Models for Natural
Images" (IJCV 2001). That networks learn to see from them: M. Baradad et al., "Learning to See by Looking at Noise"
(NeurIPS 2021).

Privacy: no image is looked at, so they cost nothing. All constants are written here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_AT_ONCE = 2000  # images
_LEAVES = 48  # in an image, the last one on top
_SMALLEST, _LARGEST = (0.06, 0.3), 0.7  # radius, as a part of the image; the smallest one is each image's own
_STRETCH = 0.5  # deviation of the logarithm of length over width
_BRIGHTNESS, _TINT = (0.18, 0.2), (0.08, 0.09)  # deviations, of an image's mean and of a leaf beside it
_SHADE, _TEXTURE = 0.1, 0.1  # deviations, from side to side of a leaf and of its pixels


def dead_leaves(count: int, shape: tuple[int, int, int], random: torch.Generator) -> Tensor:
    """8-bit images (N, C, H, W) on the generator's device."""
    chunks = [_some(min(_AT_ONCE, count - start), shape, random) for start in range(0, count, _AT_ONCE)]
    return torch.cat(chunks) if chunks else torch.empty((0, *shape), dtype=torch.uint8, device=random.device)


def _some(count: int, shape: tuple[int, int, int], random: torch.Generator) -> Tensor:
    channels, height, width = shape
    pixel = 1 / max(height, width)
    down, across = (pixel * (torch.arange(side, device=random.device) + 0.5) for side in (height, width))
    mean = _colours(count, channels, random, which=0)
    texture = _texture(count, height, width, random)
    low, high = _SMALLEST
    smallest = low * (high / low) ** torch.rand((count, 1, 1), generator=random, device=random.device)
    images = (0.5 + mean)[:, :, None, None].expand(-1, -1, height, width)
    for _ in range(_LEAVES):
        inside, shade = _leaf(down, across, pixel, smallest, random)
        colour = 0.5 + mean + _colours(count, channels, random, which=1)
        rough = _TEXTURE * _normal((count, 1, 1), random).abs() * texture
        painted = colour[:, :, None, None] + (shade + rough)[:, None]
        images = images + inside[:, None] * (painted - images)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _leaf(
    down: Tensor, across: Tensor, pixel: float, smallest: Tensor, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """How much of each pixel (N, H, W) one leaf of every image covers, and its shade there.

    There are as many small leaves as fit on the area of a large one: radii follow the inverse of their third power.
    A leaf is |x|^p + |y|^p < 1 in axes of its own: a diamond at p = 1, an ellipse at 2, nearly a rectangle at 8.
    """
    count = len(smallest)
    middle = 1.4 * torch.rand((2, count, 1, 1), generator=random, device=random.device) - 0.2
    turn = math.pi * torch.rand((count, 1, 1), generator=random, device=random.device)
    share = torch.rand((count, 1, 1), generator=random, device=random.device)
    radius = (smallest**-2 - share * (smallest**-2 - _LARGEST**-2)).rsqrt()
    stretch = (_STRETCH / 2 * _normal((count, 1, 1), random)).exp()
    power = 2 ** (3 * torch.rand((count, 1, 1), generator=random, device=random.device))
    y, x = down[None, :, None] - middle[0], across[None, None, :] - middle[1]
    along = (turn.cos() * x + turn.sin() * y) / (radius * stretch)
    beside = (turn.cos() * y - turn.sin() * x) / (radius / stretch)
    reach = (along.abs() ** power + beside.abs() ** power) ** (1 / power)
    inside = ((1 - reach) * radius / pixel + 0.5).clamp(0, 1)  # about a pixel's width from out to in
    slope = _SHADE * _normal((2, count, 1, 1), random)
    return inside, slope[0] * along.clamp(-1, 1) + slope[1] * beside.clamp(-1, 1)


def _colours(count: int, channels: int, random: torch.Generator, which: int) -> Tensor:
    """Deviations (N, C): mostly of brightness, which all channels share."""
    bright = _BRIGHTNESS[which] * _normal((count, 1), random)
    return bright + _TINT[which] * _normal((count, channels), random) if channels > 1 else bright


def _texture(count: int, height: int, width: int, random: torch.Generator) -> Tensor:
    """Noise (N, H, W) of unit variance whose amplitude falls with the frequency."""
    spectrum = torch.fft.rfft2(_normal((count, height, width), random))
    frequencies = torch.fft.fftfreq(height)[:, None].square() + torch.fft.rfftfreq(width)[None].square()
    falling = frequencies.clamp(min=1 / max(height, width) ** 2).rsqrt().to(random.device)
    noise = torch.fft.irfft2(spectrum * falling, s=(height, width))
    return noise / noise.std(dim=(1, 2), keepdim=True)


def _normal(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=random, device=random.device)
