"""The embedding as it is configured and planned: its config, its event, what it takes of a budget. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self, TypeVar

from pydantic import SerializerFunctionWrapHandler, model_serializer

from understudy.configs import SMALL_IMAGE, Config, Count, Fraction, Lengths, Positive, Share, without_defaults
from understudy.data.domain import Domain
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import CLASS_MEANS, Event


class EmbeddingConfig(Config):
    """A mean embedding and the fit of a generator to it. ``None`` is decided from public facts by ``decided``."""

    frequencies: Count | None = None
    length_scales: Lengths | None = None  # in units of the square root of the number of pixels
    tinted: Share = 0.0  # the part of the frequencies that see the mean colour of a place, not all pixels
    size_share: Fraction = 0.02  # the part of a record's squared norm that counts its class
    steps: Count = 3000
    batch: Count = 500
    learning_rate: Positive = 1e-3

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without tinted frequencies a config looks as it always did, so that older versions can read it."""
        return without_defaults(self, write(self), ("tinted",))

    def decided(self, domain: Domain, noise_multiplier: float) -> Self:
        """Large images need more frequencies; short length scales show more detail, but also more of the noise.

        What counts is the deviation of a class mean's noise: multiplier * classes / nominal units. Tinted frequencies
        are for those who ask: what images differ in as a whole is their outline, so that frequencies over all pixels
        hardly see colours, and a generator fitted to them draws all images in one. With tinted ones colours come
        sooner, and what else tells classes apart later.
        """
        noise_per_class = noise_multiplier * (domain.classes or 1) / domain.nominal_units
        frequencies = self.frequencies or (4000 if domain.values > SMALL_IMAGE else 1000)
        scales = self.length_scales or ((0.2,) if noise_per_class < 2e-4 else (0.25,))
        return self.model_copy(update={"frequencies": frequencies, "length_scales": scales})


def embedding_event(noise_multiplier: float) -> Event:
    """The one Gaussian release of the class-wise sum of embeddings."""
    return Event(noise_multiplier=noise_multiplier, sensitivity="C", count=1, purpose=CLASS_MEANS)


def embedding_events(share: float, noise_multiplier: float | None, budget: Budget) -> tuple[Event, ...]:
    """The release of the embedding with the noise that was given, or that its share of epsilon asks for."""
    if not share:
        return ()
    part = Budget(budget.epsilon * share, budget.delta)
    return (embedding_event(noise_multiplier or accounting.calibrate(lambda noise: [embedding_event(noise)], part)),)


class _Privacy(Protocol):
    embedding_share: Any
    embedding_noise_multiplier: float | None

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


class _Method(Protocol):
    embedding: EmbeddingConfig

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


class _Embedded(Protocol):
    @property
    def privacy(self) -> _Privacy: ...

    @property
    def method(self) -> _Method: ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


Embedded = TypeVar("Embedded", bound=_Embedded)


def with_embedding(config: Embedded, domain: Domain, budget: Budget) -> tuple[Embedded, tuple[Event, ...]]:
    """The config of a method that may start from an embedding, with its noise and settings filled in, and its event."""
    privacy, method = config.privacy, config.method
    events = embedding_events(privacy.embedding_share or 0.0, privacy.embedding_noise_multiplier, budget)
    noise = events[0].noise_multiplier if events else None
    decided = {
        "privacy": privacy.model_copy(update={"embedding_noise_multiplier": noise}),
        "method": method.model_copy(update={"embedding": method.embedding.decided(domain, noise or 0.0)}),
    }
    return config.model_copy(update=decided), events
