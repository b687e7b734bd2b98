"""``auto``: which method, with which settings, for facts that are public already; the data are never looked at.

What is known was measured on public data sets (``knowledge.py``). The rule that leads from facts to a choice:

1. The *signal* of a task is epsilon times the declared units per class: noise against what a class has in common.
2. Only runs with about as much signal count (within a factor of 4), on images of about the same size; where there are
   none, those on images of the other size; where there are none of these either, the nearest, and it is said so. Where
   nothing of them fits the time, or none was made on a graphics card and there is one, all count, and it is said too.
3. A run is worth what it recovers: the share of the way from guessing to a classifier trained on real images. Least
   squares take it apart into what the candidate is worth, what the data set allows and what more signal gives, so that
   candidates are compared that were not all tried on the same. The one that is worth most is chosen.
4. Candidates that take longer than one is ready to wait, that the card has no room for, or whose plan is refused (a
   batch larger than the declared units, a teacher without labels, people whom a method cannot protect), are left out.
   One that is as good as the best, to a hundredth, and takes less than half the time is taken instead.
5. In colour on a graphics card, what was measured on one stands also for the preset of its method that is made for
   colour, with as many of its steps as the time allows. Nothing in the table is in colour, and it is said so.

``auto`` is no method and in no registry: a run and its certificate name what was chosen.

Privacy: nothing here takes a record. What is chosen follows from the declared domain, the budget, the device and the
time, so it says nothing that is not public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from understudy.data import idx
from understudy.data.catalog import is_known
from understudy.data.domain import Domain
from understudy.data.sources import DataOptions, existing, parse_declarations
from understudy.data.store import is_store
from understudy.errors import BudgetError, InputError
from understudy.methods.base import configure
from understudy.methods.config import overlay
from understudy.methods.knowledge import Candidate, Knowledge, Measured, nearest, read_knowledge, shortfalls
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget
from understudy.privacy.plan import Plan, remarked

AUTO = "auto"
PATIENCE = 1800.0  # seconds that a run may take where nobody says how long
# What pictures are brought to where nobody says. Most was measured in grey, but a colour may tell classes apart, and in
# colour a private teacher sees what it does not see in grey.
_USUAL_SHAPE = "3x32x32"
_AS_GOOD = 0.01  # of what real images give: two runs of one candidate differ by as much
_FAR_QUICKER = 0.5  # of the time of the best
_FEWEST_STEPS = 0.25  # of those of a preset, down to which they may be cut
_MARGIN = 0.9  # of the time one is ready to wait, which steps are cut to


@dataclass(frozen=True)
class Considered:
    """A candidate for a task: what it would give and cost, or why it is left out."""

    candidate: Candidate
    runs: tuple[Measured, ...]  # that count for the task
    shortfall: float  # behind the candidate that is worth most
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
            "stands_for": self.candidate.stands_for,
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
    near: bool  # whether anything that fits was measured with about as much signal
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


def choose(
    domain: Domain,
    budget: Budget,
    device: str = "auto",
    time: float | None = None,
    compare: bool = False,
    knowledge: Knowledge | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Choice:
    """The method and settings for a task by public facts alone; ``time``: seconds that one is ready to wait.

    ``compare``: plan every candidate, not only as many as the choice needs. ``knowledge`` is the package's own table
    unless it is given. ``watch`` hears how many candidates of how many were looked at.

    Privacy: see the module; no record is an argument.
    """
    patience, on_cpu = PATIENCE if time is None else time, _on_cpu(device)
    task = _Task(domain, budget.settled(domain.nominal_units), device, on_cpu, patience)
    known, refused = knowledge or read_knowledge(), list[Considered]()
    for runs, near in known.circles(task.signal, domain.values, not on_cpu):
        considered = _considered(_entrants(known, runs, near, task), task, compare, watch)
        fitting = [each for each in considered if each.left_out is None]
        if fitting:
            return Choice(_best(fitting), considered, task.signal, near, on_cpu)
        refused += considered
    raise _nothing_fits(refused, time)


@dataclass(frozen=True)
class _Task:
    """All that a choice follows from, and all of it public."""

    domain: Domain
    budget: Budget
    device: str
    on_cpu: bool
    patience: float

    @property
    def signal(self) -> float:
        return self.budget.epsilon * self.domain.nominal_units / (self.domain.classes or 1)

    @property
    def colour_on_card(self) -> bool:
        return self.domain.shape[0] == 3 and not self.on_cpu


def _entrants(known: Knowledge, runs: Sequence[Measured], near: bool, task: _Task) -> list[Considered]:
    """The candidates of these runs, the best first, before any of them is planned."""
    entrants, behind = list[Considered](), shortfalls(runs)
    for name in sorted(behind, key=lambda each: (behind[each], each)):
        own = tuple(run for run in runs if run.candidate == name)
        own = own if near else nearest(own, task.signal)
        for candidate in _forms(known.candidates[name], own, task):
            entrants.append(Considered(candidate, own, behind[name], left_out="behind the one that was chosen"))
    return entrants


def _considered(
    entrants: Sequence[Considered], task: _Task, compare: bool, watch: Callable[[int, int], None] | None
) -> tuple[Considered, ...]:
    """The same, planned as far as the choice needs or all of them."""
    considered, enough = list[Considered](), math.inf
    for entrant in entrants:
        next_one = _planned(entrant, task) if compare or entrant.shortfall <= enough else entrant
        if next_one.left_out is None:
            enough = min(enough, next_one.shortfall + _AS_GOOD)
        considered.append(next_one)
        if watch is not None:
            watch(len(considered), len(entrants))
    return tuple(considered)


def _forms(candidate: Candidate, runs: Sequence[Measured], task: _Task) -> tuple[Candidate, ...]:
    """A candidate as it was measured; before it, where images are in colour, its method's preset for that."""
    colour = candidate.in_colour() if task.colour_on_card and any(run.on_card for run in runs) else None
    return (candidate,) if colour is None else (colour, candidate)


