"""The server's side of a run: find the enrolled clients on a Flower grid, then train, or go on where a run stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.api import TrainOptions, resume, train
from understudy.errors import InputError, UnderstudyError
from understudy.federated.deployment.federation import NODES, OUTCOME, RUN, no_data, read_settings
from understudy.files import read_json, write_text
from understudy.release.release import Release
from understudy.runs.run import locked

if TYPE_CHECKING:
    from flwr.serverapp import Grid


def serve(server: Path, grid: Grid, options: TrainOptions | None = None) -> Release:
    """Train with the clients of a federation; a run that was interrupted goes on with new rounds."""
    from understudy.federated.flower_transport import FlowerTransport, ask_for_numbers, wait_for_nodes

    settings = read_settings(server)
    nodes = read_nodes(server) or ask_for_numbers(grid, settings.start_seconds)
    wait_for_nodes(grid, nodes, settings.least_clients, settings.start_seconds)
    transport = FlowerTransport(grid, nodes, settings.round_seconds)
    options = replace(options or TrainOptions(), transport=transport)
    if (server / RUN / "run.json").exists():
        return resume(no_data(settings), server / RUN, options)
    options = replace(options, config=settings.config)
    return train(settings.method, no_data(settings), settings.budget, server / RUN, options)


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
