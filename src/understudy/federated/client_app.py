"""The Flower ClientApp: hands the bytes of a message to the client and its answer back; that is all it does.

A stock SuperNode runs the app that the *server* ships. Whoever does not trust the server with that starts the client
with ``understudy federated client``, which runs this app, as installed, whatever was shipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from understudy.federated.task import open_client
from understudy.runs.folder import locked

RECORD, BODY = "understudy", "body"
FOLDER = "understudy-client"  # in the node's config: where the client's folder is
Answering = Callable[[bytes], bytes]


def make_client_app(find: Callable[[Context], Answering]) -> ClientApp:
    """An app around whatever answers for a node.

    Privacy: a handler that raised would send the text of its exception to the server, and one that returned no message
    would wedge the node. So this one always returns a message, and an empty body where anything went wrong.
    """
    app = ClientApp()

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        try:
            body = find(context)(question_of(message))
        except Exception:
            body = b""
        return Message(pack(body), reply_to=message)

    @app.query()
    def present(message: Message, context: Context) -> Message:
        number = context.node_config.get("partition-id", -1)
        return Message(RecordDict({RECORD: ConfigRecord({"client": int(number)})}), reply_to=message)

    return app


def question_of(message: Message) -> bytes:
    """The bytes of a question; empty where there are none."""
    return unpack(message.content)


def pack(body: bytes) -> RecordDict:
    """Bytes as a Flower record."""
    return RecordDict({RECORD: ConfigRecord({BODY: body})})


def unpack(content: RecordDict) -> bytes:
    """Bytes from a Flower record; empty where there are none."""
    record = content.get(RECORD)
    body = record.get(BODY) if isinstance(record, ConfigRecord) else None
    return body if isinstance(body, bytes) else b""


def client_of_node(context: Context) -> Answering:
    """The client whose folder the node's config names; one process at a time, so that its ledger stays whole."""
    folder = Path(str(context.node_config[FOLDER]))

    def answer(question: bytes) -> bytes:
        with locked(folder):
            return open_client(folder).answer(question)

    return answer


app = make_client_app(client_of_node)
