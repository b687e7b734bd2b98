"""Trains several classifiers side by side, each in a process of its own, and tells how far it is.

Small sets are trained one after the other in the caller's process: starting processes would take longer. A process runs
this module as a program: labelled images come in on stdin, a line for each epoch of a network and one of JSON go out.
Nothing touches the disk: the arrays pass through a pipe in NumPy's own format, without pickle. A process of its own is
what makes its memory measurable and lets an interrupted evaluation end at once.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from understudy.errors import InputError, UnderstudyError
from understudy.evaluate.classifiers import ClassifierSetup, classifier_entry
from understudy.evaluate.downstream import DownstreamResult, LabelledImages, downstream_accuracy
from understudy.processes import end_with_parent, worker_command, worker_environment

SMALL_SET = 5_000_000  # bytes of training images
_EPOCH = "epoch "


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

    def counting(self, what: str, total: int) -> Callable[[int], None]:
        """What is told how much of some work is done."""
        return lambda done: None if self.counts is None else self.counts(what, done, total)


@dataclass(frozen=True)
class Crew:
    """How many processes train classifiers, and who hears of it."""

    workers: int | None = None  # None: one for each core, or the caller's process for small sets
    listener: Listener | None = None
    counts: Callable[[str, int, int], None] | None = None  # hears of the epochs of networks

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

    def epoch(name: str, done: int, total: int) -> None:
        if crew.counts is not None:
            crew.counts(f"epochs of {name} trained on {trained_on}", done, total)

    workers = crew.size(names, train)
    if workers == 0:
        for name in names:
            finished(downstream_accuracy(name, train, test, setup, partial(epoch, name)))
    else:
        setup = replace(setup, threads=max(1, cores() // workers))
        _Pool(encode(train, test), setup, epoch).run(names, workers, finished)
    return {name: results[name] for name in names}


class _Pool:
    """Processes that train one classifier each; none of them outlives the call."""

    def __init__(self, data: bytes, setup: ClassifierSetup, epoch: Callable[[str, int, int], None]) -> None:
        self.data = data
        self.setup = setup
        self.epoch = epoch
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
        task = json.dumps({"name": name, "setup": asdict(self.setup)}).encode() + b"\n"
        with self.lock:
            if self.stopped:
                raise InputError(f"classifier {name}: not trained, because another one failed; see its message")
            process = _start(self.setup.threads)
            self.running.add(process)
        try:
            told, complaints = self._talk(process, name, task)
        finally:
            with self.lock:
                self.running.discard(process)
        if process.returncode != 0:
            raise InputError(_explain(name, process.returncode, complaints))
        return DownstreamResult(**json.loads(told))

    def _talk(self, process: subprocess.Popen[bytes], name: str, task: bytes) -> tuple[str, str]:
        """Give a process its task and data, and hear it out: its last line, and what it complained of."""
        assert process.stdin is not None
        assert process.stdout is not None
        told, complaints = "", list[bytes]()
        reader = threading.Thread(target=lambda stream: complaints.extend(stream), args=(process.stderr,))
        with process:  # which waits for its end
            reader.start()
            with suppress(BrokenPipeError):  # why it ended is in what it says
                process.stdin.write(task + self.data)
                process.stdin.close()
            for line in process.stdout:
                told = line.decode()
                if told.startswith(_EPOCH):
                    self.epoch(name, *(int(number) for number in told.removeprefix(_EPOCH).split()))
            reader.join()
        return told, b"".join(complaints).decode(errors="replace")

    def _stop(self) -> None:
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.kill()


def _start(threads: int) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    command, environment = worker_command("understudy.evaluate.parallel"), worker_environment(threads)
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


def encode(train: LabelledImages, test: LabelledImages) -> bytes:
    """The two sets as one stream of bytes."""
    buffer = io.BytesIO()
    for array in (train.images, train.labels, test.images, test.labels):
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def decode(stream: BinaryIO) -> tuple[LabelledImages, LabelledImages]:
    """The two sets of a stream."""
    arrays = [np.lib.format.read_array(stream, allow_pickle=False) for _ in range(4)]
    return LabelledImages(arrays[0], arrays[1]), LabelledImages(arrays[2], arrays[3])


def setup_from(value: Mapping[str, Any]) -> ClassifierSetup:
    """The setup of plain data."""
    cnn, resnet = value["cnn"], value["resnet"]
    if cnn is not None:
        from understudy.evaluate.cnn import CnnConfig

        cnn = CnnConfig(**{**cnn, "kernels": tuple(cnn["kernels"])})
    if resnet is not None:
        from understudy.evaluate.resnet import ResnetConfig

        resnet = ResnetConfig(**{**resnet, "widths": tuple(resnet["widths"])})
    return ClassifierSetup(**{**value, "cnn": cnn, "resnet": resnet})


def peak_memory_mb() -> int | None:
    """The most memory this process has held, where the system says so."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak // (2**20 if sys.platform == "darwin" else 2**10))


def _tell_epoch(done: int, total: int) -> None:
    print(f"{_EPOCH}{done} {total}", flush=True)


def main() -> int:
    """Train one classifier: read the task and the sets from stdin, write the result to stdout."""
    end_with_parent()
    task = json.loads(sys.stdin.buffer.readline())
    train, test = decode(io.BytesIO(sys.stdin.buffer.read()))  # a pipe has no position, which NumPy asks for
    try:
        result = downstream_accuracy(task["name"], train, test, setup_from(task["setup"]), _tell_epoch)
    except UnderstudyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(asdict(replace(result, memory_mb=peak_memory_mb()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
