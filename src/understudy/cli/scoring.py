"""Live progress of an evaluation on stderr: bars on a terminal, lines in a file. Figures come at the end, stamped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.evaluate.parallel import DownstreamProgress, Listener

_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class Listeners:
    """Who hears of a classifier that has finished, and of other work that is counted."""

    classifiers: Listener
    counts: Callable[[str, int, int], None]


@contextmanager
def show_scoring() -> Iterator[Listeners]:
    """Listeners that show what has been done and how long it took."""
    if not sys.stderr.isatty():
        yield Listeners(lambda progress: print(describe(progress), file=sys.stderr), _Lines())
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
            bars.console.print(describe(progress), highlight=False)

        yield Listeners(listen, count)


class _Lines:
    """Counted work as one line every ten seconds; work that is done sooner is not worth a line."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self.last >= _SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            print(f"{done}/{total} {what}", file=sys.stderr)


def describe(progress: DownstreamProgress) -> str:
    """One finished classifier; its accuracy comes with the stamp, at the end."""
    result = progress.result
    place = f"{progress.finished}/{progress.total}"
    return f"{place:>6}  {result.classifier} trained on {progress.trained_on} in {result.seconds:.1f} s"
