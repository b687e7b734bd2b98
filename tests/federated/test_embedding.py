"""The embeddings that clients send once: their norm, their noise, who sees what of it, and what survives a crash."""

from __future__ import annotations

import json
import math
import shutil
import struct

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.api import TrainOptions, train
from understudy.engines.critics.panel import Home
from understudy.errors import CheckError, InputError
from understudy.federated import client as client_module
from understudy.federated import embedding
from understudy.federated.client import Client, Membership
from understudy.federated.client_mechanisms import GaussianParts
from understudy.federated.fleet import RemoteFleet, SimulatedFleet
from understudy.privacy import viewers
from understudy.privacy.certificate import Guarantee
from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.release.verify import verify

from ..release.building import put_json
from .helpers import (
    BUDGET,
    GENEROUS,
    LocalTransport,
    federated_data,
    make_client,
    tiny_config,
    tiny_contract,
    tiny_plan,
)

CPU = torch.device("cpu")


def deviation_is_one(values: np.ndarray) -> bool:
    """Chi-squared test of centred normal values on both sides, at 1e-6."""
    below = stats.chi2.cdf((values**2).sum(), values.size)
    return 5e-7 < below < 1 - 5e-7


@pytest.fixture(scope="module")
def data():
    return federated_data()


@pytest.fixture(scope="module")
def contract(data):
    return tiny_contract(data)


def parts(folder, data, clip: float = 1.0) -> GaussianParts:
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger.create(folder / "ledger.jsonl")
    return GaussianParts(ledger, Randomness(), clip=clip, event=tiny_plan(data).events[1])


def values(contract) -> int:
    return math.prod(embedding.embedding_shape(contract))


@pytest.mark.parametrize("labels", [[], [0], [0, 0, 0, 1], [2] * 7, list(range(3)) * 9])
def test_the_norm_of_an_embedding_is_at_most_one_whatever_the_records(labels, contract):
    images = torch.randint(256, (len(labels), 1, 8, 8), dtype=torch.uint8)
    row = embedding.client_embedding(images, torch.tensor(labels).long(), embedding.features(contract, CPU), 3)
    assert row.shape == (values(contract),)
    assert float(row.norm()) <= 1 + 1e-6
    alike = embedding.client_embedding(
        torch.zeros_like(images), torch.tensor(labels).long(), embedding.features(contract, CPU), 3
    )
    assert float(alike.norm()) == pytest.approx(1.0 if labels else 0.0, abs=1e-5), "the bound is reached"


def test_all_parties_have_the_same_features_and_another_federation_has_others(contract):
    one, other = (embedding.features(contract, CPU).frequencies for _ in range(2))
    assert one.equal(other)
    renamed = contract.model_copy(update={"federation": "1" * 32})
    assert not embedding.features(renamed, CPU).frequencies.equal(one)


def test_each_viewer_counts_the_noise_that_hides_a_client_from_it():
    """100 clients add a tenth of the noise each: all of it hides one from the public, a tenth from the server."""
    event = Event(noise_multiplier=3.0, sensitivity="C", unit="client", count=1, noise_parts=100)
    claim = Guarantee(epsilon=1, delta=1e-5, unit="client", viewer="public")
    assert viewers.events_seen([event], claim) == (event,)
    server = claim.model_copy(update={"viewer": "server", "adjacency": "replace-one"})
    (seen,) = viewers.events_seen([event], server)
    assert (seen.noise_multiplier, seen.sensitivity, seen.noise_parts) == (pytest.approx(3.0 / 10 / 2), "2C", None)
    (seen,) = viewers.events_seen([event], claim.model_copy(update={"viewer": "client", "coalition": 19}))
    assert (seen.noise_multiplier, seen.sensitivity) == (pytest.approx(3.0 * 0.9), "C")
    with pytest.raises(InputError, match="leaves none"):
        viewers.events_seen([event], claim.model_copy(update={"viewer": "client", "coalition": 100}))
    with pytest.raises(InputError, match="only replace-one"):
        viewers.events_seen([event], claim.model_copy(update={"viewer": "server"}))
    whole = event.model_copy(update={"noise_parts": None})
    with pytest.raises(InputError, match="not sanitized before the server"):
        viewers.events_seen([whole], server)


