"""Messages over Flower: one to each enrolled node, and whatever comes back before the deadline."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from understudy.errors import CheckError
from understudy.federated.client_app import RECORD, pack, unpack

_PAUSE = 0.2


class FlowerTransport:
    """A transport on a Flower ``Grid``. ``nodes`` says which node each enrolled client is.

    A message lives as long as the round's deadline, so an answer that is late is gone and a message is never delivered
    in a later round. An error, a wrong record or nothing at all is no answer.
    """

    def __init__(self, grid: Grid, nodes: Mapping[int, int], deadline: float) -> None:
        self._grid, self._nodes, self._deadline = grid, dict(nodes), deadline

    def exchange(self, questions: Mapping[int, bytes]) -> Iterator[tuple[int, object]]:
        """Send every question at once, then collect until all are there or the deadline has come."""
        present = set(self._grid.get_node_ids())
        asked = {client: node for client, node in self._nodes.items() if node in present and client in questions}
        outgoing = [
            Message(pack(questions[client]), dst_node_id=node, message_type="train", ttl=self._deadline)
            for client, node in asked.items()
        ]
        ends = time.monotonic() + self._deadline
        client_of = {node: client for client, node in asked.items()}
        for reply in receive(self._grid, outgoing, ends):
            client = client_of.get(reply.metadata.src_node_id)
            if client is not None and not reply.has_error():
                yield client, unpack(reply.content)


def receive(grid: Grid, outgoing: list[Message], ends: float) -> Iterator[Message]:
    """Replies as they come in, until all are there or the time is over."""
    waiting = {identity for identity in grid.push_messages(outgoing) if identity} if outgoing else set()
    while waiting and time.monotonic() < ends:
        replies = list(grid.pull_messages(sorted(waiting)))
        for reply in replies:
            waiting.discard(reply.metadata.reply_to_message_id)
            yield reply
        if waiting and not replies:
            time.sleep(_PAUSE)


def wait_for_nodes(grid: Grid, nodes: Mapping[int, int], least: int, deadline: float) -> None:
    """Wait until at least ``least`` of the enrolled nodes are there."""
    ends = time.monotonic() + deadline
    while True:
        found = len(set(nodes.values()) & set(grid.get_node_ids()))
        if found >= least:
            return
        if time.monotonic() > ends:
            raise CheckError(
                f"federation: {found} of {len(nodes)} enrolled clients came within {deadline:g} seconds, but {least} "
                "are needed to start; start the clients, then the server again"
            )
        time.sleep(_PAUSE)


def ask_for_numbers(grid: Grid, deadline: float) -> dict[int, int]:
    """Which node is which client, by what the nodes say: for simulations, where there is nobody to authenticate."""
    outgoing = [
        Message(RecordDict({RECORD: ConfigRecord({})}), dst_node_id=node, message_type="query", ttl=deadline)
        for node in grid.get_node_ids()
    ]
    nodes: dict[int, int] = {}
    for reply in receive(grid, outgoing, time.monotonic() + deadline):
        if not reply.has_error():
            record = reply.content[RECORD]
            number = record.get("client") if isinstance(record, ConfigRecord) else None
            if isinstance(number, int) and number >= 0:
                nodes.setdefault(number, reply.metadata.src_node_id)
    return nodes
