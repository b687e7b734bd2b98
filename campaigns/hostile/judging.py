"""How one hostile case is judged: accepted, refused in one sentence, or a finding: a traceback, a hang, memory."""

from __future__ import annotations

import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from understudy.errors import UnderstudyError

from .targets import Target

ACCEPTED, REFUSED = "accepted", "refused"
LIMIT_SECONDS = 20.0
LIMIT_KILOBYTES = 700_000  # by which the memory of the process may grow in one case
LONGEST_SENTENCE = 1500


class TooSlow(BaseException):
    """A case took longer than it may; nothing that is read catches it."""


def judge(target: Target, content: bytes) -> tuple[str, str | None]:
    """What a reader made of a case: ``accepted`` or ``refused``, or ``finding`` with what went wrong."""
    before = _peak_kilobytes()
    folder = Path(tempfile.mkdtemp(prefix="case-"))
    try:
        with _time_limit(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.read(content, folder)
        verdict, problem = ACCEPTED, None
    except UnderstudyError as error:
        verdict, problem = REFUSED, _bad_sentence(str(error), error.exit_code)
    except TooSlow:
        verdict, problem = "", f"took more than {LIMIT_SECONDS:g} s"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        verdict, problem = (
            "",
            f"{type(error).__name__}: {str(error)[:200]!r} in {Path(place.filename).name}:{place.lineno}",
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    grown = _peak_kilobytes() - before
    if problem is None and grown > LIMIT_KILOBYTES:
        problem = f"took {grown} kB of memory"
    return ("finding", problem) if problem else (verdict, None)


def _bad_sentence(sentence: str, exit_code: int) -> str | None:
    if exit_code not in (1, 2, 3):
        return f"exit code {exit_code}"
    if not sentence.isprintable() or not sentence:
        return f"not one printable line: {sentence[:300]!r}"
    if len(sentence) > LONGEST_SENTENCE:
        return f"a sentence of {len(sentence)} characters: {sentence[:200]!r}"
    return None


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
