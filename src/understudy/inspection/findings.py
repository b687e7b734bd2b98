"""Findings: what an inspection says, each with its statistic, its margin and its false-alarm rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from understudy.inspection.bounds import FALSE_ALARM_RATE

Kind = Literal["orientation", "intensity", "class", "balance", "unknown", "variety"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in words and in figures.

    ``estimate`` is the best guess of the statistic and ``bound`` what it is at least (or at most), with the stated
    false-alarm rate; the finding was made because the bound lies beyond ``margin``.
    """

    kind: Kind
    name: str
    sentence: str
    statistic: str
    estimate: float
    bound: float
    margin: float
    classes: tuple[str, ...] = ()  # empty: all of them
    false_alarm_rate: float = FALSE_ALARM_RATE

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "kind": self.kind,
            "name": self.name,
            "sentence": self.sentence,
            "statistic": self.statistic,
            "estimate": round(self.estimate, 4),
            "bound": round(self.bound, 4),
            "margin": self.margin,
            "classes": list(self.classes),
            "false_alarm_rate": self.false_alarm_rate,
        }


def percent(share: float) -> str:
    """A share in words, without more digits than it deserves."""
    return f"{100 * share:.0f} %"


def listed(names: tuple[str, ...] | list[str], most: int = 6) -> str:
    """Names of classes in a sentence."""
    shown = list(names[:most]) + ([f"{len(names) - most} more"] if len(names) > most else [])
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]
