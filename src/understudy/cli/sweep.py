"""How ``understudy curve`` works: plan all points, train and evaluate those that are missing, draw what there is.

The folder: ``sweep.json`` (what every point has in common), ``points/NAME`` (a run folder each), ``curve.json``,
``curve-*.svg`` and ``.png``, ``curve.html``. All but the releases of the points is private or stamped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.cli.sweep_plan import (
    POINTS,
    Sweep,
    Task,
    check_evaluation,
    check_plans,
    check_settings,
    point_task,
    sweep_command,
    sweep_device,
)
from understudy.errors import AbortedRun, CheckError, InputError, InterruptedRun

if TYPE_CHECKING:
    from understudy.data import ImageDataset
    from understudy.experiments.curves import Curve, PlannedPoint


DESCRIPTION = "sweep.json"


def run_sweep(sweep: Sweep) -> Curve:
    """Bring every point to its end; called again, it continues.

    Privacy: each point is a run of its own, with its own ledger and certificate. All plans are checked before the first
    private read, so that a sweep that cannot be paid for spends nothing.
    """
    from understudy.evaluate.evaluation import expand_metrics
    from understudy.experiments.curves import parse_axis, plan_points
    from understudy.files import make_folder
    from understudy.runs.folder import locked

    axes = [parse_axis(text) for text in sweep.over]
    points = plan_points(axes, sweep.repeats)
    names = expand_metrics(sweep.metrics)
    tasks = [point_task(sweep, point) for point in points]
    check_settings(sweep, tasks)
    data = sweep.source.load()
    check_plans(sweep, tasks, data.domain)
    check_evaluation(sweep, names, data)
    make_folder(sweep.out, "curve")
    with locked(sweep.out):
        tasks = _remember(sweep, [axis.key for axis in axes], tasks, data)
        problems = _bring_to_end(sweep, tasks)
        return _finish(sweep, [axis.key for axis in axes], tasks, problems)


def collect_runs(folders: Sequence[Path], keys: Sequence[str], metrics: Sequence[str], out: Path) -> Curve:
    """A curve from finished and evaluated runs; nothing is trained."""
    from understudy.experiments.curves import Curve, in_order, read_point
    from understudy.experiments.total import total_spending
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


def _remember(sweep: Sweep, keys: list[str], tasks: list[Task], data: ImageDataset) -> list[Task]:
    """Compare with the sweep that is in the folder already, and take over its points; else write it down."""
    from understudy.experiments.curves import PlannedPoint
    from understudy.files import read_json, write_text

    wanted: dict[str, Any] = {
        "method": sweep.method,
        "budget": list(sweep.budget),
        "config": sweep.config,
        "keys": keys,
        "samples": sweep.samples,
        "preset": sweep.preset,
        "test_data": sweep.test_data,
        "fast": sweep.fast,
        "data": data.name,
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
        _check_same_data(sweep, old, data)
        points = old + [point for point in points if point.name not in {each.name for each in old}]
    elif any(sweep.out.glob("*.json")):
        raise InputError(f"curve: {sweep.out} holds other files already; choose another folder")
    described = [{"values": point.values, "repeat": point.repeat} for point in points]
    write_text(path, json.dumps({**wanted, "points": described}, indent=1) + "\n")
    return [point_task(sweep, point) for point in points]


def _check_same_data(sweep: Sweep, points: Sequence[PlannedPoint], data: ImageDataset) -> None:
    """All points of a sweep are about the same records; the comparison is with the private print of earlier ones."""
    from understudy.api import FINGERPRINT

    prints = [sweep.out / POINTS / point.name / FINGERPRINT for point in points]
    known = next((path for path in prints if path.is_file()), None)
    if known is not None and known.read_text(encoding="utf-8") != data.fingerprint():
        raise InputError(f"curve: {sweep.out} was started on other data of the same name; pass those, or another --out")


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
        except (AbortedRun, CheckError) as error:
            problems[task.point.name] = str(error)
        except InterruptedRun:
            raise InterruptedRun(
                f"curve: interrupted at point {number} of {len(tasks)}; run the same command again to continue"
            ) from None
    return problems


def _is_finished(task: Task, metrics: Sequence[str]) -> bool:
    from understudy.experiments.curves import read_point

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
        continue_run(replace(request, config={}, preset=None), sweep.source, sweep.moved)
    else:
        start_run(request, sweep.source)


def _evaluate(sweep: Sweep, task: Task) -> None:
    from understudy.cli.evaluate import Choices, evaluate_release

    choices = Choices(fast=sweep.fast, cache=True, device=sweep_device(sweep))
    try:
        evaluate_release(task.folder, (sweep.source, *sweep.held_out), ",".join(sweep.metrics), sweep.samples, choices)
    except InputError as error:  # the data were checked before: it is what this generator draws that cannot be scored
        raise CheckError(str(error)) from None


def _finish(sweep: Sweep, keys: list[str], tasks: Sequence[Task], problems: dict[str, str]) -> Curve:
    from understudy.devices import choose_device, describe_device
    from understudy.experiments.curves import Curve, in_order, read_point
    from understudy.experiments.total import total_spending

    done = [task for task in tasks if task.point.name not in problems]
    if not done:
        raise AbortedRun(f"curve: every point broke down; the first: {next(iter(problems.values()))}")
    curve = Curve(
        keys=tuple(keys),
        metrics=sweep.shown,
        points=in_order([read_point(task.folder, keys, sweep.shown, task.point) for task in done]),
        totals=total_spending([task.folder for task in tasks if (task.folder / "run.json").exists()]),
        problems=problems,
        command=sweep_command(sweep, [task.point for task in tasks]),
        device=describe_device(choose_device(sweep_device(sweep))),
    )
    write_curve(sweep.out, curve)
    return curve
