"""Private records as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from understudy.data.dataset import ImageDataset


def load_batch(data: ImageDataset, selection: slice, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] (N, C, H, W) and labels (zeros for unlabelled data) of some records.

    Privacy: both are private; they may go into a mechanism and nowhere else.
    """
    images_private = torch.from_numpy(data.images[selection]).to(device).float() / 255
    if data.labels is None:
        return images_private, torch.zeros(len(images_private), dtype=torch.long, device=device)
    return images_private, torch.from_numpy(data.labels[selection]).to(device)