def _best(fitting: Sequence[Considered]) -> Considered:
    """The first, or what is as good and far quicker; settings for grey images are not known to be that in colour."""
    best = fitting[0]
    rivals = [each for each in fitting if each.candidate.name != best.candidate.stands_for]
    as_good = [each for each in rivals if each.shortfall <= best.shortfall + _AS_GOOD]
    quickest = min(as_good, key=lambda each: each.seconds or 0.0)
    return quickest if (quickest.seconds or 0.0) < _FAR_QUICKER * (best.seconds or 0.0) else best


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
    """The same data with pictures brought to the usual shape, where nobody says another.

    Arrays and data sets that are known by name keep theirs. What kind of file a source is decides, and no record of it.
    """
    declared = parse_declarations(source.declared)
    if source.shape is not None or "size" in declared or "channels" in declared or is_known(source.source):
        return source
    path = existing(source.source)
    arrays = idx.mnist_files(path, "train") if path.is_dir() else path.suffix == ".npz" or idx.looks_like_idx(path)
    if arrays or is_store(path):
        return source
    return replace(source, shape=_USUAL_SHAPE)


def _on_cpu(device: str) -> bool:
    if device == "cpu":
        return True
    from understudy.devices import choose_device

    return choose_device(device).type == "cpu"


def _planned(considered: Considered, task: _Task) -> Considered:
    """With its plan and its time, or with the reason why it is left out."""
    try:
        planned = _with_plan(considered, task)
        if considered.candidate.stands_for and (planned.seconds or 0.0) > task.patience:
            planned = _cut(planned, task)
    except (InputError, BudgetError) as error:
        return replace(considered, left_out=str(error))
    return planned


def _with_plan(considered: Considered, task: _Task) -> Considered:
    candidate, method = considered.candidate, get_method(considered.candidate.method)
    config = configure(method, overlay(candidate.config, {"runtime": {"device": task.device}}), candidate.preset)
    plan = remarked(method.plan(config, task.domain, task.budget))
    seconds = plan.seconds if task.on_cpu else plan.seconds_on_gpu
    left_out = "takes too long" if seconds > task.patience else None
    if plan.epsilon > task.budget.epsilon:
        left_out = f"costs epsilon {plan.epsilon:g}"
    elif not task.on_cpu:
        _check_room(plan, task.device)
    return replace(considered, plan=plan, seconds=seconds, left_out=left_out)


def _cut(planned: Considered, task: _Task) -> Considered:
    """The same with as many of its steps as the time allows, or as it was where these would be too few."""
    steps = planned.candidate.steps
    if steps is None:
        return planned
    fewest = max(1, round(_FEWEST_STEPS * steps))
    least = _with_plan(replace(planned, candidate=planned.candidate.with_steps(fewest)), task)
    if least.left_out is not None:
        return planned
    each = ((planned.seconds or 0.0) - (least.seconds or 0.0)) / (steps - fewest)
    fitting = fewest + int((_MARGIN * task.patience - (least.seconds or 0.0)) / each)
    return _with_plan(replace(planned, candidate=planned.candidate.with_steps(max(fewest, fitting))), task)


def _check_room(plan: Plan, device: str) -> None:
    """Refuse what the card has no room for."""
    from understudy.devices import check_memory, choose_device

    check_memory(plan.memory_bytes, choose_device(device))


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
