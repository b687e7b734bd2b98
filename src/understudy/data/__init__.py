"""Image sources, the data set with its declared domain, its partition into subsets, and sampling."""

from __future__ import annotations

from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset, Unit
from understudy.data.domain import Domain, SourceOptions, source_options
from understudy.data.partition import Partition
from understudy.data.sampling import sampling_rate
from understudy.data.sources import load

__all__ = [
    "Domain",
    "ImageDataset",
    "Partition",
    "SourceOptions",
    "Unit",
    "from_arrays",
    "load",
    "sampling_rate",
    "source_options",
]
