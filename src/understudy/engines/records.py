"""The one door through which private rows reach a device, and the examples that a private step looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALL = slice(None)


class Rows(Protocol):
    """What holds images (N, C, H, W) and labels: a data set, or what somebody put beside one."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """8-bit images."""
        ...

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Their classes, if there are any."""
        ...


def load_rows(data: Rows, device: torch.device, selection: slice = _ALL) -> tuple[Tensor, Tensor | None]:
    """8-bit images (N, C, H, W) and labels, if there are any, of some records.

    Privacy: nowhere else do private bytes become tensors. Both are private, and so is how many there are; they may go
    into a mechanism, or into what answers through one, and nowhere else. Nothing is spent here.
    """
    images_private = torch.from_numpy(data.images[selection]).to(device)
    return images_private, None if data.labels is None else torch.from_numpy(data.labels[selection]).to(device)


def load_batch(data: Rows, selection: slice, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] (N, C, H, W) and labels (zeros for unlabelled data) of some records.

    Privacy: as ``load_rows``.
    """
    images_private, labels_private = load_rows(data, device, selection)
    if labels_private is None:
        labels_private = torch.zeros(len(images_private), dtype=torch.long, device=device)
    return images_private.float() / 255, labels_private


@dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W) in [0, 1], their labels, +1 for records and -1 for public companions, and which rows count.

    Privacy: the first rows are private, and so is which of them count.
    """

    images: Tensor
    labels: Tensor | None
    signs: Tensor
    present: Tensor

    def chunks(self, rows: int) -> list[Examples]:
        """The same examples in pieces of about equal size, of at most ``rows`` rows."""
        pieces = max(1, -(-len(self.images) // rows))
        labels = [None] * pieces if self.labels is None else self.labels.tensor_split(pieces)
        parts = [part.tensor_split(pieces) for part in (self.images, self.signs, self.present)]
        return [
            Examples(image, label, sign, present)
            for image, label, sign, present in zip(parts[0], labels, parts[1], parts[2], strict=True)
        ]

    def followed_by(self, others: Examples) -> Examples:
        """These, then the others, as one batch."""
        labels = None
        if self.labels is not None and others.labels is not None:
            labels = torch.cat([self.labels, others.labels])
        images, signs, present = (
            torch.cat([getattr(self, name), getattr(others, name)]) for name in ("images", "signs", "present")
        )
        return Examples(images, labels, signs, present)


class Records:
    """All private records on the device, with an empty one at the end for the places that a batch does not fill."""

    def __init__(self, data: Rows, device: torch.device, number_type: torch.dtype) -> None:
        images, labels = load_rows(data, device)
        self._images = torch.cat([images, images.new_zeros((1, *images.shape[1:]))])
        self._labels = None if labels is None else torch.cat([labels, labels.new_zeros(1)])
        self.filler, self._type = len(images), number_type

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record."""
        return tuple(self._images.shape[1:])

    def gather(self, indices_private: Tensor) -> Examples:
        """The records with these numbers.

        Privacy: private, to be clipped one by one; places with the filler's number do not count.
        """
        images = self._images.index_select(0, indices_private).to(self._type) / 255
        labels = None if self._labels is None else self._labels.index_select(0, indices_private)
        signs = torch.ones(len(images), device=images.device)
        return Examples(images, labels, signs, indices_private != self.filler)
