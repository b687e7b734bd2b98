"""A released embedding as an anchor: where a generator starts, what it stays close to, and its law of labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.data.domain import Domain
from understudy.engines.config import EmbeddingConfig
from understudy.engines.embedding import means as mean_embedding
from understudy.engines.embedding.fit import Fit, FitConfig
from understudy.engines.embedding.means import Embedding, NoisyMeans
from understudy.models.generator import Generator
from understudy.privacy.events import Event
from understudy.runs.run import Run

_REPORTS = 50


@dataclass(frozen=True)
class Anchor:
    """A released embedding. It is public once it is released, so all that is done with it is post-processing."""

    embedding: Embedding
    means: NoisyMeans

    @classmethod
    def release(cls, run: Run, settings: EmbeddingConfig, event: Event) -> Anchor:
        """Release the embedding of a run, or find it again where the run has paid for it already.

        Privacy: one Gaussian event of sensitivity C, see ``mean_embedding.release_means``.
        """
        embedding = Embedding.of_run(run, settings)
        return cls(embedding, mean_embedding.release_means(run, embedding, event))

    def fit(self, run: Run, generator: Generator, settings: FitConfig, random: torch.Generator) -> None:
        """Fit a generator before its training begins, with progress; a stopped run fits it again when resumed."""
        fit = Fit(generator, self.embedding, self.means, settings, run.plan.config.runtime.precision)
        for step in range(settings.steps):
            loss = fit.step(random)
            if step % max(1, settings.steps // _REPORTS) == 0:
                run.prepare(embedding_fitted=step / settings.steps, embedding_loss=float(loss))

    def distance(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Squared distance of the images' class means from the released ones."""
        return mean_embedding.distance(images, _given(labels, images), self.embedding, self.means)

    def slopes(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """The pull of the embedding on each image."""
        return mean_embedding.slopes(images, _given(labels, images), self.embedding, self.means)

    def label_weights(self, domain: Domain) -> tuple[float, ...] | None:
        """The noisy class shares as the law of labels; None where there are no labels."""
        return self.means.label_weights() if domain.labelled else None


def _given(labels: Tensor | None, images: Tensor) -> Tensor:
    return torch.zeros(len(images), dtype=torch.long, device=images.device) if labels is None else labels
