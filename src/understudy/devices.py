"""Where things run: the graphics card if there is one, else the processor."""

from __future__ import annotations

import torch

from understudy.errors import InputError


def choose_device(name: str = "auto") -> torch.device:
    """The device called ``name`` (``auto``, ``cpu``, ``cuda``, ``cuda:1``), refused if this machine has none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device: '{name}' is unknown; pass auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: '{name}' asked for, but this machine has no usable CUDA device; pass auto or cpu")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device: '{name}' is not supported; pass auto, cpu or cuda")
    return device


def describe_device(device: torch.device) -> str:
    """The device in words, for a result file."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
