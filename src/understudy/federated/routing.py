"""Routing: which client is asked about which image, drawn secretly over all enrolled clients, and the limits on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from understudy.data.draws import Bits, uniform_integers
from understudy.privacy.certificate import ClientLimits

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Routed:
    """Who is asked about each query of a round; -1 where a limit was reached and nobody is.

    Privacy: secret. It is kept in memory and tells nobody but the asked client, which sees its own queries.
    """

    client_private: Numbers
    slot_private: Numbers  # the place of each query among those of its client

    def queries_of(self, client: int) -> Numbers:
        """The queries that one client is asked, in order."""
        return np.flatnonzero(self.client_private == client)


class RoutingDesk:
    """Draws the routing of each round and keeps the limits of every client.

    Privacy: each query goes to one of *all* enrolled clients, independently and uniformly, whether that client can be
    reached or not; it is never routed again. A query beyond a limit is asked of nobody. Counts are private: they leak
    the routing, so they stay in the private folder and the certificate states the limits instead.
    """

    def __init__(self, limits: ClientLimits, bits: Bits) -> None:
        self.limits, self._bits = limits, bits
        self.asked_private: Numbers = np.zeros(limits.clients, dtype=np.int64)

    def route(self) -> Routed:
        """The routing of one round."""
        drawn = uniform_integers(self.limits.queries, self.limits.clients, self._bits)
        allowed = np.minimum(self.limits.slots, self.limits.answers - self.asked_private)
        slot = _rank(drawn, self.limits.clients)
        chosen = np.where(slot < allowed[drawn], drawn, -1)
        self.asked_private += np.bincount(chosen[chosen >= 0], minlength=self.limits.clients)
        return Routed(chosen, slot)

    def state_dict(self) -> dict[str, object]:
        """What a resumed run must know; for the private folder."""
        return {"asked": [int(count) for count in self.asked_private]}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Take over the counts of an earlier process."""
        self.asked_private = np.array(state["asked"], dtype=np.int64)


def _rank(drawn: Numbers, clients: int) -> Numbers:
    """For each query, how many earlier queries of the round went to the same client."""
    order = np.argsort(drawn, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(drawn, minlength=clients))[:-1]])
    rank = np.empty(len(drawn), dtype=np.int64)
    rank[order] = np.arange(len(drawn)) - starts[drawn[order]]
    return rank
