"""Fleets: all clients of a federation as the server meets them, simulated in one process or reached by messages.

Both take the same round and give sanitized answers in the order of the queries. What is never answered (lost, late,
refused, invalid, beyond a limit) is zero plus full noise in both, from the server's own mechanism.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from understudy.data.dataset import ImageDataset
from understudy.engines.critics.panel import Critics, FakePool, Home
from understudy.errors import CheckError, InputError
from understudy.federated import embedding as embeddings
from understudy.federated import messages
from understudy.federated.client import fake_pool
from understudy.federated.client_mechanisms import GaussianParts
from understudy.federated.contract import Contract
from understudy.federated.messages import Images, Question, Status
from understudy.federated.routing import Routed
from understudy.privacy.mechanisms import GaussianAnswers

_SLOTS_PER_QUERY = 8  # more empty slots than this for each query are not worth filling
_PATIENCE = 3  # rounds in a row without a single answer before the server gives up


@dataclass(frozen=True)
class Round:
    """One round: the public pool, the query images, and who is secretly asked about each."""

    number: int
    pool: Images
    queries: Images
    routed: Routed


class Fleet(Protocol):
    """All clients."""

    def embedding(self, mechanism: GaussianParts, path: Path) -> Tensor:
        """The sum of all clients' embeddings with its noise, kept in ``path``: made once in a run."""
        ...

    def answers(self, asked: Round, answering: GaussianAnswers) -> Tensor:
        """Sanitized answers (queries, values) in query order, each at least as noisy as the ledger says."""
        ...


class Transport(Protocol):
    """A way to bring one question to each client and to collect the answers that come in time."""

    def exchange(self, questions: Mapping[int, bytes]) -> Iterable[tuple[int, object]]:
        """Ask all clients at once; yields (client, content) as answers arrive, until a deadline of its own."""
        ...


def slots_of_records(data: ImageDataset, contract: Contract) -> Tensor:
    """The enrolled client of each record.

    Privacy: private. Enrolment is public; a client without records keeps its place and answers zero plus noise. All
    places are alike (uniform routing, one law for all critics), so it does not matter who sits where.
    """
    numbers = data.unit_of_record("client")
    if numbers.size and numbers.max() >= contract.limits.clients:
        raise InputError(
            f"clients: the data hold more clients than the {contract.limits.clients} that are enrolled; "
            "declare nominal_clients as the number of enrolled clients"
        )
    return torch.from_numpy(numbers)


class SimulatedFleet:
    """All clients at once as one critic bank: the same law as the real thing, on a processor or a graphics card."""

    def __init__(self, data: ImageDataset, contract: Contract, home: Home) -> None:
        self.contract, self._device = contract, home.device
        assignment = slots_of_records(data, contract)
        self._critics = Critics(data, assignment, contract.limits.clients, contract.critics, home)

    def warm_start(self) -> None:
        """Every client's local warm start."""
        self._critics.warm_start()

    def catch_up(self, pool: Images) -> None:
        """After a resume: grow critics again on the generator as it stands; they are never written to disk."""
        for _ in range(max(1, self.contract.critics.warm_iterations)):
            self._critics.train_all(fake_pool(pool, self._device))

    def embedding(self, mechanism: GaussianParts, path: Path) -> Tensor:
        """What the embeddings of all clients would add up to.

        Privacy: every client's embedding is clipped by itself; the noise of all parts is added at once, which has the
        same law. One execution, drawn and charged once (``release_once``).
        """
        return mechanism.release_once(lambda: self._embedding_sum(mechanism), path)

    def _embedding_sum(self, mechanism: GaussianParts) -> Tensor:
        classes, count = embeddings.embedding_shape(self.contract)
        known = embeddings.features(self.contract, self._device)
        total = torch.zeros(classes * count, dtype=torch.float64, device=self._device)
        for client in range(self.contract.limits.clients):
            own = embeddings.client_embedding(*self._critics.records_private(client), known, classes)
            mechanism.accumulate(total, own.unsqueeze(0))
        return total

    def answers(self, asked: Round, answering: GaussianAnswers) -> Tensor:
        """What all clients would answer.

        Privacy: every critic trains on the whole pool whatever the routing; a row beyond a limit is zero before the
        noise. One execution of a routed event a query.
        """
        pool = fake_pool(asked.pool, self._device)
        for _ in range(self.contract.critics.rounds):
            self._critics.train_all(pool)
        rows_dp = answering.answer(self._rows(asked)).value_dp
        return as_travelled(rows_dp, self.contract)

    def _rows(self, asked: Round) -> Tensor:
        """Gradients (queries, values), unsanitized, zero beyond a limit; as one message a client where that is quicker.

        Privacy: which way is taken follows from the limits, and every shape too.
        """
        limits, queries = self.contract.limits, fake_pool(asked.queries, self._device)
        client = torch.from_numpy(asked.routed.client_private).to(self._device)
        if limits.clients * limits.slots > _SLOTS_PER_QUERY * limits.queries:
            rows_private = self._critics.answer(queries, client.clamp(min=0))
        else:
            slot = torch.from_numpy(asked.routed.slot_private).to(self._device)
            rows_private = self._critics.answer_messages(queries, client, slot, limits.slots)
        rows_private[client < 0] = 0
        return rows_private


