"""How ``understudy compare`` works: plan all methods, train and evaluate those that are missing, show them together.

The folder: ``comparison.json`` (what was asked for), ``runs/METHOD`` (a run folder each), ``compare.json`` (figures),
``compare.html``. All but the releases of the runs is private or stamped.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.cli.comparison_plan import RUNS, Task, check_tasks
from understudy.errors import AbortedRun, CheckError, InputError, InterruptedRun, UnderstudyError
from understudy.processes import worker_command, worker_environment
from understudy.progress import StopSignal, stop_on_signals

if TYPE_CHECKING:
    from understudy.data import ImageDataset
    from understudy.experiments.curves import Point
    from understudy.experiments.total import Total


DESCRIPTION, FIGURES, PAGE = "comparison.json", "compare.json", "compare.html"
_BROKEN = (AbortedRun.exit_code, CheckError.exit_code)


@dataclass(frozen=True)
class Comparison:
    """Methods side by side, as far as they have come."""

    metrics: tuple[str, ...]
    rows: tuple[Point, ...]
    totals: tuple[Total, ...]
    problems: dict[str, str] = field(default_factory=dict)  # methods that broke down, with the reason

    @property
    def stamp(self) -> str | None:
        """The stamp of the figures: there unless all of them were computed with data that were declared public."""
        return next((row.stamp for row in self.rows if row.stamp), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for ``compare.json``."""
        names = ("method", "folder", "epsilon", "delta", "figures", "runs_on_this_data", "seconds")
        return {
            "schema": 1,
            "metrics": list(self.metrics),
            "stamp": self.stamp,
            "rows": [{name: getattr(row, name) for name in names} for row in self.rows],
            "totals": [{**asdict(total), "in_words": total.in_words()} for total in self.totals],
            "problems": dict(self.problems),
        }


def run_comparison(tasks: Sequence[Task], out: Path, jobs: int | None) -> Comparison:
    """Bring every method to its end; called again, it continues.

    Privacy: each method is a run of its own, with its own ledger and certificate. All plans are checked before the
    first private read.
    """
    from understudy.cli.sweep_plan import check_evaluation
    from understudy.evaluate.evaluation import expand_metrics
    from understudy.files import make_folder
    from understudy.runs.folder import locked

    names = expand_metrics(tasks[0].metrics)
    check_tasks(tasks)
    data = tasks[0].source.load()
    check_tasks(tasks, data.domain)
    check_evaluation(tasks[0], names, data)
    make_folder(out / RUNS, "compare")
    with locked(out):
        tasks = _remember(tasks, out, data)
        problems = _bring_to_end([task for task in tasks if not _is_finished(task)], jobs)
        return _finish(tasks, out, problems)


def bring_to_end(task: Task) -> None:
    """Start or continue the run of a method, then evaluate it; what is done already is left as it is."""
    from understudy.cli.evaluate import Choices, evaluate_release
    from understudy.cli.train import Request, continue_run, start_run

    budget = (task.epsilon, task.delta)
    request = Request(task.method, task.folder, *budget, task.config, None, task.preset, task.command)
    if not (task.folder / "release").is_dir():
        if (task.folder / "run.json").exists():
            continue_run(replace(request, config={}, preset=None), task.source, task.moved)
        else:
            start_run(request, task.source)
    choices = Choices(fast=task.fast, cache=True, device=task.device)
    try:
        evaluate_release(task.folder, (task.source, *task.held_out), ",".join(task.metrics), task.samples, choices)
    except InputError as error:  # the data were checked before: it is what this generator draws that cannot be scored
        raise CheckError(str(error)) from None


