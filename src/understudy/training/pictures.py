"""Pictures of generated images over time, in the run's private folder."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from understudy.files import make_folder


def save_picture(images: Tensor, columns: int, path: Path) -> None:
    """Write 8-bit images (N, C, H, W) as one PNG with ``columns`` of them in a row."""
    from PIL import Image

    count, channels, height, width = images.shape
    rows = count // columns
    tiled = images.view(rows, columns, channels, height, width).permute(0, 3, 1, 4, 2)
    pixels = tiled.reshape(rows * height, columns * width, channels).cpu().numpy()
    make_folder(path.parent, "run")
    Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(path)
