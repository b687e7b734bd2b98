"""Live progress on stderr, of a run and of an evaluation, and a stop on Ctrl-C that leaves a run resumable.

On a terminal it is drawn by rich; into a file it goes as a line every ten seconds.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from understudy.forecast import duration

if TYPE_CHECKING:
    from understudy.evaluate.parallel import DownstreamProgress, Listeners
    from understudy.runs.run import Progress, ProgressListener

    Watched = tuple[ProgressListener | None, Callable[[], bool]]  # who hears of a run, and whether it is to stop

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_OF_SPEED = 600.0  # reports of a long run are minutes apart, and the time left follows from several of them


@dataclass(frozen=True)
class Audience:
    """Who hears of work in progress and may ask it to stop; by default nobody.

    What watches a run, hears of an evaluation or waits for signals is made anew for each: it is a context.
    """

    say: Callable[[str], None] = lambda sentence: None
    watch: Callable[[], AbstractContextManager[Watched]] = lambda: nullcontext((None, lambda: False))
    scoring: Callable[[], AbstractContextManager[Listeners | None]] = nullcontext
    stopping: Callable[[], AbstractContextManager[Callable[[], bool]]] = lambda: nullcontext(lambda: False)


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
        _print("understudy: stopping at the next checkpoint; press Ctrl-C again to stop at once")


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
def watch_run() -> Iterator[Watched]:
    """Show a run, and stop it on signals."""
    with stop_on_signals() as stop, show_progress() as listener:
        yield listener, stop


@contextmanager
def show_progress() -> Iterator[ProgressListener]:
    """A listener that shows steps, spending, public values, speed and time left of a run."""
    speed = _Speed()
    if not sys.stderr.isatty():
        is_time = _Pace(heard=0.0)

        def tell(progress: Progress) -> None:
            speed.hear(progress)
            if is_time(progress.step >= progress.steps):
                _print(
                    f"step {progress.step}/{progress.steps}  {describe(progress, speed)}{time_left(progress, speed)}"
                )

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[values]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Bar(*columns, console=Console(stderr=True), speed_estimate_period=_SECONDS_OF_SPEED) as bar:
        task = bar.add_task("train", total=None, values="preparing")

        def listen(progress: Progress) -> None:
            speed.hear(progress)
            values = describe(progress, speed) + (time_left(progress, speed) if progress.part else "")
            bar.update(task, total=progress.steps, completed=progress.step, values=values)

        yield listen


@contextmanager
def show_scoring() -> Iterator[Listeners]:
    """Listeners that show what an evaluation has done, how long it took and how long it will take."""
    from understudy.evaluate.parallel import Listeners

    clock = _Clock()
    if not sys.stderr.isatty():
        is_time = _Pace(heard=time.monotonic())  # work that is done sooner is not worth a line

        def tell(what: str, done: int, total: int) -> None:
            left = clock.left(what, done, total)
            if is_time():
                _print(f"{done}/{total} {what}{left}")

        yield Listeners(lambda progress: _print(describe_classifier(progress)), tell)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}{task.fields[left]}"))
    with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def count(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, left="")
            bars.update(tasks[what], completed=done, left=clock.left(what, done, total))

        def listen(progress: DownstreamProgress) -> None:
            count(f"classifiers trained on {progress.trained_on}", progress.finished, progress.total)
            bars.console.print(describe_classifier(progress), highlight=False)

        yield Listeners(listen, count)


def describe(progress: Progress, speed: _Speed) -> str:
    """The public values of a run in one line: spending first, then losses, then speed."""
    from understudy.privacy.certificate import round_up

    values = dict(progress.values)
    parts = [f"epsilon {round_up(values.pop('epsilon_spent'), 3)} spent"] if "epsilon_spent" in values else []
    images = values.pop("images_per_second", None)
    if progress.part is not None:
        parts.append(f"{progress.part.replace('_', ' ')} {100 * values.pop(progress.part):.0f} %")
    parts += [f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items()]
    if images is not None:
        parts.append(f"{images:,.0f} images/s")
    elif speed.rate is not None and progress.part is None:
        parts.append(f"{speed.rate:.3g} steps/s")
    return "  ".join(parts)


def time_left(progress: Progress, speed: _Speed) -> str:
    """How long the rest will take at the speed so far; nothing before that is known, and at the end.

    Before the first step it is the rest of what is prepared.
    """
    total = progress.steps if progress.part is None else 1.0
    return _left(total - _done(progress), speed.rate)


def _done(progress: Progress) -> float:
    return progress.step if progress.part is None else progress.values[progress.part]


def _left(missing: float, rate: float | None) -> str:
    return f"  about {duration(missing / rate)} left" if rate and missing > 0 else ""


def _rate(first: tuple[float, float], now: tuple[float, float]) -> float | None:
    """How much is done in a second, from two counts with their times."""
    done, seconds = now[0] - first[0], now[1] - first[1]
    return done / seconds if done > 0 and seconds > 0 else None


def describe_classifier(progress: DownstreamProgress) -> str:
    """One finished classifier; its accuracy comes with the stamp, at the end."""
    result = progress.result
    place = f"{progress.finished}/{progress.total}"
    return f"{place:>6}  {result.classifier} trained on {progress.trained_on} in {result.seconds:.1f} s"


class _Speed:
    """How much is done in a second, of the steps or of what is prepared before them.

    Steps count from the first report of one, so neither what was prepared nor what a resumed run did before counts.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._first: tuple[str | None, float, float] | None = None

    def hear(self, progress: Progress) -> None:
        """Take in a report."""
        done = _done(progress)
        if self._first is None or self._first[0] != progress.part or done <= self._first[1]:
            self._first = (progress.part, done, progress.seconds)
        self.rate = _rate(self._first[1:], (done, progress.seconds))


class _Clock:
    """How long counted work will still take.

    Each kind of it begins where the last was heard of, so that its first report tells already.
    """

    def __init__(self) -> None:
        self._heard = time.monotonic()
        self._begun: dict[str, float] = {}

    def left(self, what: str, done: int, total: int) -> str:
        """The time left in words; nothing where it is not known, and at the end."""
        now = time.monotonic()
        begun, self._heard = self._begun.setdefault(what, self._heard), now
        return _left(total - done, _rate((0, begun), (done, now)))


class _Pace:
    """Says when it is time for another line."""

    def __init__(self, heard: float) -> None:
        self.heard = heard

    def __call__(self, at_once: bool = False) -> bool:
        if not at_once and time.monotonic() - self.heard < _SECONDS_BETWEEN_LINES:
            return False
        self.heard = time.monotonic()
        return True


def _print(sentence: str) -> None:
    print(sentence, file=sys.stderr)


ON_STDERR = Audience(_print, watch_run, show_scoring, stop_on_signals)
