"""Generated and real images as PNG pictures inside the page: enlarged without blur, gaps left transparent."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

_SMALLEST_TILE = 96
_GAP = 4


def strip(images: Pixels) -> str:
    """Images (N, H, W) or (N, H, W, 3) in one row, as a data address."""
    return grid([images])


def grid(rows: Sequence[Pixels]) -> str:
    """Rows of images of one size, as a data address."""
    height, width = rows[0].shape[1:3]
    factor = max(1, -(-_SMALLEST_TILE // min(height, width)))
    high, wide = height * factor + _GAP, width * factor + _GAP
    columns = max(len(row) for row in rows)
    canvas = np.zeros((len(rows) * high - _GAP, columns * wide - _GAP, 4), dtype=np.uint8)
    for row, images in enumerate(rows):
        for column, image in enumerate(_coloured(images)):
            enlarged = image.repeat(factor, axis=0).repeat(factor, axis=1)
            top, left = row * high, column * wide
            canvas[top : top + high - _GAP, left : left + wide - _GAP] = enlarged
    return _address(canvas)


def planes_last(images: Pixels) -> Pixels:
    """Images (N, C, H, W) of a data set as (N, H, W) or (N, H, W, 3), as a release draws them."""
    return images[:, 0] if images.shape[1] == 1 else np.ascontiguousarray(images.transpose(0, 2, 3, 1))


def _coloured(images: Pixels) -> Pixels:
    """Grey or RGB images as RGB without transparency."""
    colours = np.repeat(images[..., np.newaxis], 3, axis=3) if images.ndim == 3 else images
    opaque = np.full((*colours.shape[:3], 1), 255, dtype=np.uint8)
    return np.concatenate([colours, opaque], axis=3)


def _address(pixels: NDArray[Any]) -> str:
    buffer = BytesIO()
    Image.fromarray(pixels).quantize(256).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
