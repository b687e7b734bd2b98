"""Routing: which client is asked about which image, drawn secretly over all enrolled clients, and the limits on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from understudy.data.sampling import Bits, uniform_integers
from understudy.errors import InputError
from understudy.files import write_text
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

    def __init__(self, limits: ClientLimits, bits: Bits, memory: Path | None = None) -> None:
        self.limits, self._bits, self._memory = limits, bits, memory
        self.asked_private: Numbers = np.zeros(limits.clients, dtype=np.int64)

    def route(self, number: int = 0) -> Routed:
        """The routing of one round; its counts are on disk, where there is a memory, before anybody is asked."""
        drawn = uniform_integers(self.limits.queries, self.limits.clients, self._bits)
        allowed = np.minimum(self.limits.slots, self.limits.answers - self.asked_private)
        slot = _rank(drawn, self.limits.clients)
        chosen = np.where(slot < allowed[drawn], drawn, -1)
        now = np.bincount(chosen[chosen >= 0], minlength=self.limits.clients)
        if self._memory is not None:
            kept = {"round": number, "before": self.asked_private.tolist(), "asked": now.tolist()}
            write_text(self._memory, json.dumps(kept), private=True)
        self.asked_private = self.asked_private + now
        return Routed(chosen, slot)

    def remember(self, next_round: int) -> None:
        """Take over the counts of an earlier process; ``next_round`` is the first one that the ledger does not hold.

        Privacy: a limit holds over all rounds that were ever asked, those that a crash lost included.
        """
        if self._memory is None or next_round == 0:
            return
        try:
            kept = json.loads(self._memory.read_text(encoding="utf-8"))
            before, now = (np.array(kept[name], dtype=np.int64) for name in ("before", "asked"))
            if before.shape != self.asked_private.shape or now.shape != before.shape:
                raise ValueError("it is of another federation")
            asked_since = int(kept["round"]) < next_round
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(
                f"routing: {self._memory} is gone or damaged, so it is not known how often each client was asked; "
                "start a new run"
            ) from None
        self.asked_private = before + now if asked_since else before


def _rank(drawn: Numbers, clients: int) -> Numbers:
    """For each query, how many earlier queries of the round went to the same client."""
    order = np.argsort(drawn, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(drawn, minlength=clients))[:-1]])
    rank = np.empty(len(drawn), dtype=np.int64)
    rank[order] = np.arange(len(drawn)) - starts[drawn[order]]
    return rank
