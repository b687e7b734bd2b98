"""Fleets: simulated and reached by messages. Faults cost noise and nothing else; the wire shows nothing but answers."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.api import TrainOptions, resume, train
from understudy.engines.critics.panel import Home
from understudy.errors import CheckError, InputError
from understudy.federated import embedding, messages
from understudy.federated.client import fake_pool
from understudy.federated.fleet import RemoteFleet, Round, SimulatedFleet, slots_of_records
from understudy.federated.messages import Answer, Images, Status
from understudy.federated.routing import RoutingDesk
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianAnswers
from understudy.privacy.randomness.streams import Randomness
from understudy.release.release import load
from understudy.release.verify import verify

from ..helpers.runs import recorded
from .helpers import BUDGET, LocalTransport, federated_data, make_client, tiny_config, tiny_contract, tiny_plan


@pytest.fixture(scope="module")
def data():
    return federated_data()


@pytest.fixture(scope="module")
def contract(data):
    return tiny_contract(data)


def answering(folder: Path, data, **changes) -> GaussianAnswers:
    event = tiny_plan(data, **changes).events[0]
    return GaussianAnswers(Ledger.create(folder / "ledger.jsonl"), Randomness(), clip=0.1, event=event)


def some_round(contract, number=0) -> Round:
    random = np.random.default_rng(number)

    def images(count):
        pixels = random.integers(0, 256, (count, *contract.domain.shape), dtype=np.uint8)
        return Images(pixels, random.integers(0, contract.domain.classes, count))

    desk = RoutingDesk(contract.limits, os.urandom)
    return Round(number, images(contract.pool), images(contract.limits.queries), desk.route())


def marking_client(contract, number, value=1.0, **changes):
    """Answers every slot with a value that noise of this size never makes."""

    def answer(question: bytes) -> bytes:
        asked = messages.decode_question(question, contract)
        rows = np.full((contract.limits.slots, contract.values), value, dtype=np.float32)
        fields = {"round": asked.round, "client": number, "status": Status.ANSWERED}
        fields |= {"question": messages.question_key(question), "rows_dp": rows}
        return messages.encode_answer(Answer(**(fields | changes)), contract)

    return answer


# What is not answered


def spoilt(contract) -> dict[str, object]:
    good = marking_client(contract, 1)
    return {
        "silent": None,
        "dying": lambda question: 1 / 0,
        "refusing": marking_client(contract, 1, status=Status.BUDGET),
        "answering another round": marking_client(contract, 1, round=3),
        "answering for another client": marking_client(contract, 1, client=2),
        "answering another question": marking_client(contract, 1, question=bytes(16)),
        "sending wrong shapes": lambda question: good(question)[:-1],
        "sending text": lambda question: "NaN",
        "sending floats": lambda question: np.full(8, np.nan).tobytes(),
    }


@pytest.mark.parametrize("fault", [
    "silent", "dying", "refusing", "answering another round", "answering for another client",
    "answering another question", "sending wrong shapes", "sending text", "sending floats",
])  # fmt: skip
def test_an_answer_that_does_not_count_is_zero_plus_full_noise_and_the_rest_goes_on(fault, data, tmp_path):
    """Chi-square of the replaced rows, false-alarm rate below 1e-6; noise that is 10 % off is noticed."""
    changes = {"privacy": {"queries": 600, "queries_per_round": 600, "slots": 600, "answers_per_client": 600}}
    contract = tiny_contract(data, **changes)
    clients = [marking_client(contract, 0), spoilt(contract)[fault], marking_client(contract, 2)]
    asked = some_round(contract)
    fleet = RemoteFleet(contract, LocalTransport(clients))
    mechanism = answering(tmp_path, data, **changes)
    rows = fleet.answers(asked, mechanism).numpy()
    assert mechanism.account.reserved == 600, "lost answers are spent like any other"
    for client in (0, 2):
        assert np.allclose(rows[asked.routed.queries_of(client)], 1.0, atol=0.1)
    values = rows[asked.routed.queries_of(1)].ravel() / contract.deviation
    square, slack = float((values**2).mean()), 5.0 * math.sqrt(2 / values.size)
    assert 1 - slack < square < 1.001 + slack
    assert not 1 - slack < square * 1.1**2 < 1.001 + slack
    assert abs(values.mean()) < 5.0 / math.sqrt(values.size)
    assert stats.kstest(np.random.default_rng(0).permutation(values)[:2000], "norm").pvalue > 1e-6
    assert fleet.tally["answered"] == 2


def test_a_second_answer_is_not_taken(data, contract, tmp_path):
    class Twice:
        def exchange(self, questions):
            for number, question in questions.items():
                yield number, marking_client(contract, number)(question)
                yield number, marking_client(contract, number, value=-1.0)(question)

    fleet = RemoteFleet(contract, Twice())
    rows = fleet.answers(some_round(contract), answering(tmp_path, data))
    assert (rows > 0.5).all()
    assert fleet.tally["repeated or unasked"] == contract.limits.clients


def test_an_answer_of_a_client_that_was_not_asked_is_not_taken(data, contract, tmp_path):
    class Stranger:
        def exchange(self, questions):
            yield 17, marking_client(contract, 17)(questions[0])

    fleet = RemoteFleet(contract, Stranger())
    rows = fleet.answers(some_round(contract), answering(tmp_path, data))
    assert not (rows > 0.5).all(dim=1).any(), "every row is noise"
    assert fleet.tally["repeated or unasked"] == 1


def test_a_round_is_on_the_ledger_before_the_first_message_leaves(data, contract, tmp_path):
    mechanism, seen = answering(tmp_path, data), []

    class Watching:
        def exchange(self, questions):
            seen.append(Ledger.open(tmp_path / "ledger.jsonl").events()[0].executed)
            return []

    RemoteFleet(contract, Watching()).answers(some_round(contract), mechanism)
    assert seen == [contract.limits.queries]


def test_when_all_clients_are_gone_the_run_stops_with_one_sentence(data, contract, tmp_path):
    fleet, mechanism = RemoteFleet(contract, LocalTransport([None] * 3)), answering(tmp_path, data)
    fleet.answers(some_round(contract, 0), mechanism)
    fleet.answers(some_round(contract, 1), mechanism)
    with pytest.raises(CheckError, match="no client answered in 3 rounds in a row"):
        fleet.answers(some_round(contract, 2), mechanism)


# The wire


def test_questions_have_one_size_and_carry_the_routed_images_and_no_others(data, contract, tmp_path):
    sent = {}

    class Capture:
        def exchange(self, questions):
            sent.update(questions)
            return []

    asked = some_round(contract)
    RemoteFleet(contract, Capture()).answers(asked, answering(tmp_path, data))
    assert sorted(sent) == [0, 1, 2], "every enrolled client gets a message, whether it is asked anything or not"
    assert {len(content) for content in sent.values()} == {messages.question_bytes(contract)}
    pool = {image.tobytes() for image in asked.pool.pixels}
    for client, content in sent.items():
        question, places = messages.decode_question(content, contract), asked.routed.queries_of(client)
        assert question.count == len(places)
        assert np.array_equal(question.queries.pixels[: len(places)], asked.queries.pixels[places])
        assert {image.tobytes() for image in question.queries.pixels[len(places) :]} <= pool
        assert np.array_equal(question.pool.pixels, asked.pool.pixels)


def test_neighbouring_clients_send_the_same_traffic_but_for_the_noise(contract, tmp_path):
    """All that a client sends is captured: ids that follow from the question, and rows within C of pure noise."""
    one, other = federated_data(seed=0), federated_data(seed=99)
    asked, traffic = some_round(contract), {}
    for name, data in (("one", one), ("other", other), ("nothing", None)):
        records = data or one.subset([])
        client = make_client(tmp_path / name, contract, records)
        captured = []

        def capture(question, client=client, captured=captured):
            captured.append(client.answer(question))
            return captured[-1]

        (tmp_path / name / "server").mkdir()
        mechanism = answering(tmp_path / name / "server", one)
        RemoteFleet(contract, LocalTransport([capture, None, None])).answers(asked, mechanism)
        traffic[name] = captured
    head = len(traffic["one"][0]) - contract.limits.slots * contract.values
    assert len({(len(sent), len(sent[0]), sent[0][:head]) for sent in traffic.values()}) == 1
    for sent in traffic.values():
        rows = messages.decode_answer(sent[0], contract).rows_dp
        assert np.abs(rows).max() < 7 * contract.deviation + contract.clip
        assert stats.kstest(rows.ravel() / contract.deviation, "norm").pvalue > 1e-6


# Simulated and deployed


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same plan, once simulated and once with three clients behind messages."""
    home, data = tmp_path_factory.mktemp("both"), federated_data()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        train("gs-wgan-federated", data, BUDGET, home / "simulated", TrainOptions(config=tiny_config()))
        clients = [make_client(home, tiny_contract(data), data, number) for number in range(3)]
        transport = LocalTransport([client.answer for client in clients])
        options = TrainOptions(config=tiny_config(), transport=transport)
        train("gs-wgan-federated", data.subset([]), BUDGET, home / "deployed", options)
    return home, clients


