"""What several runs on the same data have spent together: their events composed, at one delta."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from understudy.errors import UnderstudyError
from understudy.files import read_object
from understudy.privacy import accounting
from understudy.privacy.certificate import Certificate, read_certificate
from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger
from understudy.release.folders import CERTIFICATE
from understudy.runs.folder import RunFolder


@dataclass(frozen=True)
class Total:
    """What several runs on the same data have spent together; None where it is beyond the accountants."""

    data: str
    runs: int
    epsilon: float | None
    delta: float

    def in_words(self) -> str:
        """The sentence that goes with every curve."""
        if self.runs == 1:
            return f"One run on {self.data}; what it spent is in its certificate."
        if self.delta >= 1:
            return f"{self.runs} runs on {self.data}, some without any guarantee, so all of them together have none."
        price = "more than the accountants can tell" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        return (
            f"{self.runs} runs on {self.data}: together they spend {price} at delta {self.delta:g}, because runs on "
            "the same data add up. Choosing the best point looks at all of them."
        )


def total_spending(folders: Sequence[Path]) -> tuple[Total, ...]:
    """What the runs have spent together, for each data set; runs that broke down count as well."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for folder in folders:
        run = read_object(RunFolder(folder).description, "run")
        groups.setdefault((str(run.get("data")), json.dumps(run.get("domain"), sort_keys=True)), []).append(folder)
    return tuple(_total(data, runs) for (data, _), runs in groups.items())


def _total(data: str, folders: Sequence[Path]) -> Total:
    """Compose all events of all runs at the largest delta; parts of delta that no event shows are added up."""
    events: list[Event] = []
    deltas, reserved, plain = [0.0], 0.0, True
    for folder in folders:
        certificate = _certificate(folder)
        if certificate is not None and not certificate.guarantees:
            return Total(data, len(folders), None, 1.0)
        events += Ledger.open(RunFolder(folder).ledger).events()
        if certificate is None:
            run = read_object(RunFolder(folder).description, "run")
            deltas.append(float((run.get("budget") or {}).get("delta", 1.0)))
            continue
        headline = certificate.headline
        deltas.append(headline.accounted_delta)
        reserved += headline.delta - headline.accounted_delta
        plain = plain and (headline.adjacency, headline.viewer) == ("add-remove", "public")
    delta = max(deltas)
    plain = plain and len({event.unit for event in events}) <= 1
    try:
        epsilon = accounting.certified_epsilon(events, delta) if plain else math.inf
    except (UnderstudyError, ValueError, ArithmeticError, MemoryError):
        epsilon = math.inf
    return Total(data, len(folders), epsilon if math.isfinite(epsilon) else None, delta + reserved)


def _certificate(folder: Path) -> Certificate | None:
    path = RunFolder(folder).release / CERTIFICATE
    return read_certificate(path) if path.is_file() else None
