"""Trains several classifiers side by side, each in a process of its own, and tells how far it is.

Small sets are trained one after the other in the caller's process: starting processes would take longer.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from understudy.errors import InputError
from understudy.evaluate import worker as worker_module
from understudy.evaluate.classifiers import ClassifierSetup, classifier_entry
from understudy.evaluate.downstream import DownstreamResult, LabelledImages, downstream_accuracy
from understudy.evaluate.worker import encode, result_from, setup_as_dict
from understudy.processes import worker_command, worker_environment

SMALL_SET = 5_000_000  # bytes of training images


@dataclass(frozen=True)
class DownstreamProgress:
    """One classifier has finished."""

    finished: int
    total: int
    result: DownstreamResult
    trained_on: str  # what it was trained on: "samples" or "real data"


Listener = Callable[[DownstreamProgress], None]


@dataclass(frozen=True)
class Listeners:
    """Who hears of a classifier that has finished, and of other work that is counted."""

    classifiers: Listener | None = None
    counts: Callable[[str, int, int], None] | None = None


@dataclass(frozen=True)
class Crew:
    """How many processes train classifiers, and who hears of it."""

    workers: int | None = None  # None: one for each core, or the caller's process for small sets
    listener: Listener | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers: {self.workers}, but at least 1 is needed; leave it out for one on each core")

    def size(self, names: Sequence[str], train: LabelledImages) -> int:
        """Processes to start; 0 stands for the caller's own."""
        if self.workers is None and train.images.nbytes < SMALL_SET:
            return 0
        return min(self.workers or cores(), len(names))


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def downstream_accuracies(
    names: Sequence[str],
    train: LabelledImages,
    test: LabelledImages,
    setup: ClassifierSetup,
    crew: Crew,
    trained_on: str = "samples",
) -> dict[str, DownstreamResult]:
    """The accuracy of each named classifier, in the order of the names; the first failure ends them all."""
    results: dict[str, DownstreamResult] = {}

    def finished(result: DownstreamResult) -> None:
        results[result.classifier] = result
        if crew.listener is not None:
            crew.listener(DownstreamProgress(len(results), len(names), result, trained_on))

    workers = crew.size(names, train)
    if workers == 0:
        for name in names:
            finished(downstream_accuracy(name, train, test, setup))
    else:
        setup = replace(setup, threads=max(1, cores() // workers))
        _Pool(encode(train, test), setup).run(names, workers, finished)
    return {name: results[name] for name in names}


class _Pool:
    """Processes that train one classifier each; none of them outlives the call."""

    def __init__(self, data: bytes, setup: ClassifierSetup) -> None:
        self.data = data
        self.setup = setup
        self.running: set[subprocess.Popen[bytes]] = set()
        self.lock = threading.Lock()
        self.stopped = False

    def run(self, names: Sequence[str], workers: int, finished: Callable[[DownstreamResult], None]) -> None:
        """Train all, the longest first, and hand over each result as it comes."""
        order = sorted(names, key=lambda name: -classifier_entry(name).cost)
        with ThreadPoolExecutor(workers) as threads:
            futures: list[Future[DownstreamResult]] = [threads.submit(self._train, name) for name in order]
            try:
                for future in as_completed(futures):
                    finished(future.result())
            except BaseException:
                self._stop()
                raise

    def _train(self, name: str) -> DownstreamResult:
        task = json.dumps({"name": name, "setup": setup_as_dict(self.setup)}).encode() + b"\n"
        with self.lock:
            if self.stopped:
                raise InputError(f"classifier {name}: not trained, because another one failed; see its message")
            process = _start(self.setup.threads)
            self.running.add(process)
        try:
            out, err = process.communicate(task + self.data)
        finally:
            with self.lock:
                self.running.discard(process)
        if process.returncode != 0:
            raise InputError(_explain(name, process.returncode, err.decode(errors="replace")))
        return result_from(out.decode().splitlines()[-1])

    def _stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.kill()


def _start(threads: int) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command, environment = worker_command(worker_module.__name__), worker_environment(threads)
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def _explain(name: str, code: int, err: str) -> str:
    """Why a worker failed: its own sentence, or the last line of its traceback."""
    last = err.strip().splitlines()[-1] if err.strip() else ""
    if code == 2:
        return last
    if code < 0:
        return (
            f"classifier {name}: its process was ended by signal {-code} (9: perhaps out of memory); "
            "pass fewer workers, or use the fast mode"
        )
    return f"classifier {name}: failed ({last or f'exit code {code}'}); leave it out of the metrics to get the others"
