"""Which networks have a gradient per example at all: nothing in them may mix examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from understudy.errors import InputError
from understudy.training.per_example_layers import RULES

_KNOWN = ", ".join(kind.__name__ for kind in RULES)


def check_modules(network: nn.Module) -> None:
    """Refuse, by name, layers that mix examples and layers whose gradient per example is not known.

    Privacy: if an example could move another one's gradient, clipping each would bound nothing.
    """
    owners: dict[int, str] = {}
    for name, module in network.named_modules():
        title = f"{name or 'network'} ({type(module).__name__})"
        if isinstance(module, _BatchNorm) or (isinstance(module, _InstanceNorm) and module.track_running_stats):
            raise InputError(f"per-example gradients: {title} mixes the examples of a batch; use GroupNorm instead")
        parameters = list(module.parameters(recurse=False))
        if parameters and type(module) not in RULES:
            raise InputError(f"per-example gradients: {title} has parameters but no known rule; use {_KNOWN}")
        _check_options(module, title)
        for parameter in parameters:
            if id(parameter) in owners:
                raise InputError(
                    f"per-example gradients: {title} shares a parameter with {owners[id(parameter)]}; give it its own"
                )
            owners[id(parameter)] = title


def _check_options(module: nn.Module, title: str) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and module.padding_mode != "zeros":
        raise InputError(f"per-example gradients: {title} pads with {module.padding_mode!r}; use padding_mode='zeros'")
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        raise InputError(
            f"per-example gradients: {title} uses max_norm or scale_grad_by_freq, which mix the examples of a batch; "
            "leave both out"
        )


def check_rows_apart(before: dict[str, Tensor], after: dict[str, Tensor], row: int) -> None:
    """Refuse a network in which changing one example moved another; values by layer, from a pass before and after.

    Privacy: catches what has no parameters and so no name above: statistics over a batch, shuffled or folded rows.
    """
    for name, values in before.items():
        others = torch.arange(len(values)) != row
        same = after[name].shape == values.shape and torch.equal(
            after[name][others].nan_to_num(), values[others].nan_to_num()
        )
        if not same:
            raise InputError(
                f"per-example gradients: what reaches {name} mixes the examples of a batch; "
                "treat every example for itself"
            )
