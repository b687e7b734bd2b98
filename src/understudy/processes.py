"""Processes of the package's own: how they are started, and that none of them outlives the one that started it.

A worker is a module of ours and watches its parent itself. Several may work side by side on parts of one piece of work:
each reads its task, and sends back message by message. A foreign command knows nothing of us, so it is run on a
leash: this module, run as a program, between the parent and the command.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from understudy.errors import InputError, UnderstudyError

MOST_PROCESSES = 1024
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LOOK_EVERY = 0.5  # seconds
_STOP_SECONDS = 15.0
_LENGTH = 8  # bytes that say how long a message is
_SENTENCE = 2  # the exit code of a worker whose last line is a sentence for the user


def worker_command(module: str) -> list[str]:
    """What runs a module of this package with this interpreter; the module calls ``end_with_parent``."""
    return [sys.executable, "-P", "-m", module, str(os.getpid())]


def worker_environment(threads: int) -> dict[str, str]:
    """This environment, this package, and so many threads."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that wait leave the core to others
        **os.environ,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def end_with_parent() -> None:
    """From now on this process, started by ``worker_command``, dies when its parent does, however that ends.

    Privacy: a worker holds private records; nobody would know of one that is left over.
    """
    threading.Thread(target=_watch, daemon=True).start()


def checked_number(processes: int) -> int:
    """A number of processes; one that makes no sense is refused."""
    if not 1 <= processes <= MOST_PROCESSES:
        raise InputError(f"processes: {processes}; pass a number from 1 to {MOST_PROCESSES}")
    return processes


class Worker:
    """A process that runs a module of ours: it reads all of its task first, and then sends messages.

    Privacy: task and messages pass through pipes; neither touches the disk.
    """

    def __init__(self, module: str, task: bytes, threads: int, number: int) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed when it ends)
        self._messages = queue.SimpleQueue[bytes | None]()
        pipe, environment = subprocess.PIPE, {**worker_environment(threads), "LOCAL_RANK": str(number)}
        self._process = subprocess.Popen(
            worker_command(module), stdin=pipe, stdout=pipe, stderr=self._said, env=environment
        )
        self._thread = threading.Thread(target=self._attend, args=(task,), daemon=True)
        self._thread.start()

    def hear(self) -> bytes:
        """Its next message; an error with one sentence where it ended instead."""
        message = self._messages.get()
        if message is None:
            raise InputError(self._reason())
        return message

    def end(self) -> None:
        """It is not needed any more."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self._said.close()

    def _attend(self, task: bytes) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError), self._process.stdin as file:
            file.write(task)
        with self._process.stdout as file:
            while len(head := file.read(_LENGTH)) == _LENGTH:
                content = file.read(int.from_bytes(head, "little"))
                if len(content) == int.from_bytes(head, "little"):
                    self._messages.put(content)
        self._messages.put(None)

    def _reason(self) -> str:
        """Why it ended: its own sentence, or what is known of it."""
        code = self._process.wait()
        self._said.seek(0)
        last = (self._said.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        if code == _SENTENCE and last:
            return last
        why = f"signal {-code}; 9: perhaps out of memory" if code < 0 else last or f"exit code {code}"
        return f"processes: one of them ended ({why}), so the work is not done; try again with fewer"


@contextmanager
def side_by_side(module: str, tasks: Sequence[bytes]) -> Iterator[list[Worker]]:
    """A worker for each task; all of them end with this block. They share the cores evenly."""
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, len(tasks)))
    workers = list[Worker]()
    try:
        for number, task in enumerate(tasks):
            workers.append(Worker(module, task, threads, number))
        yield workers
    finally:
        for worker in workers:
            worker.end()


def work(act: Callable[[bytes], Iterable[bytes]]) -> int:
    """Of a worker: take the task that comes in, send what ``act`` makes of it; the exit code.

    Where there are several graphics cards, it uses another than its neighbour.
    """
    end_with_parent()
    task = sys.stdin.buffer.read()
    _take_own_card()
    try:
        for content in act(task):
            sys.stdout.buffer.write(len(content).to_bytes(_LENGTH, "little") + content)
            sys.stdout.buffer.flush()
    except UnderstudyError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _take_own_card() -> None:
    import torch

    if torch.cuda.device_count():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def leashed(command: Sequence[str]) -> list[str]:
    """The command that runs a foreign ``command`` on a leash; to be started in a session of its own."""
    return [*worker_command(__name__), *command]


def _watch() -> None:
    while _parent_lives():
        time.sleep(_LOOK_EVERY)
    os.kill(os.getpid(), signal.SIGKILL)


def _parent_lives() -> bool:
    """Whether the one that started this process by ``worker_command`` is still there."""
    return os.getppid() == int(sys.argv[1])


def _run_leashed(command: Sequence[str]) -> int:
    """Run a command; its exit code, or the end of its whole group as soon as the parent is gone."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # the group gets it: the leash ends when its command has
    running = subprocess.Popen(command)
    while (code := _ended(running, _LOOK_EVERY)) is None and _parent_lives():
        pass
    if code is None:
        os.killpg(0, signal.SIGTERM)
        _ended(running, _STOP_SECONDS)
        os.killpg(0, signal.SIGKILL)
    return 128 - code if code is not None and code < 0 else code or 0


def _ended(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a process that ends within so many seconds."""
    ends = time.monotonic() + seconds
    while (code := process.poll()) is None and time.monotonic() < ends:
        time.sleep(0.05)
    return code


if __name__ == "__main__":
    sys.exit(_run_leashed(sys.argv[2:]))
