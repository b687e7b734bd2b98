"""A federation that an earlier version set up and began: its server goes on, and so does its client."""

from __future__ import annotations

import shutil
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra [federated] is not installed")

from understudy.api import TrainOptions
from understudy.federated.client_app import FOLDER, app
from understudy.federated.deployment.federation import client_name, write_app
from understudy.federated.deployment.server_app import serve
from understudy.federated.messages import Status, decode_answer
from understudy.federated.task import open_client, read_spending, read_terms, write_terms
from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify

from .helpers import federated_data
from .in_process_grid import InProcessGrid
from .test_client import question

VERSIONS = Path(__file__).parents[1] / "fixtures"
SPENT = {"e25aeaa": (7, 1.7106)}  # answers and epsilon that ``federated spending`` printed then


@pytest.fixture(params=sorted(SPENT))
def commit(request):
    return request.param


@pytest.fixture
def folder(commit, tmp_path):
    """A federation of three that was stopped after its first round; client 0 alone took part. Keys are not kept."""
    folder = Path(shutil.copytree(VERSIONS / commit / "federation", tmp_path / "federation"))
    home = folder / "clients" / client_name(0)
    write_terms(home, read_terms(home).model_copy(update={"source": str(home / "data.npz")}))
    return folder


def components(server: Path) -> dict[str, str]:
    text = (server / "app" / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, str] = tomllib.loads(text)["tool"]["flwr"]["app"]["components"]
    return found


def test_its_app_is_written_anew_for_the_modules_of_this_version(folder):
    before = components(folder / "server")
    write_app(folder / "server")
    after = components(folder / "server")
    for name in after.values():
        module, _, attribute = name.partition(":")
        assert hasattr(import_module(module), attribute)
    assert after["clientapp"] == before["clientapp"], "a stock node may have either version"


def test_its_server_goes_on_where_it_stopped(folder):
    home = folder / "clients" / client_name(0)
    before = read_spending(home)["answers"]
    grid = InProcessGrid(app, {100: {FOLDER: str(home), "partition-id": 0}})
    serve(folder / "server", grid, TrainOptions(moved=True))
    assert verify(folder / "server" / "run").passed
    event = Ledger.open(folder / "server" / "run" / "ledger.jsonl").events()[0]
    assert event.executed == event.planned == 48
    assert read_spending(home)["answers"] > before


def test_its_client_repeats_an_answer_byte_for_byte_and_goes_on(commit, folder):
    home = folder / "clients" / client_name(0)
    spent = read_spending(home)
    assert (spent["answers"], spent["epsilon"]) == SPENT[commit]
    client = open_client(home)
    kept = (home / "private" / "answers" / "00000000.bin").read_bytes()
    assert client.answer((folder / "clients" / "last-question.bin").read_bytes()) == kept
    assert read_spending(home) == spent
    assert client.contract.domain == federated_data().domain
    answer = decode_answer(client.answer(question(client.contract, number=1)), client.contract)
    assert answer.status == Status.ANSWERED
    assert read_spending(home)["answers"] == spent["answers"] + 2
