"""The client: one member of a federation with its data, its critic, its budget and its ledger; it knows no Flower.

A question comes in as bytes and an answer goes out as bytes, and that is all that leaves. Whatever the server asks, the
client trains on its own records and the public pool, clips and noises by its own contract, records the spending before
the answer exists, and refuses past its own budget. A message that comes twice gets the same answer, byte for byte.

The folder of a client: ``contract.json``, ``client.json`` (slot and own budget), ``ledger.jsonl``, and ``private/``
with the critic and the last answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from understudy.data.dataset import ImageDataset
from understudy.engines.critics.panel import Critics, FakePool, Home
from understudy.errors import BudgetError, InputError
from understudy.federated import embedding as embeddings
from understudy.federated import messages
from understudy.federated.client_mechanisms import GaussianMessages
from understudy.federated.contract import DIGEST_BYTES, Contract
from understudy.federated.messages import Answer, Question, Status
from understudy.files import read_tensors, write_bytes, write_tensors
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.folder import RunFolder

_CPU = torch.device("cpu")
_KEPT_ANSWERS = 2
_MARK = "ledger"  # in a critic's file: where the ledger stood when it was saved
_NO_QUESTION = bytes(DIGEST_BYTES)


@dataclass(frozen=True)
class Membership:
    """Who a client is in its federation, and what it is ready to spend there (against the server: replace-one)."""

    client: int
    budget: Budget

    def __post_init__(self) -> None:
        if self.client < 0:
            raise InputError(f"client: {self.client} is no number of an enrolled client; number them from 0")


class Client:
    """One client in its folder.

    Privacy: everything in here is private; the way out is ``answer``. Adjacency is replace-one of all its records: a
    client that holds none, or whose records break its critic, answers zero plus noise like any other, so that neither
    an error nor silence depends on its records.
    """

    def __init__(
        self,
        folder: Path,
        contract: Contract,
        membership: Membership,
        data: ImageDataset,
        randomness: Randomness | None = None,
    ) -> None:
        check_membership(contract, membership, data)
        check_affordable(contract, membership.budget)
        self.folder, self.contract, self.membership = folder, contract, membership
        RunFolder(folder).make_private("client", "answers")
        self._mechanism = self._open_ledger(randomness or Randomness())
        home = Home(randomness or Randomness(), _CPU)
        assignment = torch.zeros(len(data), dtype=torch.long)
        self._critic = Critics(data, assignment, 1, contract.critics, home)
        self._restore()

    def answer(self, content: bytes) -> bytes:
        """The answer to a question, always of the same length; a refusal says no more than its status.

        Privacy: one execution for each answered query, on disk before its noise is drawn; critic and slots are worked
        on in full whatever the question asks, so the time does not follow the routing. No exception leaves: its text
        could quote data.
        """
        try:
            return self._answer(content)
        except Exception:  # whatever it is, the server must not read it
            return self._refusal(Status.FAILED, content)

    def _answer(self, content: bytes) -> bytes:
        if embeddings.is_question(content, self.membership.client, self.contract):
            return self._embed()
        try:
            question = messages.decode_question(content, self.contract)
        except InputError:
            return self._refusal(Status.INVALID, content)
        if question.client != self.membership.client:
            return self._refusal(Status.INVALID, content)
        key = messages.question_key(content)
        if self._answered_before(question.round):
            return self._repeat(question, key, content)
        rows_private = self._rows(question)
        try:
            rows_dp = self._mechanism.answer(rows_private, question.count, f"round {question.round}")
        except BudgetError:
            return self._refusal(Status.BUDGET, content, question.round)
        assert rows_dp is not None, "checked above"
        sealed = self._seal(question.round, Status.ANSWERED, key, rows_dp.numpy())
        write_bytes(self._answer_path(question.round), sealed, private=True)
        self._save(question.round)
        return sealed

    def _embed(self) -> bytes:
        """The client's embedding with its own noise; made once, and the same bytes ever after.

        Privacy: replacing the records moves it by at most 2C, C = 1: one Gaussian, on disk before the noise is drawn.
        """
        assert self._embedding is not None, "its contract has one"
        path = RunFolder(self.folder).private / "embedding.bin"
        if not path.exists():
            row_dp = self._embedding.answer(self._embedding_row(), 1, "embedding")
            if row_dp is None:
                return b""  # paid for, and lost in a crash: it is never made again
            sealed = embeddings.encode_answer(row_dp[0], self.membership.client, self.contract)
            write_bytes(path, sealed, private=True)
            self._save(self._last_round)
        return path.read_bytes()

    def _embedding_row(self) -> Tensor:
        """The embedding (1, values), unsanitized; zero where anything about the records went wrong."""
        classes, count = embeddings.embedding_shape(self.contract)
        try:
            known = embeddings.features(self.contract, _CPU)
            return embeddings.client_embedding(*self._critic.records_private(), known, classes).unsqueeze(0)
        except Exception:
            return torch.zeros(1, classes * count)

    # --- spending

    def spending(self) -> dict[str, float | int | str]:
        """What the client has spent and may still spend, for itself to read."""
        return spending(self._ledger, self.contract, self.membership)

    def _open_ledger(self, randomness: Randomness) -> GaussianMessages:
        contract = self.contract
        self._ledger = open_ledger(self.folder)
        answers = GaussianMessages(self._ledger, randomness, clip=contract.clip, event=contract.answer_event())
        self._embedding: GaussianMessages | None = None
        if (embedding := contract.embedding_event()) is not None:
            self._embedding = GaussianMessages(self._ledger, randomness, clip=1.0, event=embedding)
        return answers

    # --- the critic

    def _rows(self, question: Question) -> Tensor:
        """What the critic says about every slot, unsanitized; zero where anything about the records went wrong.

        Privacy: a failure may depend on the records, so nobody outside may notice it: the answer is noise alone.
        """
        try:
            return self._work(question)
        except Exception:
            return torch.zeros(self.contract.limits.slots, self.contract.values)

    def _work(self, question: Question) -> Tensor:
        """Train on the pool, then look at every slot: gradients (slots, values), unsanitized."""
        for _ in range(self.contract.critics.rounds):
            self._critic.train(slice(0, 1), fake_pool(question.pool))
        routing = torch.zeros(len(question.queries), dtype=torch.long)
        return self._critic.answer(fake_pool(question.queries), routing)

    def _restore(self) -> None:
        """The critic as it was left, or one that was warmed up on its own records against a throw-away generator."""
        path = _critic_path(self.folder)
        if path.exists():
            tensors, metadata = read_tensors(path)
            if metadata.get("contract") != self.contract.digest.hex():
                raise InputError(f"client: {path} belongs to another contract; enrol in another folder")
            active = self._critic.bank.active.clone()  # the records may have come or gone since
            self._critic.bank.load_state({**tensors, "active": active})
        else:
            self._critic.warm_start()
            self._save(-1)

    def _save(self, number: int) -> None:
        metadata = {"contract": self.contract.digest.hex(), "round": str(number), _MARK: self._ledger.mark}
        write_tensors(_critic_path(self.folder), self._critic.bank.state(), metadata)
        for old in range(number - 2 * _KEPT_ANSWERS, number - _KEPT_ANSWERS + 1):
            self._answer_path(old).unlink(missing_ok=True)

    # --- answers

    @property
    def _last_round(self) -> int:
        return max((int(key.removeprefix("round ")) for key in self._mechanism.account.keys), default=-1)

    def _answered_before(self, number: int) -> bool:
        """Whether this round, or a later one, was answered: an old round never comes back."""
        return number <= self._last_round

    def _repeat(self, question: Question, key: bytes, content: bytes) -> bytes:
        """The same answer to the same message; nothing to any other message of a round that is over."""
        path = self._answer_path(question.round)
        if path.exists():
            kept = path.read_bytes()
            if messages.decode_answer(kept, self.contract).question == key:
                return kept
        return self._refusal(Status.REPEATED, content, question.round)

    def _refusal(self, status: Status, content: bytes, number: int = 0) -> bytes:
        """An answer that holds nothing, as long as any other."""
        key = messages.question_key(content) if isinstance(content, bytes) else _NO_QUESTION
        rows = np.zeros((self.contract.limits.slots, self.contract.values), dtype=np.float32)
        return self._seal(number, status, key, rows)

    def _seal(self, number: int, status: Status, key: bytes, rows_dp: np.ndarray) -> bytes:
        return messages.encode_answer(Answer(number, self.membership.client, status, key, rows_dp), self.contract)

    def _answer_path(self, number: int) -> Path:
        return RunFolder(self.folder).private / "answers" / f"{number:08d}.bin"


def fake_pool(images: messages.Images, device: torch.device = _CPU) -> FakePool:
    """Images that travelled, as critics take them."""
    labels = None if images.labels is None else torch.from_numpy(images.labels).to(device)
    return FakePool((torch.from_numpy(images.pixels.copy()).float() / 255).to(device), labels)


def check_membership(contract: Contract, membership: Membership, data: ImageDataset) -> None:
    """Public facts only: the declared domain must be the contract's."""
    if membership.client >= contract.limits.clients:
        raise InputError(
            f"client: {membership.client}, but the contract enrols {contract.limits.clients}, numbered from 0"
        )
    agreed, found = contract.domain, data.domain
    if (agreed.shape, agreed.classes) != (found.shape, found.classes):
        raise InputError(
            f"data: images are {'x'.join(map(str, found.shape))} with classes {found.classes}, but the contract says "
            f"{'x'.join(map(str, agreed.shape))} with classes {agreed.classes}; declare the data accordingly"
        )