def describe(comparison: Comparison) -> str:
    """The methods as a small table, then the price of all of them and the stamp."""
    head = ["method", "certified epsilon", *comparison.metrics, "seconds"]
    rows = [
        [row.method, "none" if row.epsilon is None else f"{row.epsilon:g}"]
        + [f"{row.figures[name]:.4g}" for name in comparison.metrics]
        + ["-" if row.seconds is None else f"{row.seconds:.0f}"]
        for row in comparison.rows
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    lines += [total.in_words() for total in comparison.totals]
    return "\n".join([*lines, f"({comparison.stamp or 'the real data were declared public'})"])


def _remember(tasks: Sequence[Task], out: Path, data: ImageDataset) -> list[Task]:
    """Compare with what the folder was started with, and take over its other methods; else write it down."""
    from understudy.api import FINGERPRINT
    from understudy.files import write_text

    path = out / DESCRIPTION
    wanted, known = {task.method: _described(task) for task in tasks}, _earlier(path, set(_described(tasks[0])))
    if known:
        _check_same(known, wanted, out)
        first = out / RUNS / next(iter(known)) / FINGERPRINT
        if first.is_file() and first.read_text(encoding="utf-8") != data.fingerprint():
            raise InputError(f"compare: {out} was started on other data of the same name; pass those, or another --out")
    elif any(out.glob("*.json")):
        raise InputError(f"compare: {out} holds other files already; choose another folder")
    for task in tasks:
        if task.method not in known and task.folder.exists():
            raise InputError(f"compare: {task.folder} is not of this comparison; choose another folder")
    wanted = known | wanted
    write_text(path, json.dumps({"methods": wanted}, indent=1) + "\n")
    given = {task.method: task for task in tasks}
    common = tasks[0].as_dict()
    return [
        given.get(name) or Task.from_dict({**common, **told, "folder": str(out / RUNS / name)})
        for name, told in wanted.items()
    ]


def _earlier(path: Path, names: set[str]) -> dict[str, dict[str, Any]]:
    """What each method was asked for, under these ``names``, when the folder was started; nothing where it is new."""
    from understudy.files import read_json

    if not path.exists():
        return {}
    raw = read_json(path, "comparison")
    known = raw.get("methods") if isinstance(raw, dict) else None
    told = list(known.values()) if isinstance(known, dict) else []
    if not told or not all(isinstance(each, dict) and set(each) == names for each in told):
        raise InputError(f"compare: {path} is not the description of a comparison; choose another folder")
    return dict(known or {})


def _described(task: Task) -> dict[str, Any]:
    """What a method was asked for; where the data lie is not written down, and figures may be added later."""
    left_out = ("folder", "source", "metrics", "test_data", "moved", "command")
    told = {key: value for key, value in task.as_dict().items() if key not in left_out}
    return json.loads(json.dumps(told)) | {"test_data": task.test_data}


def _check_same(known: dict[str, Any], wanted: dict[str, Any], out: Path) -> None:
    common = ("samples", "fast", "test_data")
    first = next(iter(known.values()))
    for method, told in wanted.items():
        earlier = known.get(method, {**told, **{name: first[name] for name in common}})
        for name, value in told.items():
            if earlier.get(name) != value:
                raise InputError(
                    f"compare: {out} holds {method} with {name} {json.dumps(earlier.get(name))}, not "
                    f"{json.dumps(value)}; repeat its command to continue it, or choose another folder"
                )


def _is_finished(task: Task) -> bool:
    from understudy.experiments.curves import read_point

    if not ((task.folder / "release").is_dir() and (task.folder / "evaluation.json").is_file()):
        return False
    try:
        read_point(task.folder, (), task.shown)
    except InputError:
        return False  # other metrics than before, or a damaged file: measured again, never trained again
    return True


def _bring_to_end(tasks: Sequence[Task], jobs: int | None) -> dict[str, str]:
    """Train and evaluate; methods that break down are named with the reason, and the others go on."""
    jobs = min(jobs or default_jobs(tasks), max(1, len(tasks)))
    if jobs > 1:
        return _Crew(jobs).run(tasks)
    problems: dict[str, str] = {}
    for number, task in enumerate(tasks, start=1):
        print(f"{number}/{len(tasks)}: {task.method}", file=sys.stderr)
        try:
            bring_to_end(task)
        except (AbortedRun, CheckError) as error:
            problems[task.method] = str(error)
        except InterruptedRun:
            raise _interrupted(task.method) from None
    return problems


def default_jobs(tasks: Sequence[Task]) -> int:
    """Methods side by side: one for every two cores, and one at a time on a graphics card."""
    from understudy.devices import choose_device
    from understudy.evaluate.parallel import cores

    if not tasks or choose_device(tasks[0].device).type != "cpu":
        return 1
    return max(1, cores() // 2)


class _Crew:
    """Processes that bring one method each to its end; none of them outlives this one, however it ends."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.running: set[subprocess.Popen[bytes]] = set()

    def run(self, tasks: Sequence[Task]) -> dict[str, str]:
        """What broke down, by method; any other failure is raised once all have ended."""
        problems: dict[str, str] = {}
        failures: list[UnderstudyError] = []
        with stop_on_signals() as stop, ThreadPoolExecutor(self.jobs) as threads:
            futures = {threads.submit(self._work, task, stop): task for task in tasks}
            for future in self._as_they_end(set(futures), stop):
                code, sentence = future.result()
                if code in _BROKEN:
                    problems[futures[future].method] = sentence
                elif code == InterruptedRun.exit_code:
                    failures.append(_interrupted(futures[future].method))
                elif code:
                    failures.append(InputError(sentence))
        if failures:
            raise failures[0]
        return problems

    def _as_they_end(self, open_ones: set[Future[tuple[int, str]]], stop: StopSignal) -> Any:
        told = False
        while open_ones:
            done, open_ones = wait(open_ones, timeout=0.2, return_when=FIRST_COMPLETED)
            yield from done
            if stop() and not told:
                told = True
                for process in list(self.running):
                    process.send_signal(signal.SIGINT)

    def _work(self, task: Task, stop: StopSignal) -> tuple[int, str]:
        """The exit code of a method's process, and its last sentence; its other words are in ``METHOD.log``."""
        if stop():
            return InterruptedRun.exit_code, ""
        log = task.folder.parent / f"{task.method}.log"
        print(f"{task.method}: started, see {log}", file=sys.stderr)
        with log.open("ab") as words:
            process = _start(words.fileno(), self.jobs)
            self.running.add(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already, and its exit code says why
                process.stdin.write(json.dumps(task.as_dict()).encode() + b"\n")
                process.stdin.close()
            code = process.wait()
            self.running.discard(process)
        print(f"{task.method}: {'done' if code == 0 else 'ended early'}", file=sys.stderr)
        if code < 0:
            return CheckError.exit_code, f"{task.method}: its process was ended by signal {-code}; repeat the command"
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return code, "".join(last).removeprefix("understudy: ")


def _start(words: int, jobs: int) -> subprocess.Popen[bytes]:
    """A process with its share of the cores, in a session of its own: Ctrl-C reaches it once, through this one."""
    from understudy.evaluate.parallel import cores

    return subprocess.Popen(
        worker_command("understudy.cli.comparison_worker"),
        stdin=subprocess.PIPE,
        stdout=words,
        stderr=words,
        env=worker_environment(max(1, cores() // jobs)),
        start_new_session=True,
    )


def _interrupted(method: str) -> InterruptedRun:
    return InterruptedRun(f"compare: interrupted at {method}; run the same command again to continue")


def _finish(tasks: Sequence[Task], out: Path, problems: dict[str, str]) -> Comparison:
    """``compare.json`` and the page.

    Privacy: figures that were computed with real data are written with their stamp.
    """
    from understudy.experiments.curves import read_point
    from understudy.experiments.total import total_spending
    from understudy.files import write_text
    from understudy.report.report import ReportOptions, write_report

    done = [task for task in tasks if task.method not in problems]
    if not done:
        raise AbortedRun(f"compare: every method broke down; the first: {next(iter(problems.values()))}")
    totals = total_spending([task.folder for task in tasks if (task.folder / "run.json").exists()])
    rows = tuple(read_point(task.folder, (), tasks[0].shown) for task in done)
    comparison = Comparison(tasks[0].shown, rows, totals, problems)
    write_text(out / FIGURES, json.dumps(comparison.as_dict(), indent=1) + "\n")
    notes = tuple(total.in_words() for total in totals)
    write_report([task.folder for task in done], out / PAGE, ReportOptions(notes=notes))
    return comparison