@pytest.mark.parametrize(
    "change", [{"unit": "record"}, {"sensitivity": "2C"}, {"sampling": {"kind": "poisson", "rate": 0.5}}]
)
def test_only_a_sum_over_clients_has_noise_in_parts(change):
    fields = {"noise_multiplier": 3.0, "sensitivity": "C", "unit": "client", "count": 1, "noise_parts": 4}
    with pytest.raises(ValueError, match="noise_parts"):
        Event.model_validate(fields | change)


# The client


def test_a_client_pays_once_and_sends_the_same_bytes_whenever_it_is_asked(data, contract, tmp_path):
    asked = embedding.encode_question(0, contract)
    first = make_client(tmp_path, contract, data).answer(asked)
    again = make_client(tmp_path, contract, data)
    assert again.answer(asked) == first
    events = {event.purpose: event for event in Ledger.open(again.folder / "ledger.jsonl").events()}
    event = events["embedding to the server"]
    assert (event.executed, event.planned, event.sensitivity) == (1, 1, "2C")
    assert event.noise_multiplier == pytest.approx(10 / (2 * math.sqrt(3)))
    assert again.spending()["answers"] == 0
    assert again.spending()["epsilon"] > 0
    assert again.answer(embedding.encode_question(1, contract)) != first, "another client's question is not its own"


def test_an_embedding_lost_in_a_crash_stays_spent_and_is_never_made_again(data, contract, tmp_path, monkeypatch):
    def crash(*_, **__):
        raise KeyboardInterrupt

    client, asked = make_client(tmp_path, contract, data), embedding.encode_question(0, contract)
    monkeypatch.setattr(client_module, "write_bytes", crash)
    with pytest.raises(KeyboardInterrupt):
        client.answer(asked)
    monkeypatch.undo()
    assert make_client(tmp_path, contract, data).answer(asked) == b""


def test_a_client_without_records_sends_noise_of_the_stated_deviation(data, contract, tmp_path):
    """Kolmogorov-Smirnov at 1e-6 over all clients' values; a deviation that is 10 % off is noticed."""
    big = contract.model_copy(update={"embedding": contract.embedding.model_copy(update={"frequencies": 2000})})
    client = Client(tmp_path / "empty", big, Membership(0, GENEROUS), data.subset([]))
    answer = client.answer(embedding.encode_question(0, big))
    row = embedding.decode_answer(answer, 0, big).numpy() / (2 * big.embedding.noise_multiplier)
    assert stats.kstest(row, "norm").pvalue > 1e-6
    assert deviation_is_one(row)
    assert not deviation_is_one(row * 1.1)
    full = make_client(tmp_path, big, data).answer(embedding.encode_question(0, big))
    assert len(full) == len(answer), "the size says nothing"


def test_records_that_break_the_features_are_answered_with_noise_alone(data, contract, tmp_path, monkeypatch):
    client = make_client(tmp_path, contract, data)
    monkeypatch.setattr(embedding, "client_embedding", lambda *_: 1 / 0)
    assert embedding.decode_answer(client.answer(embedding.encode_question(0, contract)), 0, contract) is not None


# The server


@pytest.mark.parametrize(
    "spoil",
    [
        lambda a: a[:-1],
        lambda a: b"XXXX" + a[4:],
        lambda a: b"",
        lambda a: None,
        lambda a: a[:-4] + struct.pack("<f", math.nan),
        lambda a: a[:-4] + struct.pack("<f", 1e30),
    ],
)
def test_what_is_no_embedding_of_this_client_is_not_taken(spoil, data, contract, tmp_path):
    answer = make_client(tmp_path, contract, data).answer(embedding.encode_question(0, contract))
    assert embedding.decode_answer(answer, 0, contract) is not None
    assert embedding.decode_answer(spoil(answer), 0, contract) is None
    assert embedding.decode_answer(answer, 1, contract) is None


@pytest.mark.parametrize("multiplier", [1.0, 1e-2, 1e-4])
def test_no_noise_is_cut_off_on_the_way_however_small_it_is_beside_the_embedding(multiplier, contract):
    """The sum needs every client's noise; steps that are too coarse, or a range that is too narrow, would remove it."""
    terms = contract.embedding.model_copy(update={"noise_multiplier": multiplier})
    quiet = contract.model_copy(update={"embedding": terms})
    classes, count = embedding.embedding_shape(quiet)
    noise = 2 * multiplier * torch.randn(classes * count, dtype=torch.float64)
    row = torch.ones_like(noise)
    arrived = embedding.decode_answer(embedding.encode_answer(row + noise, 0, quiet), 0, quiet)
    assert torch.allclose(arrived - row, noise, rtol=0, atol=1e-3 * multiplier)


