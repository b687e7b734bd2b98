"""A picture of samples: one row for each class, ten columns, enlarged so that small images can be seen."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from understudy.release.release import Release


_COLUMNS = 10
_MOST_ROWS = 20
_SMALLEST_TILE = 48
_GAP = 2
_SEED = 0  # the picture can be drawn again from the same release


def class_rows(
    release: Release, columns: int = _COLUMNS, temperature: float = 1.0
) -> list[tuple[str | None, NDArray[np.uint8]]]:
    """The name of each class (None without classes) and ``columns`` images of it; at most twenty rows."""
    if release.domain.classes is None:
        images, _ = release.sample(columns * 5, seed=_SEED, temperature=temperature)
        return [(None, images[start : start + columns]) for start in range(0, len(images), columns)]
    names = release.domain.class_names or [str(label) for label in range(release.domain.classes)]
    return [
        (names[label], release.sample(columns, [label], _SEED + label, temperature)[0])
        for label in range(min(release.domain.classes, _MOST_ROWS))
    ]


def grid_png(release: Release, temperature: float = 1.0) -> bytes:
    """The sample picture of a release folder."""
    return png(tile(np.stack([images for _, images in class_rows(release, temperature=temperature)])))


def tile(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (rows, columns, H, W[, 3]) as one enlarged picture with light gaps."""
    rows, columns, height, width = images.shape[:4]
    factor = max(1, -(-_SMALLEST_TILE // min(height, width)))
    enlarged = images.repeat(factor, axis=2).repeat(factor, axis=3)
    high, wide = height * factor + _GAP, width * factor + _GAP
    canvas = np.full((rows * high + _GAP, columns * wide + _GAP, *images.shape[4:]), 255, dtype=np.uint8)
    for row in range(rows):
        for column in range(columns):
            top, left = row * high + _GAP, column * wide + _GAP
            canvas[top : top + high - _GAP, left : left + wide - _GAP] = enlarged[row, column]
    return canvas


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A grey (H, W) or RGB (H, W, 3) picture as PNG."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
