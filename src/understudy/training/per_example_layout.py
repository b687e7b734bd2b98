"""All parameters of a network in one flat tensor, so that noise and optimiser are single operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from understudy.errors import InputError


class FlatParameters:
    """Moves a network's parameters into ``values`` and leaves views of it in the network.

    Kernels of convolutions lie channels last in it: the order in which patches give their gradients, and the fast
    layout on a graphics card. Loading a state dict writes through the views; moving the network elsewhere breaks them.
    """

    def __init__(self, network: nn.Module) -> None:
        parameters = dict(network.named_parameters())
        if not parameters:
            raise InputError("per-example gradients: the network has no parameters, so there is nothing to train")
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters.values()}
        if len(kinds) > 1:
            raise InputError(f"per-example gradients: parameters of {len(kinds)} types or devices; use one for all")
        dtype, device = kinds.pop()
        self.values = torch.empty(
            sum(parameter.numel() for parameter in parameters.values()), dtype=dtype, device=device
        )
        self._spans: dict[str, slice] = {}
        start = 0
        for name, parameter in parameters.items():
            self._spans[name] = slice(start, start + parameter.numel())
            view = shaped(self.values[self._spans[name]], parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            start += parameter.numel()

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
