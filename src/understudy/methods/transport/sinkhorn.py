"""The Sinkhorn divergence between generated and real images: where each generated image should move.

Two sets have the entropic transport cost W(X, Y) = min over plans P of <P, c> + r * KL(P | a (x) b), with c(x, y) =
|x - y|^2 and r the regularisation. The divergence S(X, Y) = W(X, Y) - W(X, X)/2 - W(Y, Y)/2 (Genevay, Peyré, Cuturi
2018) is free of the bias by which W alone would shrink X. By the envelope theorem its gradient at x_i is

    grad_i S = 2 * [ sum_k P^XX_ik x_k - sum_j P^XY_ij y_j ],

so an image moves from the mean of the generated images that it is matched with to the mean of its real ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from understudy.data.sampling import sampling_rate
from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.engines.records import Records
from understudy.errors import InputError
from understudy.methods.transport.dp_sinkhorn import TransportConfig
from understudy.privacy.events import Event, PoissonSampling
from understudy.runs.run import Run


def transport_plan(costs: Tensor, weights: Tensor, settings: TransportConfig) -> Tensor:
    """Entropic plans (blocks, m, n) between m points of weight 1/m and n points of ``weights``: Sinkhorn's iteration.

    Rows sum to 1/m exactly, columns to the weights in the limit. Works with logarithms; a weight may be zero.
    """
    log_rows, log_columns = -math.log(costs.shape[1]), weights.log()[:, None, :]
    nearness = -costs / settings.regularisation
    rows = columns = torch.zeros_like(costs[:, :, :1])  # potentials over the regularisation
    for _ in range(settings.iterations):
        columns = -(nearness + rows + log_rows).logsumexp(dim=1, keepdim=True)
        rows = -(nearness + columns + log_columns).logsumexp(dim=2, keepdim=True)
    return (nearness + rows + columns + log_rows + log_columns).exp()


def divergence_slopes(fakes: Tensor, reals: Tensor, weights: Tensor, settings: TransportConfig) -> Tensor:
    """Slopes of the divergence at each generated point, times m / 2: shape (blocks, m, values) like ``fakes``.

    ``weights`` (blocks, n) of the ``reals`` (blocks, n, values) sum to one in each block, or to zero where it has none:
    then its slopes are zero.
    """
    filled = weights.sum(dim=1, keepdim=True) > 0
    own = torch.full_like(fakes[:, :, 0], 1 / fakes.shape[1])

    def matched(others: Tensor, their_weights: Tensor) -> Tensor:
        costs = _squared_distances(fakes, others)
        return fakes.shape[1] * (transport_plan(costs, their_weights, settings) @ others)

    slopes = matched(fakes, own) - matched(reals, torch.where(filled, weights, 1 / weights.shape[1]))
    return torch.where(filled[:, :, None], slopes, 0.0)


class SinkhornCells:
    """Poisson-sampled reals in cells, and what they say about the generated images of the same cell.

    Every class (with a label cost: the whole batch) is split into cells, and each record of a batch goes to a random
    cell of its class. The blocks of the answer are the slopes of one cell each.

    Privacy: a record takes part with the event's Poisson rate and then reaches one cell, and so one block, whose values
    depend on that cell's records alone. Nothing here bounds a block: ``GaussianBlocks`` does. Weights are one over the
    drawn members of a cell, which are private like all else here. An empty cell gives a block of zeros. Cells are
    padded to the fullest one and computed side by side; in double precision, so that what this rounds in other blocks
    (about 1e-12 of the bound) is far inside the margin of 1e-6 by which the mechanism clips below its bound. A tiny
    regularisation or bound, or a huge label cost, would magnify it (to 1e-3 at a regularisation of 1e-14), so the
    settings refuse them.
    """

    def __init__(self, run: Run, settings: TransportConfig, batch: int, event: Event) -> None:
        domain = run.plan.domain
        rate = sampling_rate(batch, domain.nominal_records)
        if not (isinstance(event.sampling, PoissonSampling) and event.sampling.rate == rate):
            raise InputError(f"event: cells sample with a Poisson rate of {rate:g}, but {event.sampling} is accounted")
        assert settings.cells is not None, "decided by the plan"
        self._settings, self._cells, self._classes = settings, settings.cells, domain.classes or 1
        self._reals = Records(run.data, run.device, torch.float32)
        self._batches = PoissonBatches(len(run.data), rate, run.randomness.coins(run.device))
        self._random = run.randomness.generator(run.device)
        self._waiting: list[Tensor] = []

    @property
    def blocks(self) -> int:
        """How many cells there are."""
        return self._cells * (1 if self._settings.label_cost else self._classes)

    @property
    def labels(self) -> Tensor:
        """Labels of the generated images (blocks * images,): of one class in each block, or evenly mixed."""
        every = torch.arange(self.blocks * self._settings.images, device=self._random.device)
        if self._settings.label_cost:
            return every % self._classes
        return every // (self._cells * self._settings.images)

    def slopes(self, images: Tensor) -> Tensor:
        """What a fresh batch says about generated images in the order of ``labels``: (blocks, images * pixels).

        Privacy: private; it may go into ``GaussianBlocks`` and nowhere else.
        """
        indices_private, pixels = self._draw(), images[0].numel()
        fakes = self._points(images, self.labels).unflatten(0, (self.blocks, self._settings.images))
        slopes_private = divergence_slopes(fakes, *self._arranged(indices_private), self._settings)
        return slopes_private[:, :, :pixels].flatten(1) * math.sqrt(pixels)

    def _draw(self) -> Tensor:
        """The records of the next batch; private."""
        if not self._waiting:
            table = self._batches.draw(self._batches.steps_at_once)
            self._waiting = [row[:size] for row, size in zip(table.indices, table.sizes, strict=True)]
        return self._waiting.pop()

    def _arranged(self, indices_private: Tensor) -> tuple[Tensor, Tensor]:
        """Records as points (blocks, n, values), each in a random cell of its class, and their weights (blocks, n).

        Privacy: n, the size of the fullest cell, is private and only shapes values that are private.
        """
        examples, count = self._reals.gather(indices_private), len(indices_private)
        labels = torch.zeros_like(indices_private) if examples.labels is None else examples.labels
        cells = torch.randint(self._cells, (count,), generator=self._random, device=labels.device)
        if not self._settings.label_cost:
            cells += self._cells * labels
        cells, order = cells.sort()
        sizes = torch.bincount(cells, minlength=self.blocks)
        places = torch.arange(count, device=cells.device) - (sizes.cumsum(0) - sizes)[cells]
        values = self._points(examples.images, labels)[order]
        points = values.new_zeros(self.blocks, max(1, int(sizes.max())), values.shape[1])
        weights = torch.zeros_like(points[:, :, 0])
        points[cells, places], weights[cells, places] = values, 1 / sizes[cells].to(values.dtype)
        return points, weights

    def _points(self, images: Tensor, labels: Tensor) -> Tensor:
        """Images as points whose squared distance is the mean square of pixel differences, plus the label cost."""
        values = images.flatten(1).double()
        values = values / math.sqrt(values.shape[1])
        if not self._settings.label_cost:
            return values
        marks = one_hot(labels, self._classes).to(values.dtype) * math.sqrt(self._settings.label_cost / 2)
        return torch.cat([values, marks], dim=1)


def _squared_distances(points: Tensor, others: Tensor) -> Tensor:
    squares, other_squares = points.square().sum(dim=2), others.square().sum(dim=2)
    crossed = points @ others.mT
    return (squares[:, :, None] + other_squares[:, None, :] - 2 * crossed).clamp(min=0)
