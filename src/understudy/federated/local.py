"""Clients in this process, behind the same messages as remote ones: for tests and small simulations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence


class LocalTransport:
    """Hands each question to a function and its answer back; a client that raises or is None stays silent."""

    def __init__(self, clients: Sequence[Callable[[bytes], object] | None]) -> None:
        self._clients = clients

    def exchange(self, questions: Mapping[int, bytes]) -> Iterator[tuple[int, object]]:
        """Ask one client after the other."""
        for number, question in questions.items():
            client = self._clients[number]
            if client is None:
                continue
            try:
                answer = client(question)
            except Exception:  # a dead client is no reason to stop the others
                continue
            yield number, answer
