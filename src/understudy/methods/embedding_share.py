"""A part of the budget for a noisy mean embedding to start from: what methods plan for it (no torch here)."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

from understudy.data.domain import Domain
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import CLASS_MEANS, Event
from understudy.training.settings import EmbeddingSettings

Share = Annotated[float, Field(ge=0, lt=1)]  # of epsilon; 0: no embedding
Settings = TypeVar("Settings", bound=EmbeddingSettings)


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
