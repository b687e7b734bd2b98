"""The one door through which private rows reach a device, and the examples that a private step looks at."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from understudy.data.dataset import ImageDataset
from understudy.engines.config import Adversary
from understudy.models.generator import Generator


def load_batch(data: ImageDataset, selection: slice, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] (N, C, H, W) and labels (zeros for unlabelled data) of some records.

    Privacy: both are private; they may go into a mechanism and nowhere else.
    """
    images_private = torch.from_numpy(data.images[selection]).to(device).float() / 255
    if data.labels is None:
        return images_private, torch.zeros(len(images_private), dtype=torch.long, device=device)
    return images_private, torch.from_numpy(data.labels[selection]).to(device)


@dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W) in [0, 1], their labels, +1 for reals and -1 for fakes, and which rows count.

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

    def losses(self, kind: Adversary, logits: Tensor) -> Tensor:
        """The loss of each example: softplus(-logit) for a real and softplus(logit) for a fake, or -logit and logit."""
        signed = -self.signs * logits.float()
        return functional.softplus(signed) if kind == "logistic" else signed


def join(reals: Examples, fakes: Examples) -> Examples:
    """Reals, then fakes, as one batch."""
    labels = None
    if reals.labels is not None and fakes.labels is not None:
        labels = torch.cat([reals.labels, fakes.labels])
    images, signs, present = (
        torch.cat([getattr(reals, name), getattr(fakes, name)]) for name in ("images", "signs", "present")
    )
    return Examples(images, labels, signs, present)


class Reals:
    """All private records on the device, with an empty one at the end for the places that a batch does not fill."""

    def __init__(self, data: ImageDataset, device: torch.device, number_type: torch.dtype) -> None:
        images = torch.from_numpy(data.images).to(device)
        self._images = torch.cat([images, images.new_zeros((1, *images.shape[1:]))])
        self._labels = None
        if data.labels is not None:
            labels = torch.from_numpy(data.labels).to(device)
            self._labels = torch.cat([labels, labels.new_zeros(1)])
        self.filler, self._type = len(images), number_type

    def gather(self, indices_private: Tensor) -> Examples:
        """The records with these numbers.

        Privacy: private, to be clipped one by one; places with the filler's number do not count.
        """
        images = self._images.index_select(0, indices_private).to(self._type) / 255
        labels = None if self._labels is None else self._labels.index_select(0, indices_private)
        signs = torch.ones(len(images), device=images.device)
        return Examples(images, labels, signs, indices_private != self.filler)


class Fakes:
    """Draws and renders generated images; the copy that renders follows the generator's weights."""

    def __init__(self, generator: Generator, number_type: torch.dtype, labelled: bool) -> None:
        self._source, self._labelled = generator, labelled
        self._copy = copy.deepcopy(generator).requires_grad_(False)
        self._type = number_type
        self._shares = number_type == next(generator.parameters()).dtype
        if self._shares:
            for own, source in zip(_tensors(self._copy), _tensors(generator), strict=True):
                own.data = source.data
        else:
            self._copy.to(number_type)
            for own in self._copy.parameters():
                own.data = own.data.contiguous(memory_format=torch.channels_last) if own.dim() == 4 else own.data

    def draw(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Latent values and labels from the generator's declared laws, never from a real batch."""
        return self._source.draw_latent(count, random), self._source.draw_labels(count, random)

    def refresh(self) -> None:
        """Follow the generator's weights, where the copy holds them rounded."""
        if not self._shares:
            torch._foreach_copy_(_tensors(self._copy), _tensors(self._source))

    @torch.no_grad()
    def render(self, latent: Tensor, labels: Tensor) -> Examples:
        """Generated images; their number is public and all of them count."""
        images = self._copy.pixels(self._copy(latent.to(self._type), labels)).contiguous()
        signs = torch.full((len(images),), -1.0, device=images.device)
        present = torch.ones(len(images), dtype=torch.bool, device=images.device)
        return Examples(images, labels if self._labelled else None, signs, present)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