# --- what a client is ready to spend, what it has spent, and that its record of it is whole


def check_affordable(contract: Contract, budget: Budget) -> None:
    """Refuse to take part with a budget that does not pay for all answers that the contract foresees.

    Privacy: a client that ran out on its way would drop out depending on how often it was asked, and delta pays only
    for the limit in the contract. So it is decided here, before any routing.
    """
    cost = accounting.certified_epsilon(contract.client_events(), budget.delta)
    if cost > budget.epsilon:
        raise BudgetError(
            f"budget: the {contract.limits.answers} answers of this contract cost a client epsilon {cost:g} at delta "
            f"{budget.delta:g}, more than {budget.epsilon:g}; raise the client's budget or do not take part"
        )


def _critic_path(folder: Path) -> Path:
    """Where a client keeps its critic, with the mark of the ledger it rests on."""
    return RunFolder(folder).private / "critic.safetensors"


def open_ledger(folder: Path) -> Ledger:
    """The ledger of a client; a new one only where the client has not taken part yet.

    Privacy: a client that has a critic or answers but no ledger, or one that does not hold what it held when its critic
    was saved, has lost the record of its spending, so it must not go on to count from there.
    """
    path, critic = RunFolder(folder).ledger, _critic_path(folder)
    if path.exists():
        ledger = Ledger.open(path)
        if critic.exists() and not ledger.has_passed(read_tensors(critic)[1].get(_MARK, "")):
            raise lost_ledger(folder)
        return ledger
    if critic.exists() or any(RunFolder(folder).private.glob("answers/*.bin")):
        raise lost_ledger(folder)
    return Ledger.create(path)


def lost_ledger(folder: Path) -> InputError:
    """The one sentence about a ledger that is gone or has lost records."""
    return InputError(
        f"ledger: {RunFolder(folder).ledger} does not hold what it held when this client last answered, so its "
        "spending is unknown and nothing is answered; bring the file back from a copy, or take part in a new "
        "federation only"
    )


def spending(ledger: Ledger, contract: Contract, membership: Membership) -> dict[str, float | int | str]:
    """What a ledger says was spent against the server, by replace-one, and what may still be."""
    delta, purpose = membership.budget.delta, contract.answer_event().purpose
    known = ledger.events()
    spent = [event.charged(planned=0, executed=event.executed) for event in known if event.executed]
    return {
        "client": membership.client,
        "answers": sum(event.executed or 0 for event in known if event.purpose == purpose),
        "most_answers": contract.limits.answers,
        "epsilon": accounting.certified_epsilon(spent, delta) if spent else 0.0,
        "most_epsilon": membership.budget.epsilon,
        "delta": delta,
        "unit": "client",
        "adjacency": "replace-one",
        "viewer": "server",
    }
