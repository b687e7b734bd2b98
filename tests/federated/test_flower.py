"""The Flower apps in one process: the same messages, ledgers and certificates as without Flower, and the faults."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the extra [federated] is not installed")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from understudy.api import TrainOptions, train
from understudy.data.npz import write_arrays
from understudy.errors import CheckError
from understudy.federated import messages
from understudy.federated.client_app import BODY, FOLDER, RECORD, app, make_client_app, pack
from understudy.federated.deployment.server_app import FlowerTransport, ask_for_numbers, wait_for_nodes
from understudy.federated.task import ClientTerms, open_client, write_client
from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify
from understudy.runs.folder import locked

from .helpers import BUDGET, CLIENTS, federated_data, members, tiny_config, tiny_contract
from .in_process_grid import InProcessGrid
from .test_client import question

NODES = {client: 100 + client for client in range(CLIENTS)}


@pytest.fixture(scope="module")
def data():
    return federated_data()


@pytest.fixture(scope="module")
def contract(data):
    return tiny_contract(data)


@pytest.fixture
def folders(data, contract, tmp_path):
    """Client folders as ``init`` would write them, each with its own archive of images."""
    for client in range(CLIENTS):
        own, folder = members(data, client), tmp_path / f"client-{client}"
        folder.mkdir()
        write_arrays(folder / "data.npz", {"x": own.images[:, 0], "y": own.labels})
        terms = ClientTerms(client=client, epsilon=1e5, delta=1e-5, source=str(folder / "data.npz"))
        write_client(folder, contract, terms)
    return tmp_path


def grid_of(folders, client_app: ClientApp = app) -> InProcessGrid:
    configs = {
        node: {FOLDER: str(folders / f"client-{client}"), "partition-id": client} for client, node in NODES.items()
    }
    return InProcessGrid(client_app, configs)


def test_a_run_over_flower_trains_and_verifies_and_every_client_pays_for_itself(data, folders, tmp_path):
    grid = grid_of(folders)
    transport = FlowerTransport(grid, NODES, deadline=60)
    options = TrainOptions(config=tiny_config(), transport=transport)
    train("gs-wgan-federated", data.subset([]), BUDGET, tmp_path / "run", options)
    assert verify(tmp_path / "run").passed
    answers = [open_client(folders / f"client-{client}").spending()["answers"] for client in range(CLIENTS)]
    assert sum(answers) == Ledger.open(tmp_path / "run" / "ledger.jsonl").events()[0].executed
    assert len(grid.captured) == (1 + 4) * CLIENTS  # an embedding, then four rounds


def test_a_reply_holds_one_record_with_the_bytes_of_an_answer_and_nothing_else(data, contract, folders):
    grid = grid_of(folders)
    asked = {client: question(contract, client=client) for client in range(CLIENTS)}
    answers = dict(FlowerTransport(grid, NODES, deadline=60).exchange(asked))
    assert sorted(answers) == [0, 1, 2]
    assert {len(answer) for answer in answers.values()} == {messages.answer_bytes(contract)}
    for reply in grid.captured:
        assert not reply.has_error()
        assert list(reply.content) == [RECORD]
        assert list(reply.content[RECORD]) == [BODY]


def test_an_app_never_sends_the_text_of_an_exception(contract, folders):
    def broken(context):
        raise ValueError("a secret")

    grid = grid_of(folders, make_client_app(broken))
    answers = dict(FlowerTransport(grid, NODES, deadline=60).exchange({0: question(contract)}))
    assert answers == {0: b""}
    assert not any(reply.has_error() for reply in grid.captured)


def test_a_client_whose_folder_is_held_by_another_process_stays_silent(contract, folders):
    with locked(folders / "client-0"):
        answers = dict(FlowerTransport(grid_of(folders), NODES, 60).exchange({0: question(contract)}))
    assert answers == {0: b""}
    answers = dict(FlowerTransport(grid_of(folders), NODES, 60).exchange({0: question(contract)}))
    assert len(answers[0]) == messages.answer_bytes(contract)


def test_an_error_from_a_node_is_no_answer(contract, folders):
    silly = ClientApp()

    @silly.train()
    def fail(message, context):
        raise ValueError("broken")

    assert dict(FlowerTransport(grid_of(folders, silly), NODES, 60).exchange({0: question(contract)})) == {}


@pytest.mark.parametrize("content", [RecordDict(), RecordDict({RECORD: ConfigRecord({})}), pack(b"no question")])
def test_a_message_that_is_no_question_is_answered_all_the_same(content, folders):
    grid = grid_of(folders)
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=100, message_type="train")])
    assert not reply.has_error()


def test_a_node_that_is_gone_is_not_waited_for(contract, folders):
    grid = grid_of(folders)
    grid.remove(NODES[1])
    asked = {client: question(contract, client=client) for client in range(CLIENTS)}
    assert sorted(client for client, _ in FlowerTransport(grid, NODES, 60).exchange(asked)) == [0, 2]


def test_a_node_that_joins_late_is_asked_from_then_on(contract, folders):
    grid, late = grid_of(folders), NODES[1]
    context = grid._contexts.pop(late)
    transport = FlowerTransport(grid, NODES, 60)
    asked = {client: question(contract, client=client) for client in range(CLIENTS)}
    assert sorted(client for client, _ in transport.exchange(asked)) == [0, 2]
    grid._contexts[late] = context
    asked = {client: question(contract, client=client, number=1) for client in range(CLIENTS)}
    assert sorted(client for client, _ in transport.exchange(asked)) == [0, 1, 2]


def test_a_node_that_never_answers_is_given_up_at_the_deadline(contract, folders):
    class Hanging(InProcessGrid):
        def pull_messages(self, message_ids):
            return []

    grid = Hanging(app, {100: {}})
    assert list(FlowerTransport(grid, {0: 100}, deadline=0.5).exchange({0: question(contract)})) == []


def test_a_node_that_is_not_enrolled_is_never_asked(contract, folders):
    grid = grid_of(folders)
    answers = list(FlowerTransport(grid, {0: 100}, 60).exchange({0: question(contract)}))
    assert len(answers) == 1
    assert {reply.metadata.src_node_id for reply in grid.captured} == {100}


def test_the_server_waits_for_enough_clients_and_says_how_many_came(folders):
    grid = grid_of(folders)
    wait_for_nodes(grid, NODES, 3, deadline=0.1)
    grid.remove(100)
    with pytest.raises(CheckError, match=r"2 of 3 enrolled clients came within 0\.1 seconds, but 3 are needed"):
        wait_for_nodes(grid, NODES, 3, deadline=0.1)


def test_simulated_nodes_say_which_client_they_are(folders):
    assert ask_for_numbers(grid_of(folders), deadline=10) == NODES
