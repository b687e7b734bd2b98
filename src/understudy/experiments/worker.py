"""Brings the points of an experiment to their end: in this process, or side by side, each in a process of its own.

Such a process runs this module as a program: it reads a task from stdin, says what it does in ``NAME.log`` beside the
folder of its run, ends with the process that started it, and leaves a run that can be resumed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from understudy.errors import AbortedRun, BudgetError, CheckError, InputError, InterruptedRun, UnderstudyError
from understudy.experiments.points import Task
from understudy.files import open_private
from understudy.privacy.budget import stated_budget
from understudy.processes import end_with_parent, worker_command, worker_environment
from understudy.progress import ON_STDERR, Audience

_BROKEN = (AbortedRun.exit_code, CheckError.exit_code)


class Turn(NamedTuple):
    """A task, and what is said when its turn comes and when it is interrupted."""

    task: Task
    announcement: str
    interruption: str


def bring_to_end(task: Task, audience: Audience) -> None:
    """Start or continue the run of a point, then evaluate it; what is done already is left as it is."""
    from understudy import api
    from understudy.evaluate import releases
    from understudy.evaluate.evaluation import EvaluationConfig
    from understudy.evaluate.private_cache import default_folder

    entrant, options = task.entrant, task.options
    if not task.run.released and task.run.begun:
        asked = {"method": entrant.method, "epsilon": options.epsilon, "delta": options.delta}
        asked |= {"account": options.account}
        api.continue_run(task.folder, options.source, asked, api.TrainOptions(moved=options.moved), audience.watch)
    elif not task.run.released:
        training = api.TrainOptions(entrant.config, preset=entrant.preset, command=options.command)
        training = replace(training, account=options.account, warn=audience.say)
        budget = stated_budget(options.epsilon, options.delta)
        api.start_run(entrant.method, options.source, budget, task.folder, training, audience.watch)
    drawn = releases.EvaluateOptions(options.samples, test_data=options.test_data, scoring=audience.scoring)
    config = EvaluationConfig(device=task.device, fast=options.fast, cache=default_folder())
    try:
        releases.evaluate_release(task.folder, options.source, options.metrics, drawn, config)
    except InputError as error:  # the data were checked before: it is what this generator draws that cannot be scored
        raise CheckError(str(error)) from None


def bring_all_to_end(turns: Sequence[Turn], jobs: int | None, audience: Audience) -> dict[str, str]:
    """Train and evaluate; points that break down are named with the reason, and the others go on."""
    jobs = min(jobs or default_jobs(turns), max(1, len(turns)))
    if jobs > 1:
        return _Crew(jobs, audience).run(turns)
    problems: dict[str, str] = {}
    for turn in turns:
        audience.say(turn.announcement)
        try:
            bring_to_end(turn.task, audience)
        except (AbortedRun, CheckError) as error:
            problems[turn.task.name] = str(error)
        except InterruptedRun:
            raise InterruptedRun(turn.interruption) from None
    return problems


def default_jobs(turns: Sequence[Turn]) -> int:
    """Points side by side: one for every two cores, and one at a time on a graphics card."""
    from understudy.devices import choose_device
    from understudy.evaluate.parallel import cores

    if not turns or choose_device(turns[0].task.device).type != "cpu":
        return 1
    return max(1, cores() // 2)


class _Crew:
    """Processes that bring one point each to its end; none of them outlives this one, however it ends."""

    def __init__(self, jobs: int, audience: Audience) -> None:
        self.jobs = jobs
        self.audience = audience
        self.running: set[subprocess.Popen[bytes]] = set()

    def run(self, turns: Sequence[Turn]) -> dict[str, str]:
        """What broke down, by name; any other failure is raised once all have ended."""
        problems: dict[str, str] = {}
        failures: list[UnderstudyError] = []
        with self.audience.stopping() as stop, ThreadPoolExecutor(self.jobs) as threads:
            futures = {threads.submit(self._work, turn.task, stop): turn for turn in turns}
            for future in self._as_they_end(set(futures), stop):
                (code, sentence), turn = future.result(), futures[future]
                if code in _BROKEN:
                    problems[turn.task.name] = sentence
                elif code == InterruptedRun.exit_code:
                    failures.append(InterruptedRun(turn.interruption))
                elif code == BudgetError.exit_code:
                    failures.append(BudgetError(sentence))
                elif code:
                    failures.append(InputError(sentence))
        if failures:
            raise failures[0]
        return problems

    def _as_they_end(
        self, open_ones: set[Future[tuple[int, str]]], stop: Callable[[], bool]
    ) -> Iterator[Future[tuple[int, str]]]:
        told = False
        while open_ones:
            done, open_ones = wait(open_ones, timeout=0.2, return_when=FIRST_COMPLETED)
            yield from done
            if stop() and not told:
                told = True
                for process in list(self.running):
                    process.send_signal(signal.SIGINT)

    def _work(self, task: Task, stop: Callable[[], bool]) -> tuple[int, str]:
        """The exit code of a point's process, and its last sentence; its other words are in ``NAME.log``."""
        if stop():
            return InterruptedRun.exit_code, ""
        log = task.folder.parent / f"{task.name}.log"
        self.audience.say(f"{task.name}: started, see {log}")
        with open_private(log, "ab") as words:  # how fast it goes follows the data
            process = _start(words.fileno(), self.jobs)
            self.running.add(process)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended already, and its exit code says why
                process.stdin.write(json.dumps(task.as_dict()).encode() + b"\n")
                process.stdin.close()
            code = process.wait()
            self.running.discard(process)
        self.audience.say(f"{task.name}: {'done' if code == 0 else 'ended early'}")
        if code < 0:
            return CheckError.exit_code, f"{task.name}: its process was ended by signal {-code}; repeat the command"
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return code, "".join(last).removeprefix("understudy: ")


def _start(words: int, jobs: int) -> subprocess.Popen[bytes]:
    """A process with its share of the cores, in a session of its own: Ctrl-C reaches it once, through this one."""
    from understudy.evaluate.parallel import cores

    return subprocess.Popen(
        worker_command("understudy.experiments.worker"),
        stdin=subprocess.PIPE,
        stdout=words,
        stderr=words,
        env=worker_environment(max(1, cores() // jobs)),
        start_new_session=True,
    )


def main() -> int:
    """One task in this process: the exit code of the command line; a failure is one sentence on stderr."""
    end_with_parent()
    task = Task.from_dict(json.loads(sys.stdin.buffer.readline()))
    try:
        bring_to_end(task, ON_STDERR)
    except UnderstudyError as error:
        print(f"understudy: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
