"""Messages as bytes: what goes in comes out, lengths are fixed, and rounding is small against the noise."""

from __future__ import annotations

import numpy as np
import pytest

from understudy.errors import InputError
from understudy.federated import messages
from understudy.federated.messages import Answer, Images, Question, Status

from .helpers import federated_data, tiny_contract


@pytest.fixture(scope="module", params=[(8, True), (16, False)], ids=["8 bits, labelled", "16 bits, unlabelled"])
def contract(request):
    bits, labelled = request.param
    return tiny_contract(federated_data(labelled=labelled), method={"answer_bits": bits})


def some_images(contract, count, seed=0) -> Images:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, *contract.domain.shape), dtype=np.uint8)
    classes = contract.domain.classes
    return Images(pixels, None if classes is None else random.integers(0, classes, count))


def test_a_question_arrives_as_it_was_sent(contract):
    sent = Question(2, 1, 3, some_images(contract, contract.pool), some_images(contract, contract.limits.slots, 1))
    content = messages.encode_question(sent, contract)
    assert len(content) == messages.question_bytes(contract)
    found = messages.decode_question(content, contract)
    assert (found.round, found.client, found.count) == (2, 1, 3)
    for before, after in ((sent.pool, found.pool), (sent.queries, found.queries)):
        assert np.array_equal(before.pixels, after.pixels)
        assert (before.labels is None and after.labels is None) or np.array_equal(before.labels, after.labels)


def test_an_answer_arrives_as_it_was_sent_up_to_a_fraction_of_the_noise(contract):
    shape = (contract.limits.slots, contract.values)
    rows = np.random.default_rng(0).normal(0, contract.deviation, shape).astype(np.float32)
    content = messages.encode_answer(Answer(1, 2, Status.ANSWERED, b"k" * 16, rows), contract)
    assert len(content) == messages.answer_bytes(contract)
    found = messages.decode_answer(content, contract)
    assert (found.round, found.client, found.status, found.question) == (1, 2, Status.ANSWERED, b"k" * 16)
    assert np.abs(found.rows_dp - rows).max() <= contract.deviation / 31


def test_values_beyond_the_range_are_cut_and_never_wrap(contract):
    rows = np.array([[1e9, -1e9] * (contract.values // 2)] * contract.limits.slots, dtype=np.float32)
    found = messages.dequantize(messages.quantize(rows, contract), contract)
    assert (found[:, ::2] > 7 * contract.deviation).all()
    assert (found[:, 1::2] < -7 * contract.deviation).all()


@pytest.mark.parametrize("content", [b"", b"x" * 10, None, 7, "text", bytes(10**6)])
def test_what_is_no_answer_is_refused(content, contract):
    with pytest.raises(InputError, match="answer"):
        messages.decode_answer(content, contract)


def test_an_unknown_status_is_refused(contract):
    rows = np.zeros((contract.limits.slots, contract.values), dtype=np.float32)
    content = messages.encode_answer(Answer(0, 0, Status.ANSWERED, bytes(16), rows), contract)
    with pytest.raises(InputError, match="it is no answer"):
        messages.decode_answer(content[:12] + b"\x63\0\0\0" + content[16:], contract)


def test_a_question_that_does_not_fit_the_contract_cannot_be_sent(contract):
    wrong = Question(0, 0, 0, some_images(contract, contract.pool + 1), some_images(contract, contract.limits.slots))
    with pytest.raises(InputError, match="but the contract says"):
        messages.encode_question(wrong, contract)


def test_bytes_per_generator_step_meet_the_target_for_femnist():
    """359 clients, 28x28 images, 960,000 queries: at most 75,000 bytes to and from a client for each step."""
    from understudy.data.domain import Domain
    from understudy.federated.gs_wgan import FederatedConfig, GsWganFederated, federation_contract
    from understudy.privacy.budget import Budget

    domain = Domain(shape=(1, 28, 28), classes=36, nominal_records=50_000, nominal_clients=359)
    config = FederatedConfig.model_validate({"privacy": {"queries": 960_000, "noise_multiplier": 1.6}})
    plan = GsWganFederated().plan(config, domain, Budget(10, 1.15e-3))
    assert plan.epsilon < 10
    contract = federation_contract(plan.config, domain)
    assert messages.bytes_per_step(contract, plan.config.method.steps_per_round) < 75_000
