"""The CUDA graph of a private sum: hundreds of small kernels, launched at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

Drawn = tuple[Tensor, ...]  # what companions are made from, one row for each
_WARM_UP = 3


def captured(
    work: Callable[[], None], device: torch.device, pool: Any = None, random: torch.Generator | None = None
) -> Callable[[], None]:
    """What repeats ``work``: a CUDA graph on a graphics card, after a few runs of it; else the work itself.

    What it draws from ``random`` is drawn afresh every time.
    """
    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    if random is not None:
        graph.register_generator_state(random)
    with torch.cuda.graph(graph, pool=pool):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


class CapturedSum:
    """``add`` captured twice: for ``capacity`` units with their companions, and for units that did not fit.

    Privacy: what does not fit into the first pass is added by further passes before the noise, so no unit that was
    drawn is left out. The static buffers hold private record numbers until the next step.
    """

    def __init__(
        self,
        add: Callable[[Tensor, Drawn], None],
        capacity: int,
        drawn: Drawn,
        total: Tensor,
        filler: int,
        random: torch.Generator | None = None,
    ) -> None:
        self._add, self._capacity, self._filler, self._total = add, capacity, filler, total
        self._random = random
        self._indices = torch.full((capacity,), filler, device=total.device)
        self._drawn = tuple(part.clone() for part in drawn)
        self._pool = torch.cuda.graph_pool_handle() if total.is_cuda else None
        self._whole = self._capture(self._drawn)
        self._more = None if drawn else self._whole

    def replay(self, indices_private: Tensor, size_private: int, drawn: Drawn) -> None:
        """Add one batch to the total.

        Privacy: as ``add``; the shapes are public, how many passes there are is not.
        """
        for start in range(self._capacity, size_private, self._capacity):
            if self._more is None:
                self._more = self._capture(())
            self._indices.copy_(indices_private[start : start + self._capacity])
            self._more()
        self._indices.copy_(indices_private[: self._capacity])
        for static, given in zip(self._drawn, drawn, strict=True):
            static.copy_(given)
        self._whole()

    def _capture(self, drawn: Drawn) -> Callable[[], None]:
        """Capture on places without any unit; the runs before it leave the total as it was."""
        before = self._total.clone()
        self._indices.fill_(self._filler)
        work = partial(self._add, self._indices, drawn)
        replay = captured(work, self._total.device, self._pool, self._random)
        self._total.copy_(before)
        return replay
