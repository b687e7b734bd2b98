"""Live progress on stderr, of a run (with a stop that leaves it resumable) and of an evaluation."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.evaluate.parallel import DownstreamProgress, Listener
    from understudy.runs.run import Progress, ProgressListener


_SECONDS_BETWEEN_LINES = 10.0


class StopSignal:
    """Becomes true on the first SIGINT or SIGTERM; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        """Whether the run was asked to stop."""
        return self.requested

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("understudy: stopping at the next checkpoint; press Ctrl-C again to stop at once", file=sys.stderr)


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Turn SIGINT and SIGTERM into a stop request while the block runs."""
    request = StopSignal()
    previous = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def show_progress() -> Iterator[ProgressListener]:
    """A listener that shows steps, spending, public values, speed and time left: live, or as lines into a file."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[values]}"), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("train", total=None, values="preparing")
        speed = _Speed()

        def listen(progress: Progress) -> None:
            bar.update(task, total=progress.steps, completed=progress.step, values=describe(progress, speed))

        yield listen


class _Lines:
    """Progress as one line every ten seconds."""

    def __init__(self) -> None:
        self.last = 0.0
        self.speed = _Speed()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self.last >= _SECONDS_BETWEEN_LINES or progress.step >= progress.steps:
            self.last = time.monotonic()
            print(f"step {progress.step}/{progress.steps}  {describe(progress, self.speed)}", file=sys.stderr)


class _Speed:
    """Steps per second since the first report: a resumed run does not count what it did before."""

    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None

    def __call__(self, progress: Progress) -> float | None:
        if self.first is None:
            self.first = (progress.step, progress.seconds)
        steps, seconds = progress.step - self.first[0], progress.seconds - self.first[1]
        return steps / seconds if steps > 0 and seconds > 0 else None


def describe(progress: Progress, speed: _Speed) -> str:
    """The public values of a run in one line: spending first, then losses, then speed."""
    from understudy.privacy.meaning import round_up

    values = dict(progress.values)
    parts = [f"epsilon {round_up(values.pop('epsilon_spent'), 3)} spent"] if "epsilon_spent" in values else []
    images = values.pop("images_per_second", None)
    parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items()]
    steps = speed(progress)
    if images is not None:
        parts.append(f"{images:,.0f} images/s")
    elif steps is not None:
        parts.append(f"{steps:.3g} steps/s")
    return "  ".join(parts)


@dataclass(frozen=True)
class Listeners:
    """Who hears of a classifier that has finished, and of other work that is counted."""

    classifiers: Listener
    counts: Callable[[str, int, int], None]


@contextmanager
def show_scoring() -> Iterator[Listeners]:
    """Listeners that show what has been done and how long it took."""
    if not sys.stderr.isatty():
        yield Listeners(lambda progress: print(describe_classifier(progress), file=sys.stderr), _CountedLines())
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def count(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        def listen(progress: DownstreamProgress) -> None:
            count(f"classifiers trained on {progress.trained_on}", progress.finished, progress.total)
            bars.console.print(describe_classifier(progress), highlight=False)

        yield Listeners(listen, count)


class _CountedLines:
    """Counted work as one line every ten seconds; work that is done sooner is not worth a line."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self.last >= _SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            print(f"{done}/{total} {what}", file=sys.stderr)


def describe_classifier(progress: DownstreamProgress) -> str:
    """One finished classifier; its accuracy comes with the stamp, at the end."""
    result = progress.result
    place = f"{progress.finished}/{progress.total}"
    return f"{place:>6}  {result.classifier} trained on {progress.trained_on} in {result.seconds:.1f} s"
