"""A team whose processes are threads of one: the same messages, without the seconds that a process takes to start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from understudy.distributed import Team

_PATIENCE = 60.0


class Meeting:
    """Where the threads of one team exchange tensors."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=_PATIENCE)
        self.tensors: list[Tensor | None] = [None] * size


@dataclass(frozen=True)
class ThreadTeam(Team):
    """One of these threads."""

    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def give(self, tensor: Tensor) -> None:
        """The leader's values, for everybody."""
        if self.leads:
            self.meeting.tensors[0] = tensor.detach().clone()
        self.meeting.barrier.wait()
        found = self.meeting.tensors[0]
        assert found is not None
        assert found.shape == tensor.shape
        tensor.copy_(found)
        self.meeting.barrier.wait()

    def total(self, tensor: Tensor) -> None:
        """Everybody's values, for the leader."""
        self.meeting.tensors[self.rank] = tensor.detach().clone()
        self.meeting.barrier.wait()
        if self.leads:
            for other in self.meeting.tensors[1:]:
                assert other is not None
                tensor.add_(other)
        self.meeting.barrier.wait()


def together(size: int, lead: Callable[[Team], Any], follow: Callable[[Team], Any], dismiss: bool = True) -> Any:
    """Run a team of threads; what the leader returns, or the first error. ``dismiss``: unless the leader does it."""
    meeting = Meeting(size)
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            follow(ThreadTeam(rank, size, meeting))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    try:
        leader = ThreadTeam(0, size, meeting)
        result = lead(leader)
        if dismiss:
            leader.dismiss()
        for thread in threads:  # before the barrier goes: who has just passed it may not have noticed yet
            thread.join(_PATIENCE)
        if errors:
            raise errors[0]
        return result
    except threading.BrokenBarrierError:
        raise next(error for error in errors if not isinstance(error, threading.BrokenBarrierError)) from None
    finally:
        meeting.barrier.abort()
        for thread in threads:
            thread.join(_PATIENCE)
