"""Who sees what of a federation, and what the events are for them: the public, the server, and colluding clients.

The ledger of a federated run holds two kinds of events. One is a query routed secretly over all enrolled clients. That
is what the public sees. A server knows whom it asks, so for it a client's answers are plain Gaussians, at most as many
as the client gives. Clients that collude know which queries came to themselves, so for them the rest was routed over
the others. The other is a sum over all clients, to which each added a part of the noise: the public sees the sum, the
server each part with its own noise alone, and colluding clients know their own parts. Proofs: docs/federated.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from understudy.errors import InputError
from understudy.privacy.certificate import ClientLimits, Guarantee
from understudy.privacy.events import Event, NoSampling, RoutedSampling

LIMITS_PART = "limits"
"""The part of delta that pays for the chance that a limit cuts off an answer."""

_MOST_TRIALS = 2**53  # beyond, a float is no longer the number of trials


class Viewer(NamedTuple):
    """Against whom a guarantee holds, as a method says before any run: who looks, at which neighbours, how many."""

    viewer: str = "public"
    adjacency: str = "add-remove"
    coalition: int | None = None

    def __str__(self) -> str:
        """In words."""
        united = f" ({self.coalition} of them united)" if self.coalition else ""
        return f"{self.viewer}{united}, {self.adjacency}"


def viewer_of(guarantee: Guarantee) -> Viewer:
    """Whom a guarantee speaks of."""
    return Viewer(guarantee.viewer, guarantee.adjacency, guarantee.coalition)


def events_seen(events: Sequence[Event], guarantee: Guarantee) -> tuple[Event, ...]:
    """The events as the viewer of a guarantee must count them; InputError where no proof covers the claim."""
    if guarantee.viewer == "public":
        return tuple(events)
    if guarantee.viewer == "server":
        return tuple(_seen_by_server(event, guarantee) for event in events)
    return tuple(_seen_by_clients(event, guarantee) for event in events)


def _seen_by_server(event: Event, guarantee: Guarantee) -> Event:
    """All answers of one client, unsampled; replacing its data moves each of them by at most 2C."""
    if guarantee.adjacency != "replace-one":
        raise InputError("a server sees who takes part, so only replace-one can be claimed")
    if event.noise_parts is not None:
        own = event.noise_multiplier / (2 * math.sqrt(_parts(event, guarantee)))
        return _with(event, NoSampling(), event.count, noise_multiplier=own, sensitivity="2C", noise_parts=None)
    if event.sensitivity != "2C":
        raise InputError("the events are not sanitized before the server sees them (sensitivity 2C)")
    if event.sampling.kind == "none":
        return event
    if event.sampling.kind != "routed" or guarantee.limits is None:
        raise InputError("a server knows whom it asks, and no limit of answers per client is stated")
    return _with(event, NoSampling(), guarantee.limits.answers)


def _seen_by_clients(event: Event, guarantee: Guarantee) -> Event:
    if event.sampling.kind == "none" and event.sensitivity == "2C":
        return event
    if event.noise_parts is not None and guarantee.coalition is not None and guarantee.adjacency == "add-remove":
        parts = _parts(event, guarantee)
        left = _others(parts, guarantee.coalition)
        return _with(
            event, NoSampling(), event.count, noise_multiplier=event.noise_multiplier * math.sqrt(left / parts)
        )
    if event.sampling.kind != "routed" or guarantee.coalition is None:
        raise InputError("the size of the coalition and routed events are needed")
    if guarantee.adjacency != "add-remove":
        raise InputError("routed events are accounted for add-remove only")
    others = _others(event.sampling.subsets, guarantee.coalition)
    return _with(event, RoutedSampling(subsets=others), event.count)


def _others(clients: int, coalition: int) -> int:
    if clients <= coalition:
        raise InputError(f"a coalition of {coalition} leaves none of {clients} clients")
    return clients - coalition


def _parts(event: Event, guarantee: Guarantee) -> int:
    """In how many parts the noise was added: one for each enrolled client."""
    parts = event.noise_parts or 1
    if guarantee.limits is not None and guarantee.limits.clients != parts:
        raise InputError(f"the noise has {parts} parts, but {guarantee.limits.clients} clients are enrolled")
    return parts


def _with(event: Event, sampling: NoSampling | RoutedSampling, count: int, **changes: object) -> Event:
    fields = event.model_dump() | {"sampling": sampling.model_dump(), "count": count, "planned": None, "executed": None}
    try:
        return Event.model_validate(fields | changes)
    except ValidationError as error:
        raise InputError(f"what the viewer sees of an event is none ({error.errors()[0]['msg']})") from None


def limits_delta(limits: ClientLimits, epsilon: float) -> float:
    """What the limits cost of delta: (1 + e^epsilon) times the chance that any of them ever cuts off an answer.

    Privacy: with and without the limits the run is the same unless one is reached, and whether one is reached depends
    on the secret routing alone. So both laws of a neighbouring pair move by at most that chance (in total variation).
    """
    chance = limit_chance(limits)
    if chance == 0:
        return 0.0
    return (1 + math.exp(epsilon)) * chance if epsilon < 700 else math.inf


def limit_chance(limits: ClientLimits) -> float:
    """At most the chance that some client has more than ``slots`` queries in a round or ``answers`` in all."""
    in_a_round = limits.rounds * limits.clients * binomial_tail(limits.queries, limits.clients, limits.slots)
    in_all = limits.clients * binomial_tail(limits.rounds * limits.queries, limits.clients, limits.answers)
    return min(1.0, in_a_round + in_all)


def binomial_tail(trials: int, clients: int, most: int) -> float:
    """P[Binomial(trials, 1/clients) > most], rounded up a little."""
    if most >= trials:
        return 0.0
    if trials > _MOST_TRIALS:
        raise InputError(f"limits: {trials} queries are more than can be accounted; at most {_MOST_TRIALS} are")
    from scipy.stats import binom

    return min(1.0, float(binom.sf(most, trials, 1 / clients)) * (1 + 1e-9) + 1e-300)


def smallest_limit(trials: int, clients: int, chance: float) -> int:
    """The smallest ``most`` with ``binomial_tail(trials, clients, most) <= chance``."""
    low, high = trials // clients, trials
    if binomial_tail(trials, clients, low) <= chance:
        return max(1, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if binomial_tail(trials, clients, middle) <= chance else (middle, high)
    return high
