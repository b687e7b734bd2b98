"""Mechanism audits: play a method's probe many times, with and without a unit, and bound epsilon from the errors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from understudy.audit.bounds import Family, Numbers, correlation_of_neighbours, count_errors
from understudy.audit.games import Game
from understudy.audit.probes import Probe
from understudy.errors import CheckError, InputError
from understudy.privacy import accounting
from understudy.privacy.audits import AuditRecord
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event

CONFIDENCE = 0.9999
TRIALS = 100_000
_AT_ONCE = 2000
_HELD_OUT_SHARE = 0.2
_MOST_CORRELATION = 6.0  # deviations; independent trials exceed it with a chance of 2e-9
MADE_UP = "made up by the audit: the worst neighbours of the mechanism"

Listener = Callable[[str, int, int], None]


@dataclass(frozen=True)
class AuditOptions:
    """How much is played and how sure the bound must be; ``audits`` share the confidence between them."""

    trials: int = TRIALS  # with the unit, and as many without
    confidence: float = CONFIDENCE
    audits: int = 1
    listener: Listener | None = None

    def __post_init__(self) -> None:
        if self.trials < 100:
            raise InputError(f"trials: {self.trials}; an audit needs at least 100 to show anything")
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence: {self.confidence} does not lie in 0..1; pass for example 0.9999")

    @property
    def risk(self) -> float:
        """The chance that this one bound fails."""
        return (1 - self.confidence) / self.audits


def audit_mechanism(probe: Probe, budget: Budget, settings: AuditOptions) -> AuditRecord:
    """An empirical lower bound on the epsilon of a probe, beside its claim.

    Privacy: nothing private is read; the units are made up.
    """
    events = probe.events(budget)
    if len(events) != len(probe.games):
        raise InputError(
            f"audit: {probe.method} plans {len(events)} events, but its probe has {len(probe.games)} games"
        )
    title = f"{probe.method} ({probe.variant})"
    held_out = max(100, round(_HELD_OUT_SHARE * settings.trials))
    chosen_on = _play(probe.games, events, held_out, _shown(settings, title))
    family = Family(events, budget.delta)
    threshold = family.choose_threshold(*chosen_on, settings.risk)
    without, with_unit = _play(probe.games, events, settings.trials, _shown(settings, title))
    errors = count_errors(without, with_unit, threshold, settings.risk)
    return AuditRecord(
        kind="mechanism",
        access="white-box",
        method=probe.method,
        viewer=probe.viewer,
        events=events,
        delta=budget.delta,
        claimed=accounting.certified_epsilon(events, budget.delta),
        epsilon_lower=family.lower_epsilon(errors),
        confidence=settings.confidence,
        corrected_for=settings.audits,
        trials=2 * settings.trials,
        held_out=2 * held_out,
        threshold=threshold,
        wrong=errors.wrong,
        data=MADE_UP,
        declared_public=True,
        code_sha256=code_sha256(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        attack=f"likelihood ratio of worst-case neighbours, {probe.variant}",
    )


def _shown(settings: AuditOptions, title: str) -> Callable[[int, int], None]:
    listener = settings.listener
    return (lambda done, all_of_them: None) if listener is None else (lambda done, most: listener(title, done, most))


def _play(
    games: Sequence[Game], events: Sequence[Event], trials: int, listener: Callable[[int, int], None]
) -> tuple[Numbers, Numbers]:
    """Statistics of so many trials without the unit, and of as many with it; in turn, so that noise would show."""
    without, with_unit = [], []
    for start in range(0, 2 * trials, _AT_ONCE):
        included = np.arange(min(_AT_ONCE, 2 * trials - start)) % 2 == 1
        played = [game.play(event, included) for game, event in zip(games, events, strict=True)]
        statistics = np.sum(played, axis=0)
        without.append(statistics[~included])
        with_unit.append(statistics[included])
        listener(min(start + _AT_ONCE, 2 * trials), 2 * trials)
    found = np.concatenate(without), np.concatenate(with_unit)
    for values in found:
        _check_independent(values)
    return found


def _check_independent(values: Numbers) -> None:
    if abs(correlation_of_neighbours(values)) > _MOST_CORRELATION:
        raise CheckError(
            "audit: trials that should be independent are not, so the mechanism shares its noise between rows or "
            "units; nothing was bounded, and nothing that it makes should be released"
        )


def code_sha256() -> str:
    """A digest of the source of this package: which code was audited."""
    digest, root = hashlib.sha256(), Path(__file__).parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\n" + path.read_bytes() + b"\n")
    return digest.hexdigest()
