"""``auto``: which method, with which settings, for facts that are public already; the data are never looked at.

What is known was measured on public data sets and lies beside this file (``choices.json``, which
``benchmarks/choices.py`` writes). The rule that leads from facts to a choice:

1. The *signal* of a task is epsilon times the declared units per class: noise against what a class has in common.
2. Only runs with about as much signal count (within a factor of 3), on images of about the same size; where there are
   none, those on images of the other size; where there are none of these either, the nearest, and it is said so.
3. A run is worth what it recovers: the share of the way from guessing to a classifier trained on real images. On each
   data set a candidate falls short of the best one there; the smallest shortfall on average is chosen.
4. Candidates that take longer than one is ready to wait, or whose plan is refused (a batch larger than the declared
   units, a teacher without labels, people whom a method cannot protect), are left out. One that is as good as the
   best, to a hundredth, and takes less than half the time is taken instead.

``auto`` is no method and in no registry: a run and its certificate name what was chosen.

Privacy: nothing here takes a record. What is chosen follows from the declared domain, the budget, the device and the
time, so it says nothing that is not public.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from understudy.configs import SMALL_IMAGE
from understudy.data import idx
from understudy.data.catalog import is_known
from understudy.data.domain import Domain
from understudy.data.sources import DataOptions, existing, parse_declarations
from understudy.data.store import is_store
from understudy.errors import BudgetError, InputError
from understudy.methods.base import configure
from understudy.methods.config import overlay
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.plan import Plan, remarked

AUTO = "auto"
PATIENCE = 1800.0  # seconds that a run may take where nobody says how long
USUAL_SHAPE = "1x28x28"  # what pictures are brought to where nobody says: most was measured on it
_TABLE = Path(__file__).with_name("choices.json")
_NEAR = 3.0  # a factor
_AS_GOOD = 0.01  # of what real images give: two runs of one candidate differ by as much
_FAR_QUICKER = 0.5  # of the time of the best


@dataclass(frozen=True)
class Candidate:
    """A method with a preset and settings, as it was measured."""

    name: str
    method: str
    preset: str | None
    config: Mapping[str, Any]

    @property
    def shares(self) -> dict[str, float]:
        """The parts of epsilon that are not the method's own, by what they pay for; those that are set."""
        given = {part: self._share(part) for part in ("embedding", "teacher")}
        return {part: share for part, share in given.items() if share}

    def _share(self, part: str) -> float | None:
        below = get_method(self.method).presets[self.preset] if self.preset else {}
        share: float | None = overlay(below, self.config).get("privacy", {}).get(f"{part}_share")
        return share


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

    @property
    def signal(self) -> float:
        """Epsilon times units per class."""
        return self.epsilon * self.records / self.classes

    @property
    def recovered(self) -> float:
        """The share of the way from guessing to real images."""
        return (self.accuracy - self.chance) / (self.real - self.chance)


@dataclass(frozen=True)
class Considered:
    """A candidate for a task: what it would give and cost, or why it is left out."""

    candidate: Candidate
    runs: tuple[Measured, ...]  # that count for the task
    shortfall: float  # behind the best on the same data sets, on average
    plan: Plan | None = None
    seconds: float | None = None  # on the device in question
    left_out: str | None = None

    @property
    def recovered(self) -> tuple[float, float]:
        """The least and the most of what its runs recovered."""
        shares = [run.recovered for run in self.runs]
        return min(shares), max(shares)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        low, high = self.recovered
        return {
            "candidate": self.candidate.name,
            "method": self.candidate.method,
            "preset": self.candidate.preset,
            "config": dict(self.candidate.config),
            "recovered": [low, high],
            "shortfall": self.shortfall,
            "measured_runs": len(self.runs),
            "seconds": self.seconds,
            "memory_bytes": None if self.plan is None else self.plan.memory_bytes,
            "left_out": self.left_out,
        }


