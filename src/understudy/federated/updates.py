"""Federated averaging of a discriminator: clients train a copy on their own images and send back what changed.

An update leaves its client clipped but without noise, so the server must be trusted: it adds the noise to the sum. This
is the baseline that Federated GS-WGAN is compared with, on the same apps and transports.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from understudy.data.dataset import ImageDataset
from understudy.engines.critics.bank import (
    INITIAL_POWER_ITERATIONS,
    AdamConfig,
    CriticBank,
    CriticBankConfig,
    CriticBankOptions,
)
from understudy.engines.critics.layers import estimate
from understudy.engines.critics.panel import Critics, FakePool, Home
from understudy.errors import InputError
from understudy.federated import messages
from understudy.federated.client import Membership, check_membership, fake_pool
from understudy.federated.contract import DIGEST_BYTES, Contract
from understudy.federated.fleet import Transport, slots_of_records
from understudy.federated.messages import Images, question_key
from understudy.files import write_bytes
from understudy.models.critic import CriticConfig
from understudy.privacy.mechanisms import clip_rows
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.folder import RunFolder

_QUESTION, _ANSWER = b"USW1", b"USU1"
_HEAD = struct.Struct(
    f"<4sIII{DIGEST_BYTES}s"
)  # kind, round, client, nothing, contract (question) or question (answer)


@dataclass(frozen=True)
class Weights:
    """A discriminator as it travels: its parameters and its spectral-norm vectors, in one row each."""

    parameters: Tensor
    vectors: Tensor


class Updates(Protocol):
    """All clients, as the server of federated averaging meets them."""

    def of(self, clients: Sequence[int], number: int, weights: Weights, pool: Images) -> Tensor:
        """What changed at each of the clients that answered (answers, parameters). Privacy: private, not sanitized."""
        ...


def make_discriminator(contract: Contract, home: Home) -> CriticBank:
    """The server's discriminator: a bank of one."""
    assert contract.critics.width is not None, "decided by the plan"
    config = CriticBankConfig(
        critic=CriticConfig(shape=contract.domain.shape, classes=contract.domain.classes, width=contract.critics.width),
        critics=1,
        adam=AdamConfig(learning_rate=contract.critics.learning_rate),
    )
    runtime = CriticBankOptions(precision=home.precision)
    return CriticBank(config, runtime, None, home.device, home.randomness.generator(home.device))


def local_updates(group: Critics, rows: list[int], weights: Weights, pool: FakePool) -> Tensor:
    """Let some critics start from the given weights, train on their own records, and say what changed.

    Privacy: private; row k depends on the records of critic k, the weights and the pool. A critic without records does
    not change.
    """
    bank = group.bank
    index = torch.tensor(rows, device=bank.device)
    start = weights.parameters.to(bank.device)
    bank.parameters[index] = start
    bank.vectors[index] = weights.vectors.to(bank.device)
    for moments in (bank.first_moment, bank.second_moment, bank.steps):
        moments[index] = 0
    for _ in range(group.settings.rounds):
        group.train(rows, pool)
    return bank.parameters[index] - start


class SimulatedUpdates:
    """All clients at once as one bank."""

    def __init__(self, data: ImageDataset, contract: Contract, home: Home) -> None:
        self._device = home.device
        assignment = slots_of_records(data, contract)
        self._critics = Critics(data, assignment, contract.limits.clients, contract.critics, home)

    def of(self, clients: Sequence[int], number: int, weights: Weights, pool: Images) -> Tensor:
        """What changed at each of the clients. Privacy: private, not sanitized."""
        if not clients:
            return weights.parameters.new_zeros(0, weights.parameters.shape[-1])
        return local_updates(self._critics, list(clients), weights, fake_pool(pool, self._device))


class RemoteUpdates:
    """Clients behind a transport; only those that take part in a round are asked."""

    def __init__(self, contract: Contract, transport: Transport) -> None:
        self.contract, self._transport = contract, transport
        self.bytes_sent = self.bytes_received = 0

    def of(self, clients: Sequence[int], number: int, weights: Weights, pool: Images) -> Tensor:
        """What changed at the clients that answered in time and validly. Privacy: private, not sanitized."""
        questions = {client: encode_question(number, client, weights, pool, self.contract) for client in clients}
        expected = {client: question_key(content) for client, content in questions.items()}
        self.bytes_sent += sum(map(len, questions.values()))
        rows = []
        for client, content in self._transport.exchange(questions) if questions else ():
            if client in expected:
                row = decode_answer(content, number, client, expected[client], weights.parameters.shape[-1])
                if row is not None:
                    del expected[client]
                    self.bytes_received += len(bytes(content))  # type: ignore[call-overload]
                    rows.append(row)
        found = torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, weights.parameters.shape[-1])
        return found.to(weights.parameters.device)


