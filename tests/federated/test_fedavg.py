"""``fedavg-gan``: the baseline on the same data, transports and apps, with a trusted server."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from understudy.api import TrainOptions, train
from understudy.engines.critics.panel import Home
from understudy.errors import InputError
from understudy.federated.client import Membership
from understudy.federated.fedavg_gan import FedAvgConfig, FedAvgGan
from understudy.federated.messages import Images, question_key
from understudy.federated.task import ClientTerms, read_spending, write_client
from understudy.federated.updates import (
    RemoteUpdates,
    SimulatedUpdates,
    UpdateClient,
    Weights,
    encode_question,
    make_discriminator,
)
from understudy.methods.config import build_config
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.release.release import load
from understudy.release.verify import verify

from ..helpers.runs import recorded
from .helpers import BUDGET, CLASSES, GENEROUS, LocalTransport, federated_data, members

CONFIG = {
    "privacy": {"noise_multiplier": 10.0, "rounds": 4, "clients_per_round": 1.5},
    "method": {
        "generator_steps": 2,
        "batch": 8,
        "pool": 8,
        "critics": {"batch": 4, "width": 8, "rounds": 2},
        "generator": {"width": 2, "latent": 2},
    },
    "runtime": {"device": "cpu"},
}
HOME = Home(Randomness(), torch.device("cpu"))


@pytest.fixture(scope="module")
def data():
    return federated_data()


@pytest.fixture(scope="module")
def contract(data):
    method = FedAvgGan()
    return method.contract(method.plan(build_config(FedAvgConfig, CONFIG), data.domain, BUDGET))


@pytest.fixture(scope="module")
def start(contract):
    bank = make_discriminator(contract, HOME)
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (contract.pool, 1, 8, 8), dtype=np.uint8)
    return Weights(bank.parameters, bank.vectors), Images(pixels, random.integers(0, CLASSES, contract.pool))


def client_of(folder, contract, data, number=0) -> UpdateClient:
    return UpdateClient(folder / f"client-{number}", contract, Membership(number, GENEROUS), members(data, number))


def test_a_run_verifies_and_claims_nothing_against_the_server(data, tmp_path):
    train("fedavg-gan", data, BUDGET, tmp_path / "run", TrainOptions(config=CONFIG))
    certificate = load(tmp_path / "run").certificate
    assert [(claim.viewer, claim.unit, claim.adjacency) for claim in certificate.guarantees] == [
        ("public", "client", "add-remove")
    ]
    (event,) = certificate.events
    assert (event.sampling.rate, event.sensitivity, event.executed) == (0.5, "C", 4)
    assert any("no guarantee against the server" in remark for remark in certificate.remarks)
    found = verify(tmp_path / "run")
    assert found.passed
    (viewers,) = [check.detail for check in found.checks if check.name == "viewers"]
    assert "NO guarantee against server; NO guarantee against client" in viewers


def test_a_run_with_clients_behind_messages_has_the_same_ledger(data, contract, tmp_path):
    train("fedavg-gan", data, BUDGET, tmp_path / "simulated", TrainOptions(config=CONFIG))
    clients = [client_of(tmp_path, contract, data, number).answer for number in range(3)]
    options = TrainOptions(config=CONFIG, transport=LocalTransport(clients))
    train("fedavg-gan", data.subset([]), BUDGET, tmp_path / "deployed", options)
    assert recorded(tmp_path / "simulated") == recorded(tmp_path / "deployed")
    assert verify(tmp_path / "deployed").passed
    assert Ledger.open(tmp_path / "deployed" / "ledger.jsonl").events()[0].executed == 4


def test_an_update_is_clipped_before_it_leaves_and_the_same_when_asked_again(data, contract, start, tmp_path):
    tight = contract.model_copy(update={"clip": 1e-3})
    client = client_of(tmp_path, tight, data)
    asked = encode_question(1, 0, *start, tight)
    answer = client.answer(asked)
    fleet = RemoteUpdates(tight, LocalTransport([client.answer, None, None]))
    (row,) = fleet.of([0, 1], 1, *start)
    assert 0.9e-3 < float(row.norm()) <= 1e-3
    assert client.answer(asked) == answer
    assert client.answer(encode_question(0, 0, *start, tight)) == b"", "an older round is over"
    assert fleet.bytes_sent == 2 * len(asked)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda asked: asked[:-1],
        lambda asked: b"XXXX" + asked[4:],
        lambda asked: asked[:8] + b"\x01\0\0\0" + asked[12:],
        lambda asked: asked[:16] + bytes(16) + asked[32:],
        lambda asked: asked[:32] + b"\0\0\xc0\x7f" + asked[36:],
    ],
    ids=["short", "another kind", "another client", "another contract", "not finite"],
)
def test_what_is_no_question_of_its_contract_gets_nothing(spoil, data, contract, start, tmp_path):
    assert client_of(tmp_path, contract, data).answer(spoil(encode_question(0, 0, *start, contract))) == b""


@pytest.mark.parametrize("reply", [b"", b"x" * 100, None, "text", 7])
def test_a_reply_that_is_no_update_adds_nothing(reply, contract, start):
    fleet = RemoteUpdates(contract, LocalTransport([lambda question: reply, None, None]))
    assert fleet.of([0], 0, *start).shape == (0, start[0].parameters.shape[1])


def test_an_update_to_another_question_adds_nothing(data, contract, start, tmp_path):
    client = client_of(tmp_path, contract, data)
    stale = client.answer(encode_question(0, 0, *start, contract))
    fleet = RemoteUpdates(contract, LocalTransport([lambda question: stale, None, None]))
    assert len(fleet.of([0], 1, *start)) == 0


@pytest.mark.parametrize("value", [b"\0\0\xc0\x7f", b"\0\0\x80\xff"], ids=["NaN", "infinite"])
def test_an_update_that_is_not_finite_adds_nothing_and_ends_no_run(value, data, contract, start, tmp_path):
    client = client_of(tmp_path, contract, data)
    fleet = RemoteUpdates(contract, LocalTransport([lambda question: client.answer(question)[:-4] + value, None, None]))
    assert len(fleet.of([0], 0, *start)) == 0


def test_simulated_updates_start_from_the_same_weights_and_a_client_without_records_changes_nothing(contract, start):
    data = federated_data()
    fleet = SimulatedUpdates(data.subset(np.flatnonzero(data.client_ids != 2)), contract, HOME)
    changes = fleet.of([0, 2], 0, *start)
    assert float(changes[0].norm()) > 0
    assert float(changes[1].norm()) == 0
    assert fleet.of([], 0, *start).shape == (0, changes.shape[1])


def test_its_words_say_that_nothing_holds_against_the_server_or_clients_and_warn_of_a_large_delta(data, tmp_path):
    train("fedavg-gan", data, Budget(10, 0.004), tmp_path / "run", TrainOptions(config=CONFIG))
    certificate = load(tmp_path / "run").certificate
    assert "against the server that runs the training and sees every answer: no guarantee" in certificate.remarks
    assert "against clients that took part and share what they saw: no guarantee" in certificate.remarks
    assert any("times 3 clients is more than 0.01" in remark for remark in certificate.remarks)
    assert any(item.startswith("the server: it sees every client's update") for item in certificate.not_covered)


def test_its_clients_have_no_spending_against_the_server_to_print(contract, tmp_path):
    write_client(tmp_path, contract, ClientTerms(client=0, epsilon=1, delta=1e-5))
    with pytest.raises(InputError, match="promises a client nothing against the server"):
        read_spending(tmp_path)


def test_sanitized_gradients_need_a_hundredth_of_the_bytes_for_a_generator_step():
    """At the size of the paper's discriminator, both with their default settings."""
    from understudy.data.domain import Domain
    from understudy.federated.gs_wgan import FederatedConfig, GsWganFederated
    from understudy.federated.messages import bytes_per_step
    from understudy.federated.updates import message_bytes

    domain = Domain(shape=(1, 28, 28), classes=36, nominal_records=40_000, nominal_clients=359)
    method = FedAvgGan()
    config = build_config(FedAvgConfig, {"privacy": {"noise_multiplier": 1.0}})
    plan = method.plan(config, domain, BUDGET)
    bank = make_discriminator(method.contract(plan), HOME)
    sizes = message_bytes(method.contract(plan), bank.parameters.shape[1], bank.vectors.shape[1])
    gradients = GsWganFederated()
    config = build_config(FederatedConfig, {"privacy": {"noise_multiplier": 2.0}})
    ours = gradients.plan(config, domain, BUDGET)
    each = bytes_per_step(gradients.contract(ours), ours.config.method.steps_per_round)
    assert sum(sizes) / plan.config.method.generator_steps > 100 * each


def test_a_question_names_itself(contract, start):
    first, second = (encode_question(number, 0, *start, contract) for number in (0, 1))
    assert question_key(first) != question_key(second)
