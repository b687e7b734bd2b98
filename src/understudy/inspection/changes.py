"""The changes of images that an inspection looks for: what a faulty pipeline does, as functions with a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pictures = NDArray[np.float32]  # (N, height, width) in 0..1


@dataclass(frozen=True)
class Change:
    """One change, its inverse, and how to say it of images: "about 30 % of them are ..."."""

    name: str
    words: str
    apply: Callable[[Pictures], Pictures]
    undo: Callable[[Pictures], Pictures]
    keeps_sides: bool = True  # False: height and width change places
    margin: float = 0.08  # share of all images up to which generators of the same data may differ


def _turn(quarters: int) -> Callable[[Pictures], Pictures]:
    return lambda images: np.rot90(images, quarters, (1, 2))


def _invert(images: Pictures) -> Pictures:
    return np.float32(1) - images


def _mirror(axis: int) -> Callable[[Pictures], Pictures]:
    return lambda images: np.flip(images, axis)


CHANGES = (
    Change("rotated-90", "turned by 90 degrees to the left", _turn(1), _turn(-1), keeps_sides=False),
    Change("rotated-180", "turned upside down (180 degrees)", _turn(2), _turn(2)),
    Change("rotated-270", "turned by 90 degrees to the right", _turn(-1), _turn(1), keeps_sides=False),
    Change("mirrored", "mirrored left to right", _mirror(2), _mirror(2)),
    Change("flipped", "flipped top to bottom", _mirror(1), _mirror(1)),
    # Normal images are never taken for inverted ones, so a small share of them says something already.
    Change("inverted", "inverted in intensity (dark for light)", _invert, _invert, margin=0.02),
)


def possible_changes(height: int, width: int) -> tuple[Change, ...]:
    """The changes that leave images of this size comparable: quarter turns need a square."""
    return tuple(change for change in CHANGES if change.keeps_sides or height == width)


def small(images: NDArray[np.uint8], most: int = 16) -> Pictures:
    """Images (N, H, W) or (N, H, W, 3) as grey pictures of at most ``most`` pixels a side, in 0..1.

    Blocks of pixels are averaged: what is compared is what can be seen from some distance, and not single pixels.
    """
    grey = images.astype(np.float32) / 255
    grey = grey.mean(axis=3) if grey.ndim == 4 else grey
    factor = max(1, -(-max(grey.shape[1:]) // most))
    height, width = (side // factor * factor for side in grey.shape[1:])
    top, left = (grey.shape[1] - height) // 2, (grey.shape[2] - width) // 2
    cut = grey[:, top : top + height, left : left + width]
    blocks = cut.reshape(len(cut), height // factor, factor, width // factor, factor)
    return np.ascontiguousarray(blocks.mean(axis=(2, 4)), dtype=np.float32)