@dataclass(frozen=True)
class Choice:
    """What ``auto`` chose for a task, and all that it considered, the best first."""

    chosen: Considered
    considered: tuple[Considered, ...]
    signal: float
    near: bool  # whether anything was measured with about as much signal
    on_cpu: bool

    @property
    def method(self) -> str:
        """The name of the method; also the name that run and certificate carry."""
        return self.chosen.candidate.method

    @property
    def preset(self) -> str | None:
        """Its preset, if any."""
        return self.chosen.candidate.preset

    @property
    def config(self) -> Mapping[str, Any]:
        """What is laid over the preset."""
        return self.chosen.candidate.config

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        assert self.chosen.plan is not None
        return self.chosen.plan

    @property
    def seconds(self) -> float:
        """How long it will take, roughly."""
        assert self.chosen.seconds is not None
        return self.chosen.seconds


@dataclass(frozen=True)
class Knowledge:
    """The table: candidates, and what they reached."""

    candidates: Mapping[str, Candidate] = field(default_factory=dict)
    runs: tuple[Measured, ...] = ()

    def near(self, signal: float, pixels: int) -> tuple[tuple[Measured, ...], bool]:
        """The runs that count for a task, and whether they have about as much signal as it."""
        same_size = [run for run in self.runs if (run.pixels <= SMALL_IMAGE) == (pixels <= SMALL_IMAGE)]
        for runs in (same_size, list(self.runs)):
            close = tuple(run for run in runs if _apart(run.signal, signal) <= math.log(_NEAR) + 1e-9)
            if close:
                return close, True
        nearest = min(_apart(run.signal, signal) for run in same_size or self.runs)
        return tuple(run for run in same_size or self.runs if _apart(run.signal, signal) <= nearest + 1e-9), False


def _apart(one: float, other: float) -> float:
    return abs(math.log(one / other))


