"""The config of ``gs-wgan-federated``, and what it comes to for its clients: limits, contract, event (no torch)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from understudy.configs import Count, Lengths, MethodConfig, Positive, PrivacyConfig, Share
from understudy.data.domain import Domain
from understudy.engines.config import CriticsConfig, LearnerConfig
from understudy.engines.embedding.config import embedding_events
from understudy.federated.claims import decided_limits, enrolled
from understudy.federated.contract import Contract, EmbeddingTerms
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import ClientLimits
from understudy.privacy.events import CLIENT_MEANS, Event, RoutedSampling

_QUERIES_PER_CLIENT, _QUERIES_PER_CLIENT_AND_ROUND = 2400, 12
_PURPOSE = "clients' answers"


class FederatedPrivacy(PrivacyConfig):
    """What changes epsilon; ``None`` is decided from the declared number of clients."""

    queries: Count | None = None
    queries_per_round: Count | None = None
    slots: Count | None = None  # queries that one message can hold
    answers_per_client: Count | None = None  # that any client gives at most
    colluding_clients: Count = 1
    clip: Positive = 0.1  # C
    embedding_share: Share = 0.15  # of epsilon, for the clients' mean embeddings
    embedding_noise_multiplier: Positive | None = None  # of their sum; decided by the share


class ClientEmbeddingConfig(BaseModel):
    """The embedding that clients send once, and the fit of the generator to their sum.

    Lengths are parts of the image: ``length_scales`` of the root of the number of pixels, ``smoothing`` of the height.
    A few hundred clients are few, so the noise is loud: blurred images and a short scale hear most in spite of it, and
    a long scale draws a generator near that knows nothing yet.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    frequencies: Count = 500
    length_scales: Lengths = (0.08, 0.3)
    smoothing: Annotated[float, Field(ge=0)] = 0.05
    size_share: Annotated[float, Field(gt=0, lt=1)] = 0.15  # the part of a client's squared norm that counts classes
    steps: Count = 2000
    batch: Count = 300
    learning_rate: Positive = 1e-3


class FederatedMethodConfig(BaseModel):
    """The game between the generator and the clients' critics; ``critics.rounds`` steps of a critic for each message.

    ``federation`` tells federations apart; ``critics.per_step`` is how many critics a simulation trains at a time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    federation: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = "0" * 32
    steps_per_round: Count = 8  # generator steps
    pool: Count = 64
    answer_bits: Literal[8, 16] = 8
    critics: CriticsConfig = CriticsConfig(warm_iterations=100, per_step=100)
    generator: LearnerConfig = LearnerConfig(embedding_pull=10.0)  # the embedding is loud: hold on to it less
    embedding: ClientEmbeddingConfig = ClientEmbeddingConfig()


class FederatedConfig(MethodConfig):
    """The config of ``gs-wgan-federated``."""

    privacy: FederatedPrivacy = FederatedPrivacy()
    method: FederatedMethodConfig = FederatedMethodConfig()


def decided(config: FederatedConfig, domain: Domain, budget: Budget) -> FederatedConfig:
    """The config with everything filled in that was left to the declared domain."""
    privacy, method, clients = config.privacy, config.method, enrolled(domain)
    total = privacy.queries or _QUERIES_PER_CLIENT * clients
    per_round = min(total, privacy.queries_per_round or _QUERIES_PER_CLIENT_AND_ROUND * clients)
    rounds = max(1, total // per_round)
    bare = ClientLimits(clients=clients, rounds=rounds, queries=per_round, slots=1, answers=1)
    limits = decided_limits(bare, privacy.slots, privacy.answers_per_client, budget)
    share, given = privacy.embedding_share, privacy.embedding_noise_multiplier
    embedding = embedding_events(share, given, Budget(budget.epsilon, budget.delta))
    update = {
        "embedding_noise_multiplier": embedding[0].noise_multiplier if embedding else None,
        "queries": rounds * per_round,
        "queries_per_round": per_round,
        "slots": limits.slots,
        "answers_per_client": limits.answers,
    }
    width = 16 if domain.small else 64
    critics = {"width": method.critics.width or width, "per_step": min(method.critics.per_step, clients)}
    settings = {
        "critics": method.critics.model_copy(update=critics),
        "generator": method.generator.decided(width, from_embedding=bool(embedding)),
    }
    changed = {"privacy": privacy.model_copy(update=update), "method": method.model_copy(update=settings)}
    return config.model_copy(update=changed)


def limits_of(config: FederatedConfig, clients: int) -> ClientLimits:
    """The limits that a decided config sets."""
    privacy = config.privacy
    per_round, queries = privacy.queries_per_round or 1, privacy.queries or 1
    return ClientLimits(
        clients=clients,
        rounds=queries // per_round,
        queries=per_round,
        slots=privacy.slots or per_round,
        answers=privacy.answers_per_client or queries,
    )


def federation_contract(config: FederatedConfig, domain: Domain) -> Contract:
    """The contract that a decided config means for the clients."""
    assert config.privacy.noise_multiplier is not None, "decided by the plan"
    return Contract(
        kind="gs-wgan-federated",
        federation=config.method.federation,
        domain=domain,
        limits=limits_of(config, enrolled(domain)),
        noise_multiplier=config.privacy.noise_multiplier,
        clip=config.privacy.clip,
        critics=config.method.critics,
        pool=config.method.pool,
        answer_bits=config.method.answer_bits,
        embedding=_embedding_terms(config, domain),
    )


def _embedding_terms(config: FederatedConfig, domain: Domain) -> EmbeddingTerms | None:
    if config.privacy.embedding_noise_multiplier is None:
        return None
    settings = config.method.embedding
    return EmbeddingTerms(
        frequencies=settings.frequencies,
        length_scales=settings.length_scales,
        smoothing=settings.smoothing * domain.shape[1],
        size_share=settings.size_share,
        noise_multiplier=config.privacy.embedding_noise_multiplier / (2 * math.sqrt(enrolled(domain))),
    )


def answer_event(config: FederatedConfig, domain: Domain, noise_multiplier: float) -> Event:
    """All queries of a run, as the public sees them: each routed secretly over all enrolled clients."""
    return Event(
        noise_multiplier=noise_multiplier,
        sensitivity="2C",
        unit="client",
        sampling=RoutedSampling(subsets=enrolled(domain)),
        count=config.privacy.queries or 1,
        purpose=_PURPOSE,
    )


def embedding_event(config: FederatedConfig, domain: Domain) -> tuple[Event, ...]:
    """The sum of all clients' embeddings, as the public sees it: noise in as many parts as there are clients."""
    if config.privacy.embedding_noise_multiplier is None:
        return ()
    event = Event(
        noise_multiplier=config.privacy.embedding_noise_multiplier,
        sensitivity="C",
        unit="client",
        count=1,
        purpose=CLIENT_MEANS,
        noise_parts=enrolled(domain),
    )
    return (event,)


def rough_seconds(
    config: FederatedConfig, limits: ClientLimits, *, critic_steps_per_second: float, queries_per_second: float
) -> float:
    """A rough time of a simulation, from speeds seen at 28x28 and width 64."""
    critics = config.method.critics
    steps = limits.clients * (limits.rounds * critics.rounds + critics.warm_iterations)
    relative = ((critics.width or 64) / 64) ** 2
    return relative * steps / critic_steps_per_second + limits.rounds * limits.queries / queries_per_second + 10
