"""A released embedding to start from: where a generator begins, what it stays close to, and its law of labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from understudy.engines.embedding.config import EmbeddingConfig
from understudy.engines.embedding.means import (
    Embedding,
    Fit,
    FitConfig,
    Network,
    NoisyMeans,
    distance,
    release_means,
    slopes,
)
from understudy.models.generator import Generator
from understudy.privacy.events import CLASS_MEANS
from understudy.runs.run import Run

_REPORTS = 50


@dataclass(frozen=True)
class EmbeddingStart:
    """A released embedding. It is public once it is released, so all that is done with it is post-processing."""

    embedding: Embedding
    means: NoisyMeans

    @classmethod
    def of_run(cls, run: Run, settings: EmbeddingConfig) -> EmbeddingStart | None:
        """The embedding that the plan of a run pays for, released now or found again; None where it pays for none.

        Privacy: one Gaussian event of sensitivity C, see ``release_means``.
        """
        event = next((event for event in run.plan.events if event.purpose == CLASS_MEANS), None)
        if event is None:
            return None
        embedding = Embedding.of_run(run, settings)
        return cls(embedding, release_means(run, embedding, event, embedding.sharing))

    def fit(self, run: Run, generator: Generator, settings: FitConfig, random: torch.Generator) -> None:
        """Fit a generator before its training begins, with progress; a stopped run fits it again when resumed."""
        fit = Fit(generator, self.embedding, self.means, settings, run.plan.config.runtime.precision)
        for step in range(settings.steps):
            loss = fit.step(random)
            if step % max(1, settings.steps // _REPORTS) == 0:
                run.prepare(embedding_fitted=step / settings.steps, embedding_loss=float(loss))

    def distance(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """Squared distance of the images' class means from the released ones."""
        return distance(images, _given(labels, images), self.embedding, self.means)

    def slopes(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """The pull of the embedding on each image."""
        return slopes(images, _given(labels, images), self.embedding, self.means)


def informed(network: Network, start: EmbeddingStart | None) -> Network:
    """A generator whose law of labels is that of the noisy class sizes, where an embedding told them."""
    return network if start is None else start.means.inform(network)


def _given(labels: Tensor | None, images: Tensor) -> Tensor:
    return torch.zeros(len(images), dtype=torch.long, device=images.device) if labels is None else labels