def read_knowledge(path: Path = _TABLE) -> Knowledge:
    """What was measured."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    candidates = {name: Candidate(name, **values) for name, values in raw["candidates"].items()}
    return Knowledge(candidates, tuple(Measured(**row) for row in raw["runs"]))


def choose(
    domain: Domain,
    budget: Budget,
    device: str = "auto",
    time: float | None = None,
    compare: bool = False,
    knowledge: Knowledge | None = None,
) -> Choice:
    """The method and settings for a task by public facts alone; ``time``: seconds that one is ready to wait.

    ``compare``: plan every candidate, not only as many as the choice needs. ``knowledge`` is the package's own table
    unless it is given.

    Privacy: see the module; no record is an argument.
    """
    budget, patience = budget.settled(domain.nominal_units), PATIENCE if time is None else time
    on_cpu = _on_cpu(device)
    signal = budget.epsilon * domain.nominal_units / (domain.classes or 1)
    known = knowledge or read_knowledge()
    runs, near = known.near(signal, domain.values)
    shortfalls = _shortfalls(runs)
    considered, enough = list[Considered](), math.inf
    for name in sorted(shortfalls, key=lambda each: (shortfalls[each], each)):
        own = tuple(run for run in runs if run.candidate == name)
        next_one = Considered(known.candidates[name], own, shortfalls[name], left_out="behind the one that was chosen")
        if compare or next_one.shortfall <= enough:
            next_one = _planned(next_one, domain, budget, device, on_cpu, patience)
        if next_one.left_out is None:
            enough = min(enough, next_one.shortfall + _AS_GOOD)
        considered.append(next_one)
    fitting = [each for each in considered if each.left_out is None]
    if not fitting:
        raise _nothing_fits(considered, time)
    best = fitting[0]
    as_good = [each for each in fitting if each.shortfall <= best.shortfall + _AS_GOOD]
    quickest = min(as_good, key=lambda each: each.seconds or 0.0)
    chosen = quickest if (quickest.seconds or 0.0) < _FAR_QUICKER * (best.seconds or 0.0) else best
    return Choice(chosen, tuple(considered), signal, near, on_cpu)


class Wishes(Protocol):
    """What is wished of a run, as ``TrainOptions`` hold it."""

    @property
    def config(self) -> Mapping[str, Any] | None:
        """Settings."""

    @property
    def preset(self) -> str | None:
        """The name of some."""

    @property
    def time(self) -> float | None:
        """Seconds that one is ready to wait."""

    @property
    def chosen(self) -> Callable[[Choice], None] | None:
        """Hears what was chosen."""


def settled(
    name: str, domain: Domain, budget: Budget | None, wishes: Wishes
) -> tuple[str, Mapping[str, Any], str | None]:
    """Method, config and preset of a run that is about to begin: those that were named, or those that are chosen.

    Privacy: as ``choose``.
    """
    config = wishes.config or {}
    if name != AUTO:
        refuse_time(name, wishes.time)
        return name, config, wishes.preset
    refuse_settings(config, wishes.preset)
    choice = choose(domain, stated(budget), config.get("runtime", {}).get("device", "auto"), wishes.time)
    if wishes.chosen is not None:
        wishes.chosen(choice)
    return choice.method, overlay(choice.config, config), choice.preset


def stated(budget: Budget | None) -> Budget:
    """The budget, without which there is nothing to choose by."""
    if budget is None:
        raise InputError("budget: --epsilon is needed to choose a method; pass for example --epsilon 3")
    return budget


def refuse_settings(config: Mapping[str, Any], preset: str | None) -> None:
    """Settings of a method that is not chosen yet: they might mean nothing to it."""
    given = "preset" if preset is not None else next((group for group in config if group != "runtime"), None)
    if given is not None:
        raise InputError(f"{given}: auto chooses preset and settings too; name a method to set them yourself")


def refuse_time(name: str, time: object) -> None:
    """A time where there is nothing to choose."""
    if time is not None:
        raise InputError(f"time: {name} takes as long as it takes; leave --time out, or the method, to have one chosen")


def usual_shape(source: DataOptions) -> DataOptions:
    """The same data with pictures brought to the shape that most was measured on, where nobody says another.

    Arrays and data sets that are known by name keep theirs. What kind of file a source is decides, and no record of it.
    """
    declared = parse_declarations(source.declared)
    if source.shape is not None or "size" in declared or "channels" in declared or is_known(source.source):
        return source
    path = existing(source.source)
    arrays = idx.mnist_files(path, "train") if path.is_dir() else path.suffix == ".npz" or idx.looks_like_idx(path)
    return source if arrays or is_store(path) else replace(source, shape=USUAL_SHAPE)


def _on_cpu(device: str) -> bool:
    if device == "cpu":
        return True
    from understudy.devices import choose_device

    return choose_device(device).type == "cpu"


def _shortfalls(runs: Sequence[Measured]) -> dict[str, float]:
    """By candidate: how far it is behind the best on the same data sets, on average."""
    reached: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        reached.setdefault(run.dataset, {}).setdefault(run.candidate, []).append(run.recovered)
    behind: dict[str, list[float]] = {}
    for by_candidate in reached.values():
        means = {name: sum(shares) / len(shares) for name, shares in by_candidate.items()}
        for name, mean in means.items():
            behind.setdefault(name, []).append(max(means.values()) - mean)
    return {name: sum(gaps) / len(gaps) for name, gaps in behind.items()}


def _planned(
    considered: Considered, domain: Domain, budget: Budget, device: str, on_cpu: bool, patience: float
) -> Considered:
    """With its plan and its time, or with the reason why it is left out."""
    candidate, method = considered.candidate, get_method(considered.candidate.method)
    facts = (considered.candidate, considered.runs, considered.shortfall)
    try:
        config = configure(method, overlay(candidate.config, {"runtime": {"device": device}}), candidate.preset)
        plan = remarked(method.plan(config, domain, budget))
    except (InputError, BudgetError) as error:
        return Considered(*facts, left_out=str(error))
    seconds = plan.seconds if on_cpu else plan.seconds_on_gpu
    if plan.epsilon > budget.epsilon:
        return Considered(*facts, plan, seconds, f"costs epsilon {plan.epsilon:g}")
    return Considered(*facts, plan, seconds, "takes too long" if seconds > patience else None)


def _nothing_fits(considered: Sequence[Considered], time: float | None) -> InputError:
    """One sentence: what takes least, or why every plan is refused."""
    slow = [each for each in considered if each.plan is not None and each.left_out == "takes too long"]
    if slow:
        least = min(slow, key=lambda each: each.seconds or 0.0)
        waited = PATIENCE if time is None else time
        return InputError(
            f"time: no candidate takes less than {waited:,.0f} seconds here; the quickest, {least.candidate.name}, "
            f"takes about {least.seconds:,.0f}, so pass --time {math.ceil((least.seconds or 0.0) / 60)}m or more"
        )
    return InputError(f"auto: no candidate can be planned, so name a method; {considered[0].left_out}")
