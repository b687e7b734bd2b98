"""Live progress of a run on stderr, and a stop that leaves the run resumable."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.training.run import Progress, ProgressListener

_SECONDS_BETWEEN_LINES = 10.0


class StopRequest:
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
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a stop request while the block runs."""
    request = StopRequest()
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
    from understudy.release.meaning import round_up

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