def test_simulated_and_deployed_runs_have_the_same_ledger_and_certificate(both):
    home, _ = both
    assert recorded(home / "simulated") == recorded(home / "deployed")
    certificates = [load(home / name).certificate.model_dump() for name in ("simulated", "deployed")]
    for certificate in certificates:
        for name in ("created", "generator_sha256", "runs_on_this_data", "config_sha256"):  # it has the law of labels
            del certificate[name]
    assert certificates[0] == certificates[1]
    assert all(verify(home / name).passed for name in ("simulated", "deployed"))


def test_clients_answered_what_the_server_charged_and_no_more(both):
    home, clients = both
    charged = Ledger.open(home / "deployed" / "ledger.jsonl").events()[0].executed
    assert sum(client.spending()["answers"] for client in clients) == charged
    certificate = load(home / "deployed").certificate
    server = next(claim for claim in certificate.guarantees if claim.viewer == "server")
    assert all(client.spending()["epsilon"] <= server.epsilon for client in clients)


def test_the_routing_is_in_no_public_file(both):
    """Counts by client would give it away; the certificate states limits."""
    home, clients = both
    counts = [client.spending()["answers"] for client in clients]
    for path in [*(home / "deployed" / "release").glob("*.json"), home / "deployed" / "progress.jsonl"]:
        text = path.read_text()
        assert json.dumps(counts) not in text
        assert "asked" not in text