class RemoteFleet:
    """Clients behind a transport, each with its own data, critic, noise and ledger."""

    def __init__(self, contract: Contract, transport: Transport) -> None:
        self.contract, self._transport = contract, transport
        self.tally: Counter[str] = Counter()
        self.bytes_sent = self.bytes_received = 0
        self._silent_rounds = 0

    def embedding(self, mechanism: GaussianParts, path: Path) -> Tensor:
        """Ask every enrolled client for its embedding and add them up; for a missing one stands zero plus its noise."""
        return mechanism.collect(lambda: self._asked_embedding(mechanism), path)

    def _asked_embedding(self, mechanism: GaussianParts) -> Tensor:
        classes, count = embeddings.embedding_shape(self.contract)
        everybody = range(self.contract.limits.clients)
        questions = {client: embeddings.encode_question(client, self.contract) for client in everybody}
        found: dict[int, Tensor] = {}
        for client, content in self._transport.exchange(questions):
            row_dp = embeddings.decode_answer(content, client, self.contract) if client in questions else None
            if row_dp is not None:
                found.setdefault(client, row_dp)
        if not found:
            raise CheckError("federation: no client sent its embedding; start the clients, then the server again")
        rows_dp = [found[client] if client in found else mechanism.lost_part(classes * count) for client in everybody]
        return torch.stack(rows_dp).sum(dim=0)

    def answers(self, asked: Round, answering: GaussianAnswers) -> Tensor:
        """Ask every enrolled client once and wait for the transport's deadline.

        Privacy: the whole round is on the server's ledger before the first message leaves, and every query has its
        zero plus full noise already; a valid answer takes its place. Nothing is asked twice or routed anew.
        """
        silent = torch.zeros(self.contract.limits.queries, self.contract.values)
        rows_dp = as_travelled(answering.answer(silent).value_dp, self.contract).numpy()
        questions = {client: self._question(asked, client) for client in range(self.contract.limits.clients)}
        expected = {client: messages.question_key(content) for client, content in questions.items()}
        self.bytes_sent += sum(map(len, questions.values()))
        for client, content in self._transport.exchange(questions):
            places = asked.routed.queries_of(client)
            answered = self._accept(client, content, asked.number, expected)
            if answered is not None:
                rows_dp[places] = answered[: len(places)]
        self._check_alive(expected)
        return torch.from_numpy(rows_dp)

    def _question(self, asked: Round, client: int) -> bytes:
        """What one client is sent: its queries first, then generated images that nobody is asked about, as padding."""
        places = asked.routed.queries_of(client)
        padding = np.arange(self.contract.limits.slots - len(places)) % len(asked.pool)
        pixels = np.concatenate([asked.queries.pixels[places], asked.pool.pixels[padding]])
        labels = None
        if asked.queries.labels is not None and asked.pool.labels is not None:
            labels = np.concatenate([asked.queries.labels[places], asked.pool.labels[padding]])
        question = Question(asked.number, client, len(places), asked.pool, Images(pixels, labels))
        return messages.encode_question(question, self.contract)

    def _accept(self, client: int, content: object, number: int, expected: dict[int, bytes]) -> np.ndarray | None:
        """The rows of a valid first answer to this round's question; None for anything else, which is only counted."""
        if client not in expected:
            self.tally["repeated or unasked"] += 1
            return None
        try:
            answer = messages.decode_answer(content, self.contract)
        except InputError:
            self.tally["invalid"] += 1
            return None
        self.bytes_received += messages.answer_bytes(self.contract)
        if (answer.round, answer.client, answer.question) != (number, client, expected[client]):
            self.tally["refused" if answer.status != Status.ANSWERED else "of another message"] += 1
            return None
        del expected[client]
        if answer.status != Status.ANSWERED:
            self.tally["refused"] += 1
            return None
        self.tally["answered"] += 1
        return answer.rows_dp

    def _check_alive(self, missing: dict[int, bytes]) -> None:
        self.tally["missing"] += len(missing)
        self._silent_rounds = self._silent_rounds + 1 if len(missing) == self.contract.limits.clients else 0
        if self._silent_rounds >= _PATIENCE:
            raise CheckError(
                f"federation: no client answered in {_PATIENCE} rounds in a row, so the run stops before it spends "
                "more; start the clients, then the server again"
            )


def travelling(pool: FakePool) -> Images:
    """Generated images in the form in which they travel."""
    labels = None if pool.labels is None else pool.labels.cpu().numpy().astype(np.int64)
    return Images(messages.to_pixels(pool.images.cpu().numpy()), labels)


def as_travelled(rows_dp: Tensor, contract: Contract) -> Tensor:
    """Sanitized rows after the rounding of the wire, so that a simulation learns from the same values."""
    steps = messages.quantize(rows_dp.cpu().numpy(), contract)
    return torch.from_numpy(messages.dequantize(steps, contract)).to(rows_dp.device)
