"""Who is promised what in a federation: enrolled clients, parts of delta, and a claim for each viewer (no torch)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from understudy.data.domain import Domain
from understudy.errors import BudgetError, InputError
from understudy.privacy import accounting, viewers
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import ClientLimits, Guarantee
from understudy.privacy.events import Event

_LIMITS_SHARE = 0.01  # of delta, for limits that are decided here
_LARGEST_DELTA = 0.01  # delta times the number of clients, above which a remark warns


def enrolled(domain: Domain) -> int:
    """The declared, public number of enrolled clients."""
    if domain.nominal_clients is None:
        raise InputError(
            "clients: the data have none; load them with clients=true and declare nominal_clients, or deal them out "
            "with --clients N"
        )
    return domain.nominal_clients


def decided_limits(limits: ClientLimits, slots: int | None, answers: int | None, budget: Budget) -> ClientLimits:
    """The limits with slots and answers as given, or as small as a hundredth of delta allows."""
    chance = _LIMITS_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700))) / 2
    total, each = limits.rounds * limits.queries, limits.rounds * limits.clients
    slots = slots or viewers.smallest_limit(limits.queries, limits.clients, chance / each)
    answers = answers or viewers.smallest_limit(total, limits.clients, chance / limits.clients)
    return limits.model_copy(update={"slots": min(slots, limits.queries), "answers": min(answers, total)})


def accounted_delta(limits: ClientLimits, budget: Budget) -> float:
    """What the limits leave of delta for the accountants, at the largest epsilon that may be claimed."""
    left = budget.delta - viewers.limits_delta(limits, budget.epsilon)
    if left < budget.delta / 2:
        raise BudgetError(
            f"limits: {limits.slots} slots and {limits.answers} answers per client cut off answers too often for delta "
            f"{budget.delta:g}; raise privacy.slots and privacy.answers_per_client, or leave them out"
        )
    return left


def claims_by_viewer(events: Sequence[Event], limits: ClientLimits, budget: Budget, coalition: int) -> list[Guarantee]:
    """What holds against the public, against the server and against colluding clients; the headline first."""
    public = _limited_claim(events, limits, budget, "public", None)
    server = _server_claim(events, limits, budget.delta)
    colluding = _limited_claim(events, limits, budget, "client", coalition) if coalition < limits.clients else None
    return [claim for claim in (public, server, colluding) if claim is not None]


def _limited_claim(
    events: Sequence[Event], limits: ClientLimits, budget: Budget, viewer: str, coalition: int | None
) -> Guarantee | None:
    """A claim whose delta pays for the limits too; None where they cost more than delta."""
    fields: dict[str, Any] = {
        "unit": "client", "viewer": viewer, "adjacency": "add-remove", "delta": budget.delta,
        "limits": limits, "coalition": coalition,
    }  # fmt: skip
    seen = viewers.events_seen(events, Guarantee.model_validate({**fields, "epsilon": 0.0}))
    guess = budget.epsilon
    while (part := viewers.limits_delta(limits, guess)) < budget.delta / 2:
        epsilon = accounting.certified_epsilon(seen, budget.delta - part)
        if epsilon <= guess:
            parts = {"accountant": budget.delta - part, viewers.LIMITS_PART: part}
            return Guarantee.model_validate({**fields, "epsilon": epsilon, "delta_parts": parts})
        guess = epsilon * 1.01 + 0.01
    return None


def _server_claim(events: Sequence[Event], limits: ClientLimits, delta: float) -> Guarantee | None:
    """Every client refuses past its limit, so no part of delta is needed; None where epsilon says nothing any more."""
    fields = {"unit": "client", "viewer": "server", "adjacency": "replace-one", "delta": delta, "limits": limits}
    seen = viewers.events_seen(events, Guarantee.model_validate({**fields, "epsilon": 0.0}))
    epsilon = accounting.certified_epsilon(seen, delta)
    if not math.isfinite(epsilon):
        return None
    return Guarantee.model_validate({**fields, "epsilon": epsilon, "delta_parts": {"accountant": delta}})


def delta_remarks(delta: float, clients: int) -> tuple[str, ...]:
    """A warning where delta is so large that some client may well be exposed outright."""
    if delta * clients <= _LARGEST_DELTA:
        return ()
    return (
        f"delta: {delta:g} times {clients} clients is more than {_LARGEST_DELTA:g}; choose a smaller delta, since "
        "delta may mean that a client is exposed outright",
    )
