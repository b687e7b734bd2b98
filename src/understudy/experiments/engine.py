"""Experiments: several runs on the same data, planned together, trained, scored, and shown side by side or as a curve.

The folder of one: what was asked for (``comparison.json`` or ``sweep.json``), a run folder for each point (in ``runs/``
or ``points/``), the figures (``compare.json`` or ``curve.json``), and what the caller draws of them. All but the
releases of the runs is private or stamped.

>>> from understudy.data.sources import DataOptions
>>> from understudy.experiments.engine import Entrant, ExperimentOptions, compare, sweep
>>> options = ExperimentOptions(DataOptions("digits"), epsilon=10, delta=1e-5)
>>> compare([Entrant("dp-merf"), Entrant("dpgan")], "comparison", options)  # doctest: +SKIP
>>> sweep(Entrant("dp-merf"), ["epsilon=1,10"], "sweep", options)  # doctest: +SKIP
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from understudy.data.dataset import ImageDataset
from understudy.errors import AbortedRun, InputError
from understudy.evaluate.evaluation import expand_metrics
from understudy.experiments.curves import COMPARE_FILE, CURVE_FILE, Comparison, Curve, in_order, read_point
from understudy.experiments.points import (
    RUNS,
    Entrant,
    ExperimentOptions,
    PlannedPoint,
    Task,
    check_evaluation,
    check_tasks,
    device_of,
    method_tasks,
    parse_axis,
    plan_points,
    point_task,
)
from understudy.experiments.reproduce import curve_command
from understudy.experiments.total import total_spending
from understudy.experiments.worker import Turn, bring_all_to_end
from understudy.files import make_folder, read_json, write_text
from understudy.progress import Audience
from understudy.runs.folder import locked

__all__ = ["Entrant", "ExperimentOptions", "WorkOptions", "collect", "compare", "sweep"]

AnyCurve = TypeVar("AnyCurve", bound=Curve)


@dataclass(frozen=True)
class WorkOptions:
    """How the work is done, who hears of it, and who draws what was found; none of it changes a figure."""

    jobs: int | None = 1  # points side by side, in processes of their own; None: as the cores and the device allow
    audience: Audience = field(default_factory=Audience)
    draw: Callable[[Curve], object] = lambda found: None


def compare(
    entrants: Sequence[Entrant], out: Path | str, options: ExperimentOptions, work: WorkOptions | None = None
) -> Comparison:
    """Bring every method to its end; called again, it continues, and more methods add to it.

    Privacy: each method is a run of its own, with its own ledger and certificate. All plans are checked before the
    first private read. Runs on the same data add up; what they spend together is stated.
    """
    folder = Path(out)
    if not entrants or len({each.method for each in entrants}) < len(entrants):
        raise InputError(f"compare: {[each.method for each in entrants]}; name each method once, and at least one")
    experiment = _Methods(folder, method_tasks(folder, entrants, options), options)
    found = experiment.run(folder / RUNS, work or WorkOptions())
    assert isinstance(found, Comparison)
    return found


def sweep(
    entrant: Entrant,
    over: Sequence[str],
    out: Path | str,
    options: ExperimentOptions,
    repeats: int = 1,
    work: WorkOptions | None = None,
) -> Curve:
    """Bring a run for every value of the settings ``over`` to its end; called again, it continues, and may grow.

    Privacy: each point is a run of its own, with its own ledger and certificate. All plans are checked before the first
    private read, so that a sweep that cannot be paid for spends nothing.
    """
    axes, folder = [parse_axis(text) for text in over], Path(out)
    experiment = _Sweep(folder, entrant, options, [axis.key for axis in axes], plan_points(axes, repeats))
    return experiment.run(folder, work or WorkOptions())


def collect(folders: Sequence[Path], keys: Sequence[str], metrics: Sequence[str], out: Path) -> Curve:
    """A curve from finished and evaluated runs; nothing is trained."""
    wrong = next((key for key in keys if "=" in key), None)
    if wrong is not None:
        raise InputError(
            f"--over: {wrong!r}: the values are those of the runs; pass the key {wrong.partition('=')[0]!r}"
        )
    if len(keys) > 2:
        raise InputError(f"--over: {len(keys)} keys; pass one for the axis and at most one for the lines")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("curve: a run was named twice; name each once")
    points = [read_point(folder, keys, metrics) for folder in folders]
    names = tuple(metrics) or tuple(dict.fromkeys(name for point in points for name in point.figures))
    make_folder(out, "curve")
    return _written(out / CURVE_FILE, Curve(tuple(keys), names, in_order(points), total_spending(folders)))


class _Experiment(ABC):
    """The way of every experiment; a comparison and a sweep differ in their words and in what they write down."""

    word: ClassVar[str]  # the command, as its sentences begin
    noun: ClassVar[str]  # what was asked for is in NOUN.json
    point: ClassVar[str]  # what it calls a point

    def __init__(self, out: Path, tasks: Sequence[Task], options: ExperimentOptions) -> None:
        self.out = out
        self.tasks = tasks
        self.options = options

    def run(self, place: Path, work: WorkOptions) -> Curve:
        """Plan all points and refuse early; train and evaluate what is missing; collect and draw."""
        expand_metrics(self.options.metrics)
        check_tasks(self.tasks)
        data = self.options.source.load()
        check_tasks(self.tasks, data.domain)
        check_evaluation(self.options, data)
        make_folder(place, self.word)
        with locked(self.out):
            tasks = self._remember(data)
            problems = bring_all_to_end(self.turns(tasks), work.jobs, work.audience)
            if len(problems) == len(tasks):
                first = next(iter(problems.values()))
                raise AbortedRun(f"{self.word}: every {self.point} broke down; the first: {first}")
            found = self.found(tasks, problems)
            work.draw(found)
            return found

    def _remember(self, data: ImageDataset) -> list[Task]:
        """Compare with what the folder was started with, and take over its other points; then write it down."""
        path, known = self.out / f"{self.noun}.json", list[Task]()
        if path.exists():
            known = self.known(path, data)
            self._check_same_data(known, data)
        elif any(self.out.glob("*.json")):
            raise InputError(f"{self.word}: {self.out} holds other files already; choose another folder")
        names = {task.name for task in known}
        new = [task for task in self.tasks if task.name not in names]
        for task in new:
            if task.folder.exists():
                raise InputError(f"{self.word}: {task.folder} is not of this {self.noun}; choose another folder")
        tasks = [*known, *new]
        write_text(path, json.dumps(self.described(tasks, data), indent=1) + "\n")
        return tasks

    def _check_same_data(self, known: Sequence[Task], data: ImageDataset) -> None:
        """All points are about the same records; the comparison is with the private print of earlier ones."""
        prints = (task.run.fingerprint for task in known)
        earlier = next((path for path in prints if path.is_file()), None)
        if earlier is not None and earlier.read_text(encoding="utf-8") != data.fingerprint():
            raise InputError(
                f"{self.word}: {self.out} was started on other data of the same name; pass those, or another --out"
            )

    def _check_same(self, what: str, earlier: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for name, value in wanted.items():
            if earlier.get(name) != json.loads(json.dumps(value)):
                raise InputError(
                    f"{self.word}: {self.out} holds {what} with {name} {json.dumps(earlier.get(name))}, not "
                    f"{json.dumps(value)}; repeat its command to continue it, or choose another folder"
                )

    def _interrupted(self, place: str) -> str:
        return f"{self.word}: interrupted at {place}; run the same command again to continue"

    @abstractmethod
    def known(self, path: Path, data: ImageDataset) -> list[Task]:
        """The points that the folder was started with, if it was asked for the same; ``path`` says what it was."""

    @abstractmethod
    def described(self, tasks: Sequence[Task], data: ImageDataset) -> dict[str, Any]:
        """What was asked for; where the data lie is not written down, and figures may be added later."""

    @abstractmethod
    def turns(self, tasks: Sequence[Task]) -> list[Turn]:
        """The points that are not finished."""

    @abstractmethod
    def found(self, tasks: Sequence[Task], problems: dict[str, str]) -> Curve:
        """The figures of all points that did not break down, written to their file.

        Privacy: figures that were computed with real data are written with their stamp.
        """


class _Methods(_Experiment):
    """Points that differ in their method."""

    word, noun, point = "compare", "comparison", "method"

    def known(self, path: Path, data: ImageDataset) -> list[Task]:
        raw = read_json(path, self.noun)
        methods = raw.get("methods") if isinstance(raw, dict) else None
        told: dict[str, Any] = methods if isinstance(methods, dict) else {}
        names = set(_told(self.tasks[0]))
        if not told or not all(isinstance(each, dict) and set(each) | {"account"} == names for each in told.values()):
            raise InputError(f"compare: {path} is not the description of a comparison; choose another folder")
        common = {name: next(iter(told.values())).get(name) for name in ("samples", "fast", "test_data", "account")}
        for task in self.tasks:
            self._check_same(task.name, told.get(task.name, {**_told(task), **common}), _told(task))
        return [self._task(name, each) for name, each in told.items()]

    def _task(self, name: str, told: Mapping[str, Any]) -> Task:
        entrant = Entrant(told["method"], told["config"], told["preset"])
        names = ("epsilon", "delta", "samples", "fast", "test_data", "account")
        asked: dict[str, Any] = {key: told.get(key) for key in names}
        return Task(self.out / RUNS / name, entrant, replace(self.options, **asked))

    def described(self, tasks: Sequence[Task], data: ImageDataset) -> dict[str, Any]:
        return {"methods": {task.name: _told(task) for task in tasks}}

    def turns(self, tasks: Sequence[Task]) -> list[Turn]:
        missing = [task for task in tasks if not _is_finished(task)]
        return [
            Turn(task, f"{number}/{len(missing)}: {task.name}", self._interrupted(task.name))
            for number, task in enumerate(missing, start=1)
        ]

    def found(self, tasks: Sequence[Task], problems: dict[str, str]) -> Comparison:
        shown = self.options.shown
        rows = tuple(read_point(task.folder, (), shown) for task in tasks if task.name not in problems)
        totals = total_spending([task.folder for task in tasks if task.run.begun])
        return _written(self.out / COMPARE_FILE, Comparison((), shown, rows, totals, problems))


class _Sweep(_Experiment):
    """Points of one method that differ in one or two settings."""

    word, noun, point = "curve", "sweep", "point"

    def __init__(
        self,
        out: Path,
        entrant: Entrant,
        options: ExperimentOptions,
        keys: Sequence[str],
        points: Sequence[PlannedPoint],
    ) -> None:
        self.entrant = entrant
        self.keys = tuple(keys)
        super().__init__(out, [point_task(out, entrant, options, point) for point in points], options)

    def known(self, path: Path, data: ImageDataset) -> list[Task]:
        raw = read_json(path, self.noun)
        self._check_same("a sweep", raw if isinstance(raw, dict) else {}, self._common(data))
        points = [PlannedPoint(dict(point["values"]), int(point["repeat"])) for point in raw["points"]]
        return [point_task(self.out, self.entrant, self.options, point) for point in points]

    def _common(self, data: ImageDataset) -> dict[str, Any]:
        return {
            "method": self.entrant.method,
            "budget": [self.options.epsilon, self.options.delta],
            "config": self.entrant.config,
            "keys": list(self.keys),
            "samples": self.options.samples,
            "preset": self.entrant.preset,
            "test_data": self.options.test_data,
            "fast": self.options.fast,
            "account": self.options.account,
            "data": data.name,
            "declared": self.options.source.as_dict(),
        }

    def described(self, tasks: Sequence[Task], data: ImageDataset) -> dict[str, Any]:
        points = [{"values": task.point.values, "repeat": task.point.repeat} for task in tasks]
        return {**self._common(data), "points": points}

    def turns(self, tasks: Sequence[Task]) -> list[Turn]:
        return [
            Turn(
                task, f"point {number}/{len(tasks)}: {task.name}", self._interrupted(f"point {number} of {len(tasks)}")
            )
            for number, task in enumerate(tasks, start=1)
            if not _is_finished(task)
        ]

    def found(self, tasks: Sequence[Task], problems: dict[str, str]) -> Curve:
        from understudy.devices import choose_device, describe_device

        shown, done = self.options.shown, [task for task in tasks if task.name not in problems]
        curve = Curve(
            keys=self.keys,
            metrics=shown,
            points=in_order([read_point(task.folder, self.keys, shown, task.point) for task in done]),
            totals=total_spending([task.folder for task in tasks if task.run.begun]),
            problems=problems,
            command=curve_command(self.entrant, self.options, [task.point for task in tasks]),
            device=describe_device(choose_device(device_of(self.entrant.config))),
        )
        return _written(self.out / CURVE_FILE, curve)


def _told(task: Task) -> dict[str, Any]:
    """What a method was asked for, as it is written down."""
    entrant, options = task.entrant, task.options
    told = {"method": entrant.method, "epsilon": options.epsilon, "delta": options.delta, "config": entrant.config}
    told |= {"preset": entrant.preset, "samples": options.samples, "fast": options.fast}
    told |= {"test_data": options.test_data, "account": options.account}
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


def _is_finished(task: Task) -> bool:
    if not (task.run.released and task.run.evaluation.is_file()):
        return False
    try:
        read_point(task.folder, (), task.options.shown, task.point)
    except InputError:
        return False  # other metrics than before, or a damaged file: measured again, never trained again
    return True


def _written(path: Path, found: AnyCurve) -> AnyCurve:
    write_text(path, json.dumps(found.as_dict(), indent=1) + "\n")
    return found
