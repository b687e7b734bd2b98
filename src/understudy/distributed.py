"""Several processes, one run: how they find each other, and the few messages that they exchange.

The first process leads: it plans, spends, adds noise, learns and releases, exactly as it would alone. The others
follow: each owns some of the units, draws their coins and sums their clipped gradients (``engines/dpsgd/sharing.py``).

They are started by ``--processes N`` on one machine, or by a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT (torchrun, Slurm, Kubernetes).

Privacy: all processes belong to the owner of the data. What they send each other is private and not encrypted: on one
machine it stays on the loopback interface; between machines the network must be the owner's. Before anything private is
sent, each proves to the leader, and the leader to each, that it knows a secret that only they were told; a launcher
hands it down in ``UNDERSTUDY_TEAM_SECRET``, and without one nobody is asked.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.errors import InputError, UnderstudyError
from understudy.processes import checked_number, worker_command, worker_environment

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store

_PATIENCE = timedelta(days=7)  # the leader may fit an embedding for long; one that dies is noticed at once
_JOINING = timedelta(minutes=10)
_CONNECTING = timedelta(minutes=2)  # once all are there: who dies at that moment is waited for no longer
_LEAVING = 10.0  # seconds
_SECRET = "UNDERSTUDY_TEAM_SECRET"
_NONCE = 32  # bytes
_STRANGER = (
    "processes: one that answered does not belong to this run, so nothing was sent to it; try again, and look for who "
    "else is on this machine or network"
)
STEP, _WORD = 1, 2  # how a message begins: a step of the work at hand, or a word that begins other work; 0: the end


class TeamEnded(UnderstudyError):
    """A process of a run is gone; the run can be continued, in as many processes as one likes."""

    exit_code = 130


@dataclass(frozen=True)
class Team:
    """The processes of one run, of which this is number ``rank``; number 0 leads. Without others, nothing is sent."""

    rank: int = 0
    size: int = 1
    _words: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)
    _asked: list[bool] = field(default_factory=lambda: [False], init=False, repr=False, compare=False)

    @property
    def words(self) -> int:
        """How many words this process has told the others: whose word was the last is at work."""
        return self._words[0]

    @property
    def leads(self) -> bool:
        """Whether this process is the one that spends, adds noise and releases."""
        return self.rank == 0

    def expect(self, parts: bool) -> None:
        """Note whether the others were asked for their parts of a sum: until these are together they hear no word."""
        self._asked[0] = parts

    def give(self, tensor: Tensor) -> None:
        """Put the leader's values into everybody's tensor of the same shape."""
        from torch import distributed

        with _noticed(self):
            distributed.broadcast(tensor, src=0)

    def total(self, tensor: Tensor) -> None:
        """Put the sum of everybody's tensors into the leader's; what the others hold then is not said."""
        from torch import distributed

        with _noticed(self):
            if tensor.is_cuda and distributed.get_backend() == "gloo":  # which reduces to one only on processors
                distributed.all_reduce(tensor)
            else:
                distributed.reduce(tensor, dst=0)

    def tell(self, values: Mapping[str, Any]) -> None:
        """Send plain values from the leader to everybody who calls ``hear``."""
        import torch

        if self.size == 1:
            return
        self._words[0] += 1
        content = torch.frombuffer(bytearray(json.dumps(dict(values)).encode()), dtype=torch.uint8)
        self.give(torch.tensor([_WORD, len(content)]))
        self.give(content)

    def hear(self, begun: Tensor | None = None) -> dict[str, Any] | None:
        """What the leader tells; None where it has dismissed the others. ``begun``: how the message began, if known."""
        import torch

        header = torch.zeros(2, dtype=torch.int64) if begun is None else begun
        if begun is None:
            self.give(header)
        if int(header[0]) != _WORD:
            return None
        content = torch.zeros(int(header[1]), dtype=torch.uint8)
        self.give(content)
        heard: dict[str, Any] = json.loads(bytes(content.tolist()))
        return heard

    def dismiss(self) -> None:
        """Tell everybody who waits for a word, or for the next step, to end; who is gone already does not matter.

        Where the leader failed in the middle of a step nobody listens: they end when it leaves.
        """
        import torch

        if self.size > 1 and not self._asked[0]:
            with suppress(TeamEnded):
                self.give(torch.zeros(2, dtype=torch.int64))

    def prove(self, secret: str) -> None:
        """Refuse to go on with a process that does not know the secret; the secret itself is not sent.

        Privacy: other users of a machine can connect to its ports. They get random numbers and keyed digests of them.
        Everybody's own fresh number must be among those that are shown, so no earlier proof can be played again.
        """
        import torch

        own = torch.tensor(list(secrets.token_bytes(_NONCE)))
        numbers = torch.zeros(self.size, _NONCE, dtype=torch.int64)
        numbers[self.rank] = own
        self.total(numbers)
        self.give(numbers)
        if not torch.equal(numbers[self.rank], own):
            raise InputError(_STRANGER)
        shown = bytes(numbers.flatten().tolist())
        proofs = [hmac.digest(secret.encode(), f"{rank}:".encode() + shown, "sha256") for rank in range(self.size)]
        found = self.compare(proofs[self.rank] if not self.leads else bytes(_NONCE))
        answer = torch.tensor(list(proofs[0]), dtype=torch.int64)
        known = not self.leads or all(map(hmac.compare_digest, found[1:], proofs[1:]))
        self.give(answer if known else answer.zero_())
        if not known or not hmac.compare_digest(bytes(answer.tolist()), proofs[0]):
            raise InputError(_STRANGER)

    def compare(self, digest: bytes) -> list[bytes]:
        """Everybody's 32 bytes, one after the other, for the leader to compare."""
        import torch

        table = torch.zeros(self.size, len(digest), dtype=torch.int64)
        table[self.rank] = torch.tensor(list(digest))
        if self.size > 1:
            self.total(table)
        return [bytes(row) for row in table.tolist()] if self.leads else []