class UpdateClient:
    """A client of federated averaging: it trusts the server with its clipped update, and keeps nothing of it secret.

    It takes part once a round: a message that comes again gets the same bytes, an older one gets nothing.
    """

    def __init__(self, folder: Path, contract: Contract, membership: Membership, data: ImageDataset) -> None:
        check_membership(contract, membership, data)
        self.folder, self.contract, self.membership = folder, contract, membership
        RunFolder(folder).make_private("client", "answers")
        home = Home(Randomness(), torch.device("cpu"))
        self._critic = Critics(data, torch.zeros(len(data), dtype=torch.long), 1, contract.critics, home)

    def answer(self, content: bytes) -> bytes:
        """The clipped update, or nothing; no exception leaves."""
        try:
            return self._answer(content)
        except Exception:
            return b""

    def _answer(self, content: bytes) -> bytes:
        bank = self._critic.bank
        number, weights, pool = decode_question(content, self.contract, bank, self.membership.client)
        path = RunFolder(self.folder).private / "answers" / f"{number:08d}.bin"
        answered = sorted(self.folder.glob("private/answers/*.bin"))
        if path.exists():
            kept = path.read_bytes()
            return kept if kept[: _HEAD.size][-DIGEST_BYTES:] == question_key(content) else b""
        if answered and path.name < answered[-1].name:
            return b""
        update = self._update(weights, pool)
        clipped = clip_rows(update, self.contract.clip)[0]
        head = _HEAD.pack(_ANSWER, number, self.membership.client, 0, question_key(content))
        sealed = head + clipped.numpy().astype("<f4").tobytes()
        write_bytes(path, sealed, private=True)
        for old in answered[:-1]:
            old.unlink(missing_ok=True)
        return sealed

    def _update(self, weights: Weights, pool: Images) -> Tensor:
        """What changed at this client; nothing where its records went wrong, so that silence tells nothing of them."""
        try:
            return local_updates(self._critic, [0], weights, fake_pool(pool))
        except Exception:
            return torch.zeros_like(weights.parameters)


def settle(discriminator: CriticBank) -> None:
    """Bring the spectral-norm vectors up to date with parameters that were just changed; they are public."""
    for _ in range(INITIAL_POWER_ITERATIONS):
        found = estimate(discriminator.layout, discriminator.parameters, discriminator.vectors, training=True)
        discriminator.vectors = torch.cat(found.left, 1)


def message_bytes(contract: Contract, parameters: int, vectors: int) -> tuple[int, int]:
    """Bytes of a question and of an answer."""
    pool = contract.pool * (contract.values + 2 * contract.domain.labelled)
    return _HEAD.size + 4 * (parameters + vectors) + pool, _HEAD.size + 4 * parameters


def encode_question(number: int, client: int, weights: Weights, pool: Images, contract: Contract) -> bytes:
    """Weights and pool for one client."""
    parts = [_HEAD.pack(_QUESTION, number, client, 0, contract.digest)]
    parts += [part.detach().cpu().numpy().astype("<f4").tobytes() for part in (weights.parameters, weights.vectors)]
    parts.append(np.ascontiguousarray(pool.pixels).tobytes())
    if pool.labels is not None:
        parts.append(pool.labels.astype("<u2").tobytes())
    return b"".join(parts)


def decode_question(content: bytes, contract: Contract, bank: CriticBank, client: int) -> tuple[int, Weights, Images]:
    """Round, weights and pool; InputError for anything that was not written under this contract for this client."""
    parameters, vectors = bank.parameters.shape[1], bank.vectors.shape[1]
    if len(content) != message_bytes(contract, parameters, vectors)[0]:
        raise InputError("message: its length is not that of a question under this contract")
    kind, number, asked, _, digest = _HEAD.unpack_from(content)
    if (kind, asked, digest) != (_QUESTION, client, contract.digest) or number >= contract.limits.rounds:
        raise InputError("message: it is no question to this client under this contract")
    numbers = np.frombuffer(content, "<f4", parameters + vectors, _HEAD.size)
    if not np.isfinite(numbers).all():
        raise InputError("message: its weights are not finite")
    row = torch.from_numpy(numbers.astype(np.float32)).unsqueeze(0)
    pool, _ = messages.read_images(content, _HEAD.size + 4 * (parameters + vectors), contract.pool, contract)
    return number, Weights(row[:, :parameters], row[:, parameters:]), pool


def decode_answer(content: object, number: int, client: int, key: bytes, parameters: int) -> np.ndarray | None:
    """The update of a valid answer to this question; None for anything else.

    An update that is not finite is none: counted among the broken rows of a run, one broken client would end the run.
    """
    if not isinstance(content, bytes) or len(content) != _HEAD.size + 4 * parameters:
        return None
    if _HEAD.unpack_from(content) != (_ANSWER, number, client, 0, key):
        return None
    row = np.frombuffer(content, "<f4", offset=_HEAD.size).astype(np.float32)
    return row if bool(np.isfinite(row).all()) else None


def chosen_clients(flips: Tensor) -> list[int]:
    """The clients whose coin came up."""
    return [int(client) for client in flips.nonzero().flatten()]
