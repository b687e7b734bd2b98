"""The sum of clipped gradients as a CUDA graph: hundreds of small kernels, launched at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Drawn = tuple[Tensor, Tensor]
Add = Callable[[Tensor, Drawn | None], None]

_WARM_UP = 3


class CapturedSum:
    """``add`` captured twice: for a batch of ``capacity`` places with its fakes, and for reals that did not fit.

    Privacy: what does not fit into the first pass is added by further passes before the noise, so no record that was
    drawn is left out. The static buffers hold private record numbers until the next step.
    """

    def __init__(self, add: Add, capacity: int, drawn: Drawn, total: Tensor, filler: int) -> None:
        self._add, self._capacity, self._filler = add, capacity, filler
        self._indices = torch.full((capacity,), filler, device=total.device)
        self._drawn = (torch.empty_like(drawn[0]).copy_(drawn[0]), torch.empty_like(drawn[1]).copy_(drawn[1]))
        self._pool = torch.cuda.graph_pool_handle()
        self._whole = self._capture(self._drawn, total)
        self._more: torch.cuda.CUDAGraph | None = None
        self._total = total

    def replay(self, indices_private: Tensor, size_private: int, drawn: Drawn) -> None:
        """Add one batch to the total.

        Privacy: as ``add``; the shapes are public, how many passes there are is not.
        """
        for start in range(self._capacity, size_private, self._capacity):
            if self._more is None:
                self._more = self._capture(None, self._total)
            self._indices.copy_(indices_private[start : start + self._capacity])
            self._more.replay()
        self._indices.copy_(indices_private[: self._capacity])
        for static, given in zip(self._drawn, drawn, strict=True):
            static.copy_(given)
        self._whole.replay()

    def _capture(self, drawn: Drawn | None, total: Tensor) -> torch.cuda.CUDAGraph:
        """Capture after a few runs without any record; they leave the total as it was."""
        before = total.clone()
        self._indices.fill_(self._filler)
        stream = torch.cuda.Stream(total.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._add(self._indices, drawn)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._add(self._indices, drawn)
        total.copy_(before)
        return graph