def test_the_sum_holds_every_clients_part_and_noise_for_who_is_missing(data, contract, tmp_path):
    clients = [make_client(tmp_path, contract, data, number) for number in range(2)]
    sent = [client.answer(embedding.encode_question(number, contract)) for number, client in enumerate(clients)]
    known = sum(embedding.decode_answer(answer, number, contract) for number, answer in enumerate(sent))
    fleet = RemoteFleet(contract, LocalTransport([client.answer for client in clients] + [None]))
    mechanism = parts(tmp_path / "server", data)
    total = fleet.embedding(mechanism, tmp_path / "sum.safetensors")
    missing = (total - known).numpy() / (10 / math.sqrt(3))
    assert missing.std() > 0.5
    assert mechanism.account.reserved == 1
    assert fleet.embedding(mechanism, tmp_path / "sum.safetensors").equal(total), "made once"
    assert mechanism.account.reserved == 1


def test_a_server_that_died_asks_again_and_nobody_pays_twice(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    dead = RemoteFleet(contract, LocalTransport([None, None, None]))
    mechanism = parts(tmp_path / "server", data)
    with pytest.raises(CheckError, match="start the clients, then the server again"):
        dead.embedding(mechanism, tmp_path / "sum.safetensors")
    first = client.answer(embedding.encode_question(0, contract))
    RemoteFleet(contract, LocalTransport([client.answer, None, None])).embedding(
        mechanism, tmp_path / "sum.safetensors"
    )
    assert client.answer(embedding.encode_question(0, contract)) == first
    assert mechanism.account.reserved == 1


def test_a_simulated_sum_has_the_noise_of_all_parts(data, contract, tmp_path):
    """False-alarm rate 1e-6; a client of norm one would move the sum by a tenth of a deviation at most."""
    big = contract.model_copy(update={"embedding": contract.embedding.model_copy(update={"frequencies": 2000})})
    fleet = SimulatedFleet(data.subset([]), big, Home(Randomness(), CPU))
    total = fleet.embedding(parts(tmp_path / "server", data), tmp_path / "sum.safetensors").numpy().ravel()
    assert stats.kstest(total / 10, "norm").pvalue > 1e-6
    assert deviation_is_one(total / 10)
    assert not deviation_is_one(total / 10 * 1.1)


def test_a_simulated_sum_is_that_of_its_clients(data, contract, tmp_path):
    fleet = SimulatedFleet(data, contract, Home(Randomness(), CPU))
    exact = fleet._embedding_sum(parts(tmp_path / "server", data))
    known = embedding.features(contract, CPU)
    expected = sum(
        embedding.client_embedding(
            torch.from_numpy(data.images[data.client_ids == client]),
            torch.from_numpy(data.labels[data.client_ids == client]),
            known,
            3,
        )
        for client in range(3)
    )
    assert torch.allclose(exact, expected, atol=1e-5)
    means = embedding.noisy_means(exact, contract)
    shares = np.bincount(data.labels, minlength=3) / len(data)
    assert np.abs(means.shares_dp.numpy() - shares).max() < 0.05
    assert float(means.means_dp.norm(dim=1).max()) <= 1


def test_a_certificate_that_hides_the_parts_or_their_number_does_not_verify(tmp_path):
    run = tmp_path / "run"
    train("gs-wgan-federated", federated_data(), BUDGET, run, TrainOptions(config=tiny_config()))
    assert verify(run).passed
    path = run / "release" / "certificate.json"
    kept = path.read_text()
    for parts_claimed in (None, 300):
        certificate = json.loads(kept)
        (event,) = (event for event in certificate["events"] if "noise_parts" in event)
        event["noise_parts"] = parts_claimed
        certificate["events"] = [
            {key: value for key, value in event.items() if value is not None} for event in certificate["events"]
        ]
        put_json(path, certificate)
        assert not verify(run).passed
    shutil.rmtree(run)


def test_without_a_share_there_is_no_embedding():
    plan = tiny_plan(privacy={**tiny_config()["privacy"], "embedding_share": 0.0})
    assert len(plan.events) == 1
    assert plan.config.privacy.embedding_noise_multiplier is None
    assert plan.config.method.generator.output == "clamp"
