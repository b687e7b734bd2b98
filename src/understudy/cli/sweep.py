"""How ``understudy curve`` works: plan all points, train and evaluate those that are missing, draw what there is.

The folder: ``sweep.json`` (what every point has in common), ``points/NAME`` (a run folder each), ``curve.json``,
``curve-*.svg`` and ``.png``, ``curve.html``. All but the releases of the points is private or stamped.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.cli.options import DataOptions
from understudy.errors import AbortedRun, BudgetError, InputError, InterruptedRun

if TYPE_CHECKING:
    from understudy.evaluate.curves import Curve, PlannedPoint

POINTS, DESCRIPTION = "points", "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """What was asked for."""

    method: str
    out: Path
    source: DataOptions
    budget: tuple[float | None, float | None]
    config: dict[str, Any]
    over: tuple[str, ...]
    metrics: tuple[str, ...]
    samples: int | None = None
    repeats: int = 1
    preset: str | None = None
    fast: bool = False

    @property
    def shown(self) -> tuple[str, ...]:
        """The figures that the curve shows."""
        from understudy.evaluate.curves import shown_metrics

        return shown_metrics(self.metrics)


@dataclass(frozen=True)
class Task:
    """One point with everything that its run needs."""

    point: PlannedPoint
    folder: Path
    epsilon: float | None
    delta: float | None
    config: dict[str, Any]


def run_sweep(sweep: Sweep) -> Curve:
    """Bring every point to its end; called again, it continues.

    Privacy: each point is a run of its own, with its own ledger and certificate. All plans are checked before the first
    private read, so that a sweep that cannot be paid for spends nothing.
    """
    from understudy.evaluate.curves import parse_axis, plan_points
    from understudy.evaluate.evaluation import expand_metrics
    from understudy.files import make_folder
    from understudy.training.run import locked

    axes = [parse_axis(text) for text in sweep.over]
    points = plan_points(axes, sweep.repeats)
    expand_metrics(sweep.metrics)  # a misspelt one is refused before anything is trained
    tasks = [_task(sweep, point) for point in points]
    _check_plans(sweep, tasks)
    make_folder(sweep.out, "curve")
    with locked(sweep.out):
        tasks = _remember(sweep, [axis.key for axis in axes], tasks)
        problems = _bring_to_end(sweep, tasks)
        return _finish(sweep, [axis.key for axis in axes], tasks, problems)


def collect_runs(folders: Sequence[Path], keys: Sequence[str], metrics: Sequence[str], out: Path) -> Curve:
    """A curve from finished and evaluated runs; nothing is trained."""
    from understudy.evaluate.curves import Curve, in_order, read_point, total_spending
    from understudy.files import make_folder

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
    curve = Curve(tuple(keys), names, in_order(points), total_spending(folders))
    write_curve(out, curve)
    return curve


def write_curve(out: Path, curve: Curve) -> None:
    """``curve.json``, the pictures and the page.

    Privacy: figures that were computed with real data are written with their stamp.
    """
    from understudy.files import write_bytes, write_text
    from understudy.report.report import write_report
    from understudy.report.sweeps import CURVE_FILE, picture_files

    write_text(out / CURVE_FILE, json.dumps(curve.as_dict(), indent=1) + "\n")
    for name, content in picture_files(curve).items():
        write_bytes(out / name, content)
    write_report([out], out / "curve.html")


def describe(curve: Curve) -> str:
    """The points as a small table, then the price of all of them and the stamp."""
    head = [*curve.keys, "certified epsilon", *curve.metrics]
    rows = [
        [*(str(point.values.get(key)) for key in curve.keys), "-" if point.epsilon is None else f"{point.epsilon:g}"]
        + [f"{point.figures[name]:.4g}" if name in point.figures else "-" for name in curve.metrics]
        for point in curve.points
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    lines += [total.in_words() for total in curve.totals]
    return "\n".join([*lines, f"({curve.stamp or 'the real data were declared public'})"])


def _task(sweep: Sweep, point: PlannedPoint) -> Task:
    """The budget and the config of one point."""
    from understudy.evaluate.curves import BUDGET_KEYS
    from understudy.methods.configuration import apply_settings

    epsilon, delta = (point.values.get(name, given) for name, given in zip(BUDGET_KEYS, sweep.budget, strict=True))
    settings = [f"{key}={json.dumps(value)}" for key, value in point.values.items() if key not in BUDGET_KEYS]
    folder = sweep.out / POINTS / point.name
    return Task(point, folder, epsilon, delta, apply_settings(sweep.config, settings))


def _check_plans(sweep: Sweep, tasks: Sequence[Task]) -> None:
    """Refuse a sweep with a point that is misspelt or over its budget, before anything is spent."""
    from understudy.cli.options import parse_budget
    from understudy.methods.base import configure
    from understudy.methods.registry import get_method

    method = get_method(sweep.method)
    prepared = [
        (task, configure(method, task.config, sweep.preset), parse_budget(method, task.epsilon, task.delta))
        for task in tasks
    ]
    domain = sweep.source.load().domain
    for task, config, budget in prepared:
        if (task.folder / "run.json").exists() or task.point.repeat > 1:
            continue  # was checked when it was started, or is the same plan again
        plan = method.plan(config, domain, budget)
        if plan.epsilon > budget.epsilon:
            raise BudgetError(
                f"budget: the point {task.point.name} costs epsilon {plan.epsilon:g}, but only {budget.epsilon:g} is "
                "allowed; raise --epsilon or leave privacy.noise_multiplier out to have it calibrated"
            )


def _remember(sweep: Sweep, keys: list[str], tasks: list[Task]) -> list[Task]:
    """Compare with the sweep that is in the folder already, and take over its points; else write it down."""
    from understudy.evaluate.curves import PlannedPoint
    from understudy.files import write_text
    from understudy.privacy.certificate import read_json

    wanted: dict[str, Any] = {
        "method": sweep.method,
        "budget": list(sweep.budget),
        "config": sweep.config,
        "keys": keys,
        "samples": sweep.samples,
        "preset": sweep.preset,
        "fast": sweep.fast,
        "data": sweep.source.source,
        "declared": sweep.source.as_dict(),
    }
    path, points = sweep.out / DESCRIPTION, [task.point for task in tasks]
    if path.exists():
        earlier = read_json(path, "sweep")
        for name, value in wanted.items():
            if not isinstance(earlier, dict) or earlier.get(name) != json.loads(json.dumps(value)):
                found = earlier.get(name) if isinstance(earlier, dict) else None
                raise InputError(
                    f"curve: {sweep.out} holds a sweep with {name} {json.dumps(found)}, not {json.dumps(value)}; "
                    "repeat its command to continue it, or choose another folder"
                )
        old = [PlannedPoint(dict(point["values"]), int(point["repeat"])) for point in earlier["points"]]
        points = old + [point for point in points if point.name not in {each.name for each in old}]
    elif any(sweep.out.glob("*.json")):
        raise InputError(f"curve: {sweep.out} holds other files already; choose another folder")
    described = [{"values": point.values, "repeat": point.repeat} for point in points]
    write_text(path, json.dumps({**wanted, "points": described}, indent=1) + "\n")
    return [_task(sweep, point) for point in points]


def _bring_to_end(sweep: Sweep, tasks: Sequence[Task]) -> dict[str, str]:
    """Train and evaluate every point that is not finished; those that break down are named with the reason."""
    problems: dict[str, str] = {}
    for number, task in enumerate(tasks, start=1):
        if _is_finished(task, sweep.shown):
            continue
        print(f"point {number}/{len(tasks)}: {task.point.name}", file=sys.stderr)
        try:
            _train(sweep, task)
            _evaluate(sweep, task)
        except AbortedRun as error:
            problems[task.point.name] = str(error)
        except InterruptedRun:
            raise InterruptedRun(
                f"curve: interrupted at point {number} of {len(tasks)}; run the same command again to continue"
            ) from None
    return problems


def _is_finished(task: Task, metrics: Sequence[str]) -> bool:
    from understudy.evaluate.curves import read_point

    if not ((task.folder / "release").is_dir() and (task.folder / "evaluation.json").is_file()):
        return False
    try:
        read_point(task.folder, (), metrics, task.point)
    except InputError:
        return False  # other metrics than before, or a damaged file: measured again, never trained again
    return True


def _train(sweep: Sweep, task: Task) -> None:
    """Start the run of a point, continue it, or leave it as it is."""
    from understudy.cli.train import Request, continue_run, start_run

    request = Request(sweep.method, task.folder, task.epsilon, task.delta, task.config, None, sweep.preset)
    if (task.folder / "release").is_dir():
        return
    if (task.folder / "run.json").exists():
        continue_run(replace(request, config={}, preset=None), sweep.source)
    else:
        start_run(request, sweep.source)


def _evaluate(sweep: Sweep, task: Task) -> None:
    from understudy.cli.evaluate import Choices, evaluate_release

    choices = Choices(fast=sweep.fast, cache=True, device=_device(sweep))
    real = (sweep.source, sweep.source, "test")
    evaluate_release(task.folder, real, ",".join(sweep.metrics), sweep.samples, choices)


def _device(sweep: Sweep) -> str:
    return str(sweep.config.get("runtime", {}).get("device", "auto"))


def _finish(sweep: Sweep, keys: list[str], tasks: Sequence[Task], problems: dict[str, str]) -> Curve:
    from understudy.devices import choose_device, describe_device
    from understudy.evaluate.curves import Curve, in_order, read_point, total_spending

    done = [task for task in tasks if task.point.name not in problems]
    if not done:
        raise AbortedRun(f"curve: every point broke down; the first: {next(iter(problems.values()))}")
    curve = Curve(
        keys=tuple(keys),
        metrics=sweep.shown,
        points=in_order([read_point(task.folder, keys, sweep.shown, task.point) for task in done]),
        totals=total_spending([task.folder for task in tasks if (task.folder / "run.json").exists()]),
        problems=problems,
        command=_command(sweep, [task.point for task in tasks]),
        device=describe_device(choose_device(_device(sweep))),
    )
    write_curve(sweep.out, curve)
    return curve


def _command(sweep: Sweep, points: Sequence[PlannedPoint]) -> str:
    """The command that repeats the sweep; where the data and the results lie is not part of it."""
    from understudy.data.catalog import is_known
    from understudy.report.reproduce import PLACEHOLDER, changed_settings

    named = sweep.source.source if is_known(sweep.source.source) else PLACEHOLDER
    options: list[tuple[str, Any]] = [("--records", sweep.source.records), ("--classes", sweep.source.classes)]
    options += [("--shape", sweep.source.shape), *(("--declare", text) for text in sweep.source.declared)]
    options += zip(("--epsilon", "--delta"), sweep.budget, strict=True)
    for key in points[0].values:
        values = dict.fromkeys(json.dumps(point.values[key]).strip('"') for point in points)
        options.append(("--over", f"{key}={','.join(values)}"))
    options += [("--preset", sweep.preset)]
    for key, value in changed_settings(sweep.method, sweep.config):
        options.append(("--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"))
    options += [("--metrics", ",".join(sweep.metrics)), ("--samples", sweep.samples)]
    repeats = max(point.repeat for point in points)
    options += [("--repeats", repeats if repeats > 1 else None)]
    lines = [shlex.join(["understudy", "curve", sweep.method, "--data", named])]
    lines += [shlex.join([name, str(value)]) for name, value in options if value is not None]
    lines += ["--fast"] if sweep.fast else []
    return " \\\n  ".join([*lines, "--out runs/curve"])
