"""All parameters of a network in one flat tensor, so that noise and optimiser are single operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from understudy.errors import InputError

_ROUND = 32


class FlatParameters:
    """Moves a network's parameters into ``values`` and leaves views of it in the network.

    Kernels of convolutions lie channels last in it: the order in which patches give their gradients, and the fast
    layout on a graphics card. Every parameter begins at a round place, for aligned access; what lies between them is
    unused. Loading a state dict writes through the views; moving the network elsewhere breaks them.
    """

    def __init__(self, network: nn.Module) -> None:
        parameters = dict(network.named_parameters())
        if not parameters:
            raise InputError("per-example gradients: the network has no parameters, so there is nothing to train")
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters.values()}
        if len(kinds) > 1:
            raise InputError(f"per-example gradients: parameters of {len(kinds)} types or devices; use one for all")
        dtype, device = kinds.pop()
        self._spans: dict[str, slice] = {}
        size = 0
        for name, parameter in parameters.items():
            self._spans[name] = slice(size, size + parameter.numel())
            size += math.ceil(parameter.numel() / _ROUND) * _ROUND
        self.values = torch.zeros(size, dtype=dtype, device=device)
        for name, parameter in parameters.items():
            view = shaped(self.values[self._spans[name]], parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view

    def span(self, name: str) -> slice:
        """Where a parameter lies in ``values`` and in every flat gradient."""
        return self._spans[name]

    def zeros(self) -> Tensor:
        """A flat gradient of zeros."""
        return torch.zeros_like(self.values)


def shaped(flat: Tensor, shape: torch.Size) -> Tensor:
    """A part of a flat tensor in the shape of its parameter; kernels (out, in, rows, columns) lie channels last."""
    assert flat.numel() == math.prod(shape)
    if len(shape) != 4:
        return flat.view(shape)
    return flat.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
