"""Messages of a federation in hostile hands: what a client gets from a server, and a server from a client."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tests.federated.helpers import GENEROUS, federated_data, make_client, members, tiny_contract

from understudy.engines.critics.panel import Home
from understudy.errors import InputError
from understudy.federated import embedding, messages, updates
from understudy.federated.client import Membership
from understudy.federated.contract import Contract, read_contract
from understudy.federated.messages import Answer, Images, Question, Status
from understudy.federated.updates import UpdateClient, Weights, make_discriminator, message_bytes
from understudy.privacy.randomness.streams import Randomness

_KEY = b"k" * len(messages.question_key(b""))


@cache
def contract() -> Contract:
    """Of three clients and a thousand rounds, so that a campaign does not come to their end."""
    return tiny_contract(privacy={"queries": 12_000})


def questions() -> list[bytes]:
    """A question of every kind to client 0: queries, the embedding, the weights of a discriminator."""
    weights = _weights()
    return [
        messages.encode_question(Question(0, 0, 2, _images(contract().pool), _slots()), contract()),
        messages.encode_question(Question(7, 0, 0, _images(contract().pool), _slots()), contract()),
        embedding.encode_question(0, contract()),
        updates.encode_question(0, 0, weights, _images(contract().pool), contract()),
    ]


def answers() -> list[bytes]:
    """An answer of every kind from client 0."""
    rows = np.zeros((contract().limits.slots, contract().values), np.float32)
    classes, count = embedding.embedding_shape(contract())
    return [
        messages.encode_answer(Answer(0, 0, Status.ANSWERED, _KEY, rows), contract()),
        messages.encode_answer(Answer(3, 1, Status.BUDGET, _KEY, rows), contract()),
        embedding.encode_answer(torch.zeros(classes * count), 0, contract()),
        _update(),
    ]


def contracts() -> list[bytes]:
    """``contract.json`` as a client gets it."""
    return [contract().to_json().encode()]


def ask_clients(content: bytes, folder: Path) -> None:
    """Both kinds of clients, before their first round: a reply of a length that is known beforehand leaves them."""
    shutil.copytree(_enrolled(), folder / "client-0")
    reply = make_client(folder, contract(), federated_data()).answer(content)
    known = {messages.answer_bytes(contract()), len(answers()[2]), 0}
    assert len(reply) in known, f"{len(reply)} bytes left a client"
    own = _update_client(folder).answer(content)
    assert len(own) in {_bytes_of_update(), 0}, f"{len(own)} bytes left a client"
    if not own and _refused(reply):
        raise InputError("message: both clients refuse it")


def hear_answer(content: bytes, folder: Path) -> None:
    """A server on what it got from a client: nothing, or finite numbers within the bounds of the contract."""
    row_dp = embedding.decode_answer(content, 0, contract())
    assert row_dp is None or bool(torch.isfinite(row_dp).all())
    update = updates.decode_answer(
        content, 0, 0, messages.question_key(questions()[-1]), _weights().parameters.shape[1]
    )
    assert update is None or update.dtype == np.float32
    rows_dp = messages.decode_answer(content, contract()).rows_dp
    assert np.isfinite(rows_dp).all()


def sign_contract(content: bytes, folder: Path) -> None:
    """A contract from a server: refused, or whole enough to say how long every message will be."""
    (folder / "contract.json").write_bytes(content)
    signed = read_contract(folder / "contract.json")
    assert messages.question_bytes(signed) > 0
    assert messages.answer_bytes(signed) > 0
    assert signed.to_json()
    assert signed.client_events()


def _refused(reply: bytes) -> bool:
    if len(reply) != messages.answer_bytes(contract()):
        return not reply
    return messages.decode_answer(reply, contract()).status is not Status.ANSWERED


def _images(count: int) -> Images:
    random = np.random.default_rng(count)
    return Images(random.integers(0, 256, (count, *contract().domain.shape), dtype=np.uint8), np.arange(count) % 3)


def _slots() -> Images:
    return _images(contract().limits.slots)


@cache
def _enrolled() -> Path:
    """The folder of a client whose critic is warm and who was asked nothing yet."""
    home = Path(tempfile.mkdtemp(prefix="understudy-federation-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return make_client(home, contract(), federated_data()).folder


@cache
def _update() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return _update_client(Path(folder)).answer(questions()[-1])


def _update_client(folder: Path) -> UpdateClient:
    return UpdateClient(folder / "updates", contract(), Membership(0, GENEROUS), members(federated_data(), 0))


@cache
def _weights() -> Weights:
    bank = make_discriminator(contract(), Home(Randomness(), torch.device("cpu")))
    return Weights(bank.parameters, bank.vectors)


def _bytes_of_update() -> int:
    return message_bytes(contract(), _weights().parameters.shape[1], _weights().vectors.shape[1])[1]