ALONE = Team()


@contextmanager
def _noticed(team: Team) -> Iterator[None]:
    """Turn a broken connection into one sentence."""
    try:
        yield
    except RuntimeError:  # what torch.distributed raises when a process is gone
        raise TeamEnded(
            f"processes: one of the {team.size} processes of this run ended, so the run ends here; the spending so far "
            "is on record, and --resume goes on, in any number of processes"
        ) from None


# How they find each other


@contextmanager
def assembled(processes: int | None, program: str, task: Mapping[str, Any]) -> Iterator[Team]:
    """The team of this process: that of a launcher, a new one on this machine, or nobody else.

    ``program`` is the module that a process which is started here runs, and ``task`` what it is told.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if launched > 1:
        if processes not in (None, launched):
            raise InputError(
                f"processes: {processes} were asked for, but a launcher started {launched}; leave --processes out"
            )
        secret = os.environ.get(_SECRET, "")
        here = int(os.environ.get("LOCAL_WORLD_SIZE", launched))
        with _joined(_launcher_store(), int(os.environ["RANK"]), launched, secret, here) as team:
            yield team
    elif processes is None or checked_number(processes) == 1:
        yield ALONE
    else:
        with _started(processes, program, task) as team:
            yield team


def _launcher_store() -> Store:
    """The meeting place that a launcher names, with keys of its own for every restart: nobody meets the dead."""
    from torch.distributed import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE") if name not in os.environ]
    if missing:
        raise InputError(f"processes: RANK is set, but {missing[0]} is not; start with torchrun, or set all of them")
    try:
        store, _, _ = next(rendezvous("env://", timeout=_JOINING))
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise InputError(f"processes: {place} cannot be reached ({error}); check MASTER_ADDR and MASTER_PORT") from None
    return PrefixStore(f"understudy-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


@contextmanager
def _joined(
    store: Store, rank: int, size: int, secret: str, here: int, lost: Callable[[], bool] = lambda: False
) -> Iterator[Team]:
    """The team, once all have come, ``here`` of them on this machine; ``lost`` says whether one never will."""
    import torch
    from torch import distributed

    if rank:  # the leader stops at a checkpoint, and then dismisses the others
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    local, cards = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
    if cards:
        torch.cuda.set_device(local % cards)
    if here == size:  # whatever the environment says: nothing leaves the machine
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    backend = "cpu:gloo,cuda:nccl" if cards >= here else "gloo"  # NCCL wants a card for each process
    _wait_for_all(store, rank, size, lost)
    try:
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_CONNECTING)
        distributed.distributed_c10d._set_pg_timeout(_PATIENCE)
    except RuntimeError as error:
        raise InputError(
            f"processes: number {rank} of {size} cannot reach the others ({error}); check the network"
        ) from None
    try:
        team = Team(rank, size)
        if secret:
            team.prove(secret)
        yield team
    finally:
        with suppress(RuntimeError):
            distributed.destroy_process_group()


def _wait_for_all(store: Store, rank: int, size: int, lost: Callable[[], bool]) -> None:
    """Wait until everybody is at the meeting place; an error where somebody is gone, or does not come."""
    store.set(f"here-{rank}", "yes")
    deadline = time.monotonic() + _JOINING.total_seconds()
    while True:
        try:
            store.wait([f"here-{other}" for other in range(size)], timedelta(seconds=1))
        except RuntimeError:  # not all of them yet
            if lost() or time.monotonic() > deadline:
                raise InputError(
                    f"processes: not all of the {size} came, so nothing was begun; what they say above tells why"
                ) from None
        else:
            return


@contextmanager
def _started(size: int, program: str, task: Mapping[str, Any]) -> Iterator[Team]:
    """A team on this machine: this process leads, and ends those that it started whatever happens.

    Privacy: they meet through a file in a folder of their own that nobody else may enter.
    """
    import torch
    from torch.distributed import FileStore

    threads, secret = max(1, len(os.sched_getaffinity(0)) // size), secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        meeting = Path(folder, "meeting")
        followers = list[subprocess.Popen[bytes]]()
        try:
            for rank in range(1, size):
                place = {"meeting": str(meeting), "rank": rank, "size": size, "secret": secret}
                followers.append(_start(program, threads, {**task, **place}))
            torch.set_num_threads(threads)
            gone = partial(_one_ended, followers)
            with _joined(FileStore(str(meeting), size), 0, size, secret, size, gone) as team:
                yield team
        finally:
            for process in followers:
                _end(process)


def _start(program: str, threads: int, task: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    environment = {
        **worker_environment(threads),
        "LOCAL_RANK": str(task["rank"]),
        "LOCAL_WORLD_SIZE": str(task["size"]),
    }
    process = subprocess.Popen(worker_command(program), stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    process.stdin.write(json.dumps(dict(task)).encode())
    process.stdin.close()
    return process


def _one_ended(processes: Sequence[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is not None for process in processes)


def _end(process: subprocess.Popen[bytes]) -> None:
    """One that was dismissed ends by itself; another is ended."""
    try:
        process.wait(_LEAVING)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def meeting(task: Mapping[str, Any]) -> Iterator[Team]:
    """The team of a process that ``assembled`` started."""
    from torch.distributed import FileStore

    size = task["size"]
    with _joined(FileStore(task["meeting"], size), task["rank"], size, task["secret"], size) as team:
        yield team


def restarted() -> bool:
    """Whether a launcher started this process again, after one of them had died."""
    return "RANK" in os.environ and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def on_several_machines() -> bool:
    """Whether a launcher started processes elsewhere too."""
    size = os.environ.get("WORLD_SIZE", "1")
    return "RANK" in os.environ and os.environ.get("LOCAL_WORLD_SIZE", size) != size
