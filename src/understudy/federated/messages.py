"""Messages between server and clients as bytes: fixed sizes, 8-bit images, and answers in 8 or 16 bits after the noise.

The length of a message follows from the contract alone, never from how many queries were routed to a client, so whoever
sees sizes learns nothing. Nothing here can run code: a message is numbers at known places.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError
from understudy.federated.contract import DIGEST_BYTES, Contract

Pixels = NDArray[np.uint8]
_QUESTION, _ANSWER = b"USQ1", b"USA1"
_QUESTION_HEAD = struct.Struct(f"<4sIII{DIGEST_BYTES}s")  # kind, round, client, queries, contract
_ANSWER_HEAD = struct.Struct(f"<4sIII{DIGEST_BYTES}s")  # kind, round, client, status, question
_STEPS_PER_DEVIATION = {8: 16.0, 16: 2048.0}
_TYPES: dict[int, np.dtype[np.signedinteger]] = {8: np.dtype("<i1"), 16: np.dtype("<i2")}


class Status(IntEnum):
    """How a client took a message."""

    ANSWERED = 0
    BUDGET = 1  # its own budget allows no more
    INVALID = 2  # not written under its contract, not for it, or not a message
    REPEATED = 3  # answered before, and the answer is not kept any more; or another message for the same round
    FAILED = 4  # something went wrong at the client; nothing is said about what


@dataclass(frozen=True)
class Images:
    """8-bit images (N, channels, height, width) and their labels (N,), or None."""

    pixels: Pixels
    labels: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True)
class Question:
    """One message to one client: images to train on, and the query images that were routed to it.

    ``queries`` is padded to the contract's slots; the first ``count`` of them are to be answered.
    """

    round: int
    client: int
    count: int
    pool: Images
    queries: Images


@dataclass(frozen=True)
class Answer:
    """A client's answer: one row for each slot, sanitized where it was asked and noise alone elsewhere."""

    round: int
    client: int
    status: Status
    question: bytes
    rows_dp: NDArray[np.float32]


def to_pixels(images: NDArray[np.float32]) -> Pixels:
    """Images in [0, 1] as they travel."""
    return (images * 255).round().clip(0, 255).astype(np.uint8)


def question_bytes(contract: Contract) -> int:
    """The length of every question under a contract."""
    labelled = contract.domain.labelled
    return _QUESTION_HEAD.size + (contract.pool + contract.limits.slots) * (contract.values + 2 * labelled)


def answer_bytes(contract: Contract) -> int:
    """The length of every answer under a contract, refusals included."""
    return _ANSWER_HEAD.size + contract.limits.slots * contract.values * contract.answer_bits // 8


def bytes_per_step(contract: Contract, steps_per_round: int) -> float:
    """Bytes to and from one participating client for each generator step."""
    return (question_bytes(contract) + answer_bytes(contract)) / steps_per_round


def encode_question(question: Question, contract: Contract) -> bytes:
    """A question as bytes."""
    head = _QUESTION_HEAD.pack(_QUESTION, question.round, question.client, question.count, contract.digest)
    parts = [head]
    for images in (question.pool, question.queries):
        parts.append(np.ascontiguousarray(images.pixels).tobytes())
        if images.labels is not None:
            parts.append(images.labels.astype("<u2").tobytes())
    content = b"".join(parts)
    if len(content) != question_bytes(contract):
        raise InputError(f"question: {len(content)} bytes, but the contract says {question_bytes(contract)}")
    return content


def decode_question(content: bytes, contract: Contract) -> Question:
    """A question from bytes; InputError where it was not written under this contract."""
    if len(content) != question_bytes(contract):
        raise InputError("message: its length is not that of a question under this contract")
    kind, number, client, count, digest = _QUESTION_HEAD.unpack_from(content)
    if kind != _QUESTION or digest != contract.digest:
        raise InputError("message: it is no question under this contract")
    if not (number < contract.limits.rounds and client < contract.limits.clients and count <= contract.limits.slots):
        raise InputError("message: its round, client or number of queries lies outside the contract")
    pool, place = read_images(content, _QUESTION_HEAD.size, contract.pool, contract)
    queries, _ = read_images(content, place, contract.limits.slots, contract)
    return Question(number, client, count, pool, queries)


def read_images(content: bytes, place: int, count: int, contract: Contract) -> tuple[Images, int]:
    """Images at a place of a message, and the place behind them."""
    pixels = np.frombuffer(content, np.uint8, count * contract.values, place).reshape(count, *contract.domain.shape)
    place += count * contract.values
    if contract.domain.classes is None:
        return Images(pixels, None), place
    labels = np.frombuffer(content, "<u2", count, place).astype(np.int64)
    if labels.size and labels.max() >= contract.domain.classes:
        raise InputError("message: a label lies outside the contract")
    return Images(pixels, labels), place + 2 * count


def question_key(content: bytes) -> bytes:
    """What an answer names the question by."""
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]


def answer_unit(contract: Contract) -> float:
    """The public scale of answers: the noise's deviation, or a quarter of the clip bound where there is less noise."""
    return max(contract.deviation, contract.clip / 4)


def quantize(rows_dp: NDArray[np.float32], contract: Contract) -> NDArray[np.signedinteger]:
    """Sanitized rows as whole numbers: a sixteenth of a deviation a step in 8 bits. Post-processing, so it is free."""
    kind = _TYPES[contract.answer_bits]
    most = float(np.iinfo(kind).max)
    steps = np.asarray(rows_dp, np.float64) * (_STEPS_PER_DEVIATION[contract.answer_bits] / answer_unit(contract))
    return steps.round().clip(-most, most).astype(kind)


def dequantize(steps: NDArray[np.signedinteger], contract: Contract) -> NDArray[np.float32]:
    """Rows from whole numbers."""
    return (steps * (answer_unit(contract) / _STEPS_PER_DEVIATION[contract.answer_bits])).astype(np.float32)


def encode_answer(answer: Answer, contract: Contract) -> bytes:
    """An answer as bytes."""
    head = _ANSWER_HEAD.pack(_ANSWER, answer.round, answer.client, int(answer.status), answer.question)
    return head + quantize(answer.rows_dp, contract).tobytes()


def decode_answer(content: object, contract: Contract) -> Answer:
    """An answer from bytes; InputError for anything that is none."""
    if not isinstance(content, bytes) or len(content) != answer_bytes(contract):
        raise InputError("answer: its length is not that of an answer under this contract")
    kind, number, client, status, question = _ANSWER_HEAD.unpack_from(content)
    if kind != _ANSWER or status not in Status.__members__.values():
        raise InputError("answer: it is no answer")
    steps = np.frombuffer(content, _TYPES[contract.answer_bits], offset=_ANSWER_HEAD.size)
    rows_dp = dequantize(steps.reshape(contract.limits.slots, contract.values), contract)
    return Answer(number, client, Status(status), question, rows_dp)
