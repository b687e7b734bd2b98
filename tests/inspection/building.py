"""Samples as a release would give them, made of the bundled digits, and faults to plant in them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.data.sources import load
from understudy.inspection.samples import Samples

PER_CLASS = 300
Images = np.ndarray
Break = Callable[[Images, np.random.Generator], Images]


@cache
def digits() -> ImageDataset:
    return load("digits")


def samples(half: int, breaks: Break | None = None, seed: int = 0, **fields: object) -> Samples:
    """Draws of a smooth law around one half of the digits; the two halves stand for two generators of the same data."""
    data, random = digits(), np.random.default_rng((seed, half))
    assert data.labels is not None
    drawn = []
    for label in range(10):
        pool = data.images[data.labels == label][half::2, 0]
        images = pool[random.integers(0, len(pool), PER_CLASS)].astype(int)
        images = np.clip(images + random.integers(-12, 13, images.shape), 0, 255).astype(np.uint8)
        drawn.append(images if breaks is None else breaks(images, random))
    domain = Domain(shape=(1, 8, 8), classes=10, nominal_records=1437)
    return Samples("suspect" if half else "normal", domain, tuple(drawn), **fields)  # type: ignore[arg-type]


def some(change: Callable[[Images], Images], share: float = 0.3) -> Break:
    """A fault in a random share of the images."""

    def breaks(images: Images, random: np.random.Generator) -> Images:
        chosen = random.random(len(images)) < share
        images = images.copy()
        images[chosen] = change(images[chosen])
        return images

    return breaks


def quarter_turn(images: Images) -> Images:
    return np.rot90(images, 1, (1, 2))


def inverse(images: Images) -> Images:
    return 255 - images


CHANGES = {
    "rotated-90": quarter_turn,
    "rotated-180": lambda images: np.rot90(images, 2, (1, 2)),
    "rotated-270": lambda images: np.rot90(images, 3, (1, 2)),
    "mirrored": lambda images: images[:, :, ::-1],
    "flipped": lambda images: images[:, ::-1],
    "inverted": inverse,
}