def test_a_server_that_died_goes_on_with_new_rounds_and_asks_nothing_twice(data, contract, tmp_path):
    """Killed while a round is out: that round stays spent, its number never comes again, and the rest is trained."""
    clients = [make_client(tmp_path, contract, data, number) for number in range(3)]
    rounds: list[int] = []

    class Killing:
        def __init__(self, deadly):
            self.deadly = deadly

        def exchange(self, questions):
            if embedding.is_question(questions[0], 0, contract):
                yield from ((number, clients[number].answer(question)) for number, question in questions.items())
                return
            rounds.append(messages.decode_question(questions[0], contract).round)
            for number, question in questions.items():
                yield number, clients[number].answer(question)
                if rounds[-1] == self.deadly:
                    raise KeyboardInterrupt

    run = tmp_path / "run"
    config = tiny_config() | {"runtime": {"device": "cpu", "checkpoint_seconds": 0.001}}
    with pytest.raises(KeyboardInterrupt):
        train("gs-wgan-federated", data.subset([]), BUDGET, run, TrainOptions(config=config, transport=Killing(2)))
    resume(data.subset([]), run, TrainOptions(transport=Killing(None)))
    assert rounds == [0, 1, 2, 3]
    event = Ledger.open(run / "ledger.jsonl").events()[0]
    assert (event.executed, event.planned) == (48, 48)
    assert verify(run).passed


# The simulation


def test_a_simulated_client_without_records_answers_zero_plus_noise(contract, tmp_path):
    data = federated_data()
    fleet = SimulatedFleet(data.subset([]), contract, Home(Randomness(), torch.device("cpu")))
    rows = fleet.answers(some_round(contract), answering(tmp_path, data)).numpy().ravel() / contract.deviation
    assert stats.kstest(rows, "norm").pvalue > 1e-6


def test_asking_changes_no_simulated_critic(data, contract):
    fleet = SimulatedFleet(data, contract, Home(Randomness(), torch.device("cpu")))
    fleet.warm_start()
    asked, bank = some_round(contract), fleet._critics.bank
    before = {name: tensor.clone() for name, tensor in bank.state().items()}
    routing = torch.from_numpy(asked.routed.client_private)
    fleet._critics.answer(fake_pool(asked.queries), routing)
    assert all(tensor.equal(before[name]) for name, tensor in bank.state().items())


def test_more_clients_than_are_enrolled_are_refused(contract):
    with pytest.raises(InputError, match="more clients than the 3 that are enrolled"):
        slots_of_records(federated_data(clients=4), contract)


def test_removing_a_client_leaves_the_others_where_they_are_or_merely_moves_them_up(data, contract):
    without = data.subset(np.flatnonzero(data.client_ids != 1))
    assert set(slots_of_records(without, contract).tolist()) == {0, 1}


def test_answers_by_message_are_those_of_single_queries(data, contract):
    fleet = SimulatedFleet(data, contract, Home(Randomness(), torch.device("cpu")))
    fleet.warm_start()
    asked = some_round(contract)
    queries, routed = fake_pool(asked.queries), asked.routed
    client, slot = (torch.from_numpy(numbers) for numbers in (routed.client_private, routed.slot_private))
    expected = fleet._critics.answer(queries, client)
    found = fleet._critics.answer_messages(queries, client, slot, contract.limits.slots)
    assert torch.allclose(found, expected, atol=1e-6)
    nobody = torch.full_like(client, -1)
    assert not fleet._critics.answer_messages(queries, nobody, slot, contract.limits.slots).any()


def test_a_query_beyond_a_limit_is_zero_before_the_noise(data, contract):
    fleet = SimulatedFleet(data, contract, Home(Randomness(), torch.device("cpu")))
    asked = some_round(contract)
    asked.routed.client_private[:5] = -1
    assert not fleet._rows(asked)[:5].any()
    assert fleet._rows(asked)[5:].any(dim=1).all()
