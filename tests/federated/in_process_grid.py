"""A Flower ``Grid`` inside one process: it calls the ClientApp of each node, with no network and no other process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

_RUN = 1


class InProcessGrid(Grid):
    """Nodes 1, 2, ... with a config each; a message is answered when it is pulled.

    As on a real node, an app that raises answers with an error that quotes the exception, and nothing stops.
    """

    def __init__(self, app: ClientApp, node_configs: Mapping[int, Mapping[str, Any]]) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, _RUN, 1
        self._app = app
        self._contexts = {
            node: Context(_RUN, node, dict(config), RecordDict(), {}) for node, config in node_configs.items()
        }
        self._waiting: dict[str, Message] = {}
        self.captured: list[Message] = []  # every reply, for tests of the wire
        self._run: Run | None = None

    def set_run(self, run: Run) -> None:
        """Take a run; nothing here needs it."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that was set."""
        assert self._run is not None, "set by whoever needs it"
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes that are there."""
        return list(self._contexts)

    def remove(self, node: int) -> None:
        """Let a node go: it is not there any more, and what it was sent stays unanswered."""
        del self._contexts[node]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep the messages until they are pulled."""
        identities = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self._waiting[message.metadata.message_id] = message
            identities.append(message.metadata.message_id)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to the messages of nodes that are there."""
        replies = []
        for identity in message_ids:
            message = self._waiting.get(identity)
            if message is not None and message.metadata.dst_node_id in self._contexts:
                del self._waiting[identity]
                replies.append(self._reply(message))
        self.captured += replies
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push, then pull once: nobody in one process is late."""
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Message) -> Message:
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
