"""The contract of a federation: what all parties agree on before the first message, and nothing may change later.

It is public. A client keeps its own copy and refuses every message that was not written under it, so a server can lower
neither the noise nor the clip bound, nor ask for more answers than were agreed.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from understudy.configs import Count, Positive, validated
from understudy.data.domain import Domain
from understudy.engines.config import CriticsConfig
from understudy.errors import InputError
from understudy.files import read_json
from understudy.methods.base import Method
from understudy.methods.registry import get_method
from understudy.privacy.certificate import ClientLimits
from understudy.privacy.events import Event
from understudy.privacy.plan import Plan

Kind = Literal["gs-wgan-federated", "fedavg-gan"]
DIGEST_BYTES = 16


class EmbeddingTerms(BaseModel):
    """The mean embedding that every client sends once, before the first round: which features, and its own noise.

    ``smoothing`` (in pixels) blurs images before features are taken; ``noise_multiplier`` is the deviation of a
    client's noise over 2C, with C = 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    frequencies: Count
    length_scales: Annotated[tuple[Positive, ...], Field(min_length=1)]
    smoothing: Annotated[float, Field(ge=0)]
    size_share: Annotated[float, Field(gt=0, lt=1)]
    noise_multiplier: Positive


class Contract(BaseModel):
    """Terms of a federation. ``pool`` is the number of generated images that critics train on in a round.

    For ``fedavg-gan`` answers are clipped updates of the discriminator, unsanitized: the server adds the noise, so it
    must be trusted, and ``noise_multiplier`` and ``answer_bits`` say nothing about what leaves a client.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    kind: Kind
    federation: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    domain: Domain
    limits: ClientLimits
    noise_multiplier: Positive
    clip: Positive
    critics: CriticsConfig
    pool: Count
    answer_bits: Literal[8, 16] = 8
    embedding: EmbeddingTerms | None = None

    @property
    def digest(self) -> bytes:
        """What every message carries to show under which contract it was written."""
        return hashlib.sha256(self.to_json().encode()).digest()[:DIGEST_BYTES]

    @property
    def values(self) -> int:
        """Numbers in one image, hence in one answer."""
        channels, height, width = self.domain.shape
        return channels * height * width

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in every value of an answer: 2 * C * noise multiplier."""
        return 2 * self.clip * self.noise_multiplier

    def answer_event(self) -> Event:
        """All that one client will ever answer, as its own ledger counts it: no sampling, because it knows itself."""
        return Event(
            noise_multiplier=self.noise_multiplier,
            sensitivity="2C",
            unit="client",
            count=self.limits.answers,
            purpose="answers to the server",
        )

    def embedding_event(self) -> Event | None:
        """The one embedding that a client sends, as its own ledger counts it; None where there is none."""
        if self.embedding is None:
            return None
        multiplier = self.embedding.noise_multiplier
        return Event(
            noise_multiplier=multiplier, sensitivity="2C", unit="client", count=1, purpose="embedding to the server"
        )

    def client_events(self) -> tuple[Event, ...]:
        """All that the contract can ever cost a client against the server."""
        embedding = self.embedding_event()
        return (self.answer_event(),) if embedding is None else (self.answer_event(), embedding)

    def to_json(self) -> str:
        """The content of ``contract.json``; the same for all parties, byte for byte."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"


def read_contract(path: Path) -> Contract:
    """A contract from its file."""
    return validated(Contract, read_json(path, "contract"), f"contract: {path}", "ask the operator for the contract")


class FederatedMethod(Method):
    """A method whose data stay with their clients: its plan means a contract for them."""

    federated: ClassVar[bool] = True

    @abstractmethod
    def contract(self, plan: Plan) -> Contract:
        """What a plan means for the clients of a federation."""


def get_federated_method(name: str) -> FederatedMethod:
    """The method of that name, which must be one whose data stay with their clients."""
    method = get_method(name)
    if not isinstance(method, FederatedMethod):
        raise InputError(f"method: {name} cannot be federated; choose gs-wgan-federated or fedavg-gan")
    return method
