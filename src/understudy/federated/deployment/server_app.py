"""The Flower ServerApp: find the enrolled clients on a Flower grid, then train, or go on where a run stands.

Clients are reached by one message to each enrolled node, and whatever comes back before the deadline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from understudy.api import TrainOptions, resume, train
from understudy.errors import CheckError, InputError, UnderstudyError
from understudy.federated.client_app import RECORD, pack, unpack
from understudy.federated.deployment.federation import NODES, OUTCOME, RUN, no_data, read_federation
from understudy.files import read_json, write_text
from understudy.release.release import Release
from understudy.runs.folder import RunFolder, locked

FOLDER = "understudy-server"  # in the run's config: where the server's folder is
_PAUSE = 0.2


def serve(server: Path, grid: Grid, options: TrainOptions | None = None) -> Release:
    """Train with the clients of a federation; a run that was interrupted goes on with new rounds."""
    federation = read_federation(server)
    nodes = read_nodes(server) or ask_for_numbers(grid, federation.start_seconds)
    wait_for_nodes(grid, nodes, federation.least_clients, federation.start_seconds)
    transport = FlowerTransport(grid, nodes, federation.round_seconds)
    options = replace(options or TrainOptions(), transport=transport)
    if RunFolder(server / RUN).begun:
        return resume(no_data(federation), server / RUN, options)
    options = replace(options, config=federation.config)
    return train(federation.method, no_data(federation), federation.budget, server / RUN, options)


def serve_and_tell(server: Path, grid: Grid) -> None:
    """Serve, and leave the outcome where whoever started it can read it: one sentence, whatever happened.

    The folder is held meanwhile, so that whoever waits for the outcome notices if this process is killed.
    """
    try:
        with locked(server):
            _tell(server, {"started": True})
            _tell(server, _outcome(server, grid))
    except UnderstudyError as error:
        _tell(server, _failed(error))


def _outcome(server: Path, grid: Grid) -> dict[str, object]:
    """Serve, and say how it ended."""
    try:
        serve(server, grid)
    except UnderstudyError as error:
        return _failed(error)
    except Exception as error:
        return {"done": False, "error": f"server: {type(error).__name__}: {error}", "exit_code": 1}
    return {"done": True}


def _failed(error: UnderstudyError) -> dict[str, object]:
    return {"done": False, "error": str(error), "exit_code": error.exit_code}


def _tell(server: Path, outcome: dict[str, object]) -> None:
    write_text(server / OUTCOME, json.dumps(outcome) + "\n")


def read_nodes(server: Path) -> dict[int, int]:
    """Which node each enrolled client is, as its key was registered; empty where nobody registered any."""
    path = server / NODES
    if not path.exists():
        return {}
    try:
        return {int(client): int(node) for client, node in read_json(path, "nodes").items()}
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"nodes: {path} is damaged; start the server again to register the clients anew") from None


# --- messages over Flower


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


# --- the app


def make_server_app(folder: Path | None = None) -> ServerApp:
    """An app that serves ``folder``, or the one that the run's config names."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve_and_tell(folder or Path(str(context.run_config[FOLDER])), grid)

    return app


app = make_server_app()
