"""What ``auto`` knows: candidates, and what they reached on public data sets; the rule is in ``choice.py``.

The table lies beside this file (``choices.json``); ``benchmarks/choices.py`` writes it from what was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from understudy.configs import SMALL_IMAGE
from understudy.methods.config import overlay
from understudy.methods.registry import get_method

_TABLE = Path(__file__).with_name("choices.json")
_NEAR = 4.0  # a factor
_COLOUR = "gpu-colour"  # the preset that methods have for it
_SMALL_EPSILON = "-eps1"  # how the name of a preset ends that is for small epsilons


@dataclass(frozen=True)
class Candidate:
    """A method with a preset and settings, as it was measured, or as it ``stands_for`` one that was."""

    name: str
    method: str
    preset: str | None
    config: Mapping[str, Any]
    stands_for: str | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The parts of epsilon that are not the method's own, by what they pay for; those that are set."""
        given = {part: self._share(part) for part in ("embedding", "teacher")}
        return {part: share for part, share in given.items() if share}

    @property
    def steps(self) -> int | None:
        """Its private steps, where they are set."""
        steps: int | None = self._privacy().get("steps")
        return steps

    def with_steps(self, steps: int) -> Candidate:
        """The same with fewer of them, or more."""
        return replace(self, config=overlay(self.config, {"privacy": {"steps": steps}}))

    def in_colour(self) -> Candidate | None:
        """The preset of its method for images in colour, with the same teacher; None where there is none."""
        known, small = get_method(self.method).presets, (self.preset or "").endswith(_SMALL_EPSILON)
        preset = f"{_COLOUR}{_SMALL_EPSILON}" if small and f"{_COLOUR}{_SMALL_EPSILON}" in known else _COLOUR
        if preset not in known or self.preset == preset:
            return None
        share = self.shares.get("teacher")
        name = f"{self.method} {preset}" + (f", teacher {share:g}" if share else "")
        return Candidate(
            name, self.method, preset, {"privacy": {"teacher_share": share}} if share else {}, stands_for=self.name
        )

    def _share(self, part: str) -> float | None:
        share: float | None = self._privacy().get(f"{part}_share")
        return share

    def _privacy(self) -> Mapping[str, Any]:
        below = get_method(self.method).presets[self.preset] if self.preset else {}
        settings: Mapping[str, Any] = overlay(below, self.config).get("privacy", {})
        return settings


@dataclass(frozen=True)
class Measured:
    """One run on a public data set."""

    candidate: str
    dataset: str
    device: str
    records: int
    classes: int
    pixels: int
    epsilon: float
    accuracy: float  # of a CNN that was trained on generated images alone, on real test images
    chance: float
    real: float  # of the same CNN, trained on all real images
    seconds: float
    channels: int = 1

    @property
    def on_card(self) -> bool:
        """Whether a graphics card was used."""
        return "CPU" not in self.device.upper()

    @property
    def signal(self) -> float:
        """Epsilon times units per class."""
        return self.epsilon * self.records / self.classes

    @property
    def recovered(self) -> float:
        """The share of the way from guessing to real images."""
        return (self.accuracy - self.chance) / (self.real - self.chance)


@dataclass(frozen=True)
class Knowledge:
    """The table: candidates, and what they reached."""

    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    runs: tuple[Measured, ...] = ()

    def circles(self, signal: float, pixels: int, on_card: bool) -> Iterator[tuple[tuple[Measured, ...], bool]]:
        """The runs that count for a task, and whether they have about as much signal as it; then all of them.

        Where a graphics card is used and none was in runs that are near, all count at once: what a processor has time
        for says little of it.
        """
        same_size = [run for run in self.runs if (run.pixels <= SMALL_IMAGE) == (pixels <= SMALL_IMAGE)]
        for runs in (same_size, list(self.runs)):
            close = tuple(run for run in runs if _apart(run.signal, signal) <= math.log(_NEAR) + 1e-9)
            if close:
                if _tells(close, runs, on_card):
                    yield close, True
                break
        else:
            close = nearest(same_size or self.runs, signal)
            if _tells(close, same_size or self.runs, on_card):
                yield close, False
        yield tuple(same_size or self.runs), False


def _tells(close: Sequence[Measured], runs: Sequence[Measured], on_card: bool) -> bool:
    """Whether near runs are of the kind of device in use, as far as any are."""
    return not on_card or any(run.on_card for run in close) or not any(run.on_card for run in runs)


def nearest(runs: Sequence[Measured], signal: float) -> tuple[Measured, ...]:
    """Those whose signal is least apart from this one."""
    least = min(_apart(run.signal, signal) for run in runs)
    return tuple(run for run in runs if _apart(run.signal, signal) <= least + 1e-9)


def _apart(one: float, other: float) -> float:
    return abs(math.log(one / other))


def read_knowledge(path: Path = _TABLE) -> Knowledge:
    """What was measured."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    candidates = {name: Candidate(name, **values) for name, values in raw["candidates"].items()}
    return Knowledge(candidates, tuple(Measured(**row) for row in raw["runs"]))


def shortfalls(runs: Sequence[Measured]) -> dict[str, float]:
    """By candidate: how much less it is worth than the best one.

    What a run recovered = what the candidate is worth + what the data set allows + what more signal gives. Where the
    runs do not say how to tell these apart, the smallest numbers that fit are taken.
    """
    names, sets = (sorted({getattr(run, of) for run in runs}) for of in ("candidate", "dataset"))
    rows = np.zeros((len(runs), len(names) + len(sets) + 1))
    for row, run in zip(rows, runs, strict=True):
        row[names.index(run.candidate)] = row[len(names) + sets.index(run.dataset)] = 1.0
        row[-1] = math.log(run.signal)
    rows[:, -1] -= rows[:, -1].mean()
    worth = np.linalg.lstsq(rows, np.array([run.recovered for run in runs]), rcond=None)[0][: len(names)]
    return dict(zip(names, (worth.max() - worth).round(6).tolist(), strict=True))
