"""One critic-bank step per CUDA graph: for small blocks, where launching kernels costs more than running them."""

from __future__ import annotations

import torch
from torch import Tensor

from understudy.errors import InputError
from understudy.models.critic import CriticBatch
from understudy.training.critic_bank import CriticBank
from understudy.training.critic_bank_config import CriticReport

_CHANGED = ("parameters", "first_moment", "second_moment", "steps", "vectors")


class CapturedSteps:
    """Training steps of fixed, contiguous blocks of critics, captured once and replayed on new batches.

    All graphs read one static batch and share one memory pool. Capturing leaves the bank as it was.
    """

    def __init__(self, bank: CriticBank, blocks: list[slice], batch: int) -> None:
        if bank.device.type != "cuda":
            raise InputError(f"device: {bank.device} has no CUDA graphs; call train_step instead")
        sizes = {block.stop - block.start for block in blocks}
        if len(sizes) != 1:
            raise InputError(f"blocks: sizes {sorted(sizes)} differ; graphs share one batch, so use equal blocks")
        self.bank = bank
        self.static = _empty_batch(bank, sizes.pop(), batch)
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, CriticReport]] = {}
        pool = torch.cuda.graph_pool_handle()
        self._warm_up(blocks[0])
        for block in blocks:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                report = bank.train_step(block, self.static)
            self.graphs[block.start, block.stop] = (graph, report)

    def _warm_up(self, block: slice) -> None:
        """Runs one real step, so that buffers and libraries are ready, and undoes it."""
        before = {name: getattr(self.bank, name)[block].clone() for name in _CHANGED}
        self.bank.train_step(block, self.static)
        for name, rows in before.items():
            getattr(self.bank, name)[block] = rows
        torch.cuda.synchronize()

    def train_step(self, block: slice, batch: CriticBatch, generator: torch.Generator | None = None) -> CriticReport:
        """The same as the bank's ``train_step`` for one of the captured blocks.

        Privacy: as there; the static batch holds private images until the next step.
        """
        graph, report = self.graphs[block.start, block.stop]
        for name in ("real_images", "fake_images", "real_labels", "fake_labels"):
            static, given = getattr(self.static, name), getattr(batch, name)
            if static is not None:
                static.copy_(given)
        assert self.static.mix is not None
        if batch.mix is None:
            self.static.mix.uniform_(generator=generator)
        else:
            self.static.mix.copy_(batch.mix)
        graph.replay()
        return CriticReport(report.loss.clone(), report.gap.clone(), report.penalty.clone())


def _empty_batch(bank: CriticBank, critics: int, batch: int) -> CriticBatch:
    shape = (critics, batch)

    def labels() -> Tensor | None:
        return torch.zeros(shape, dtype=torch.long, device=bank.device) if bank.layout.head_rows > 1 else None

    images = [torch.zeros(*shape, *bank.config.critic.shape, device=bank.device) for _ in range(2)]
    return CriticBatch(images[0], images[1], labels(), labels(), torch.zeros(shape, device=bank.device))
