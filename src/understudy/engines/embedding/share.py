"""A part of the budget for a noisy mean embedding to start from: what methods plan for it (no torch here)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from pydantic import BaseModel

from understudy.data.domain import Domain
from understudy.engines.config import EmbeddingConfig
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import CLASS_MEANS, Event

Settings = TypeVar("Settings", bound=EmbeddingConfig)


class _Method(Protocol):
    @property
    def embedding(self) -> EmbeddingConfig: ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


class _Embedded(Protocol):
    @property
    def privacy(self) -> BaseModel: ...

    @property
    def method(self) -> _Method: ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


Embedded = TypeVar("Embedded", bound=_Embedded)


def embedding_event(noise_multiplier: float) -> Event:
    """The one Gaussian release of the class-wise sum of embeddings."""
    return Event(noise_multiplier=noise_multiplier, sensitivity="C", count=1, purpose=CLASS_MEANS)


def embedding_events(share: float, noise_multiplier: float | None, budget: Budget) -> tuple[Event, ...]:
    """The release of the embedding with the noise that was given, or that its share of epsilon asks for."""
    if not share:
        return ()
    part = Budget(budget.epsilon * share, budget.delta)
    return (embedding_event(noise_multiplier or accounting.calibrate(lambda noise: [embedding_event(noise)], part)),)


def decided_embedding(settings: Settings, domain: Domain, noise_multiplier: float) -> Settings:
    """The settings with everything filled in that was left to public facts: the image size and the noise."""
    pixels = domain.shape[0] * domain.shape[1] * domain.shape[2]
    return settings.decided(pixels, noise_multiplier * (domain.classes or 1) / domain.nominal_records)


def with_embedding(config: Embedded, domain: Domain, events: tuple[Event, ...]) -> Embedded:
    """The config of a method that starts from an embedding, with its noise and its settings filled in."""
    noise = events[0].noise_multiplier if events else None
    privacy = config.privacy.model_copy(update={"embedding_noise_multiplier": noise})
    embedding = decided_embedding(config.method.embedding, domain, noise or 0.0)
    method = config.method.model_copy(update={"embedding": embedding})
    return config.model_copy(update={"privacy": privacy, "method": method})
