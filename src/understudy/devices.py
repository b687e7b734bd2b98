"""Where things run: the graphics card if there is one, else the processor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

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


def low_precision(precision: str, device: torch.device) -> AbstractContextManager[None]:
    """Networks inside run in bf16 where that is asked for and the device is a graphics card.

    Privacy: for what is public already, as a generator; never around a private sum.
    """
    return torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16" and device.type == "cuda")


def check_memory(needed_bytes: int, device: torch.device) -> None:
    """Refuse a plan that cannot fit the graphics card, before any data is read."""
    if device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    if needed_bytes > total:
        raise InputError(
            f"device: this plan needs about {needed_bytes / 2**30:.1f} GiB, but {describe_device(device)} has "
            f"{total / 2**30:.1f} GiB; {_LESS_MEMORY}"
        )


def cards_of(processes: int) -> int:
    """How many graphics cards so many processes have together: each its own, unless a machine has fewer."""
    here = min(processes, int(os.environ.get("LOCAL_WORLD_SIZE", processes)))
    on_each = -(-here // max(1, torch.cuda.device_count()))
    return -(-processes // on_each)


@contextmanager
def explained_memory_errors(device: torch.device) -> Iterator[None]:
    """Turn a failed allocation into one sentence; what was spent is in the ledger, and the run can be resumed."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise InputError(
            f"device: out of memory on {describe_device(device)}, the run can be continued with --resume where there "
            f"is more; otherwise start anew: {_LESS_MEMORY}"
        ) from None


_LESS_MEMORY = "use smaller batches, fewer or narrower networks (see `understudy plan`), or --device cpu"
