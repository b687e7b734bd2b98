"""Teachers: the critics of a panel, each on its own shard, all of them asked about every generated image."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from understudy.training.critic_bank_batches import take
from understudy.training.critic_panel import CriticPanel, FakePool

_MOST_VALUES = 2**24  # of one block of answers; fixed by public shapes alone


class TeacherPanel(CriticPanel):
    """K teachers that answer together.

    Privacy: shards are disjoint (asserted whenever the partition is loaded) and fixed; teacher k reads shard k, its own
    randomness and public images, and when it is trained is a public schedule. So a record changes what one teacher
    says. What the teachers say must go into a mechanism for votes before anything else sees it.
    """

    def slopes(self, pool: FakePool) -> Iterator[Tensor]:
        """Gradients (teachers, images, values) of -D_k at every image, some teachers at a time; changes no teacher."""
        for block, images, labels in self._blocks(pool):
            yield self.bank.input_gradients(block, images, labels).flatten(2)

    def margins(self, pool: FakePool, threshold: float) -> Iterator[Tensor]:
        """By how much (teachers, images) each image is above a teacher's line between fake and real.

        The line lies at ``threshold`` of the way from the teacher's mean score of the pool's images with the same label
        (0) to the mean score of its own records (1). A teacher without records says zero.
        """
        for block, images, labels in self._blocks(pool):
            scores = self.bank.scores(block, images, labels)
            fakes = _mean_of_label(scores, pool.labels)
            gap = self._real_mean(block) - scores.mean(dim=1)
            yield scores - fakes - threshold * gap.unsqueeze(1)

    def _real_mean(self, block: slice) -> Tensor:
        """Each teacher's mean score of a batch of its own records."""
        drawn = self._records_private.table.draw(block, self.settings.batch, self._random)
        images, labels = take(self._records_private.images, self._records_private.labels, drawn)
        return self.bank.scores(block, images, labels).mean(dim=1)

    def _blocks(self, pool: FakePool) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Teachers in blocks that fit into memory, each with the whole pool (as views)."""
        size = max(1, _MOST_VALUES // pool.images.numel())
        for start in range(0, self.subsets, size):
            block = slice(start, min(start + size, self.subsets))
            count = block.stop - block.start
            labels = None if pool.labels is None else pool.labels.expand(count, -1)
            yield block, pool.images.expand(count, *pool.images.shape), labels


def _mean_of_label(scores: Tensor, labels: Tensor | None) -> Tensor:
    """The mean score (teachers, images) of the images that share an image's label."""
    if labels is None:
        return scores.mean(dim=1, keepdim=True).expand_as(scores)
    same = (labels.unsqueeze(0) == labels.unsqueeze(1)).to(scores.dtype)
    return scores @ (same / same.sum(dim=0, keepdim=True))
