"""Mean embeddings for tests of engines: a release with hardly any noise, and rows as bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from understudy.data.dataset import ImageDataset
from understudy.engines.embedding.means import Embedding, release_means
from understudy.files import read_tensors
from understudy.privacy.events import Event

from .dpsgd.steps import ALMOST_NONE, make_run


def embedded(folder: Path, data: ImageDataset, **runtime: Any) -> Tensor:
    """The released sum of features of norm one."""
    event = Event(noise_multiplier=ALMOST_NONE, sensitivity="C", unit=data.domain.unit, count=1, purpose="sum")
    run = make_run(folder, data, event, **runtime)
    frequencies = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)) / 8
    release_means(run, Embedding(frequencies, 0.02), event)
    return read_tensors(run.files.embedding)[0]["total_dp"]


def as_bytes(rows: list[Tensor]) -> list[bytes]:
    """Rows in an order that says nothing."""
    return sorted(row.numpy().tobytes() for row in rows)
