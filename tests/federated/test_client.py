"""The client core: what it spends, what it sends, what it refuses, and what survives a crash."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from understudy.errors import BudgetError, InputError
from understudy.federated import client as client_module
from understudy.federated import messages
from understudy.federated.client import Client, Membership
from understudy.federated.messages import Images, Question, Status
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger

from ..helpers.runs import open_to_others
from .helpers import GENEROUS, federated_data, make_client, members, tiny_contract


@pytest.fixture(scope="module")
def data():
    return federated_data()


@pytest.fixture(scope="module")
def contract(data):
    return tiny_contract(data)


def question(contract, count=2, number=0, client=0, seed=0) -> bytes:
    random = np.random.default_rng(seed)

    def images(amount):
        pixels = random.integers(0, 256, (amount, *contract.domain.shape), dtype=np.uint8)
        return Images(pixels, random.integers(0, contract.domain.classes, amount))

    asked = Question(number, client, count, images(contract.pool), images(contract.limits.slots))
    return messages.encode_question(asked, contract)


def status_of(answer: bytes, contract) -> Status:
    return messages.decode_answer(answer, contract).status


def test_an_answer_is_on_the_ledger_before_it_leaves(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    answer = client.answer(question(contract, count=3))
    assert status_of(answer, contract) == Status.ANSWERED
    event = Ledger.open(client.folder / "ledger.jsonl").events()[0]
    assert (event.executed, event.unit, event.sampling.kind, event.sensitivity) == (3, "client", "none", "2C")
    assert event.planned == contract.limits.answers


def test_no_answer_leaves_when_the_ledger_cannot_be_written(data, contract, tmp_path, monkeypatch):
    client = make_client(tmp_path, contract, data)

    def full_disk(*_):
        raise InputError("ledger: no space")

    monkeypatch.setattr(Ledger, "_write", full_disk)
    answer = messages.decode_answer(client.answer(question(contract)), contract)
    assert answer.status == Status.FAILED
    assert not answer.rows_dp.any()


def test_a_message_that_comes_again_gets_the_same_bytes_and_costs_nothing(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    asked = question(contract, count=2)
    first = client.answer(asked)
    assert client.answer(asked) == first
    again = make_client(tmp_path, contract, data)  # another process
    assert again.answer(asked) == first
    assert again.spending()["answers"] == 2


def test_another_message_for_an_answered_round_gets_nothing(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    client.answer(question(contract, number=1))
    for asked in (question(contract, number=1, seed=1), question(contract, number=0)):
        answer = messages.decode_answer(client.answer(asked), contract)
        assert answer.status == Status.REPEATED
        assert not answer.rows_dp.any()
    assert client.spending()["answers"] == 2


def test_an_answer_lost_in_a_crash_stays_spent_and_is_never_made_again(data, contract, tmp_path, monkeypatch):
    client = make_client(tmp_path, contract, data)

    def crash(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(client_module, "write_bytes", crash)
    with pytest.raises(KeyboardInterrupt):
        client.answer(question(contract, count=2))
    monkeypatch.undo()
    revived = make_client(tmp_path, contract, data)
    assert revived.spending()["answers"] == 2
    assert status_of(revived.answer(question(contract, count=2)), contract) == Status.REPEATED


def test_its_private_folder_is_its_owners_alone_and_an_older_one_is_closed(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    client.answer(question(contract))
    private = client.folder / "private"
    assert {path.name for path in private.rglob("*")} == {"answers", "00000000.bin", "critic.safetensors"}
    assert open_to_others(private) == []
    for path in (private, private / "answers", private / "answers" / "00000000.bin"):
        path.chmod(0o755)
    make_client(tmp_path, contract, data)  # started again
    assert open_to_others(private) == []


def test_old_answers_are_not_kept_for_ever(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    for number in range(4):
        client.answer(question(contract, number=number, count=1))
    assert len(list((client.folder / "private" / "answers").iterdir())) == 2
    assert status_of(client.answer(question(contract, number=0, count=1)), contract) == Status.REPEATED


def test_it_refuses_past_the_limit_of_the_contract_whatever_the_server_asks(data, contract, tmp_path):
    slots = contract.limits.slots
    tight = contract.model_copy(update={"limits": contract.limits.model_copy(update={"answers": slots + 1})})
    client = make_client(tmp_path, tight, data)
    statuses = [status_of(client.answer(question(tight, number=n, count=slots)), tight) for n in range(2)]
    assert statuses == [Status.ANSWERED, Status.BUDGET]
    assert status_of(client.answer(question(tight, number=2, count=0)), tight) == Status.ANSWERED
    assert client.spending()["answers"] == slots


@pytest.mark.parametrize("epsilon", [0.01, 0.9])
def test_a_budget_below_the_contract_is_refused_before_anything_is_asked(data, contract, tmp_path, epsilon):
    """Running out on the way would be a dropout that depends on the routing."""
    with pytest.raises(BudgetError, match="raise the client's budget or do not take part"):
        make_client(tmp_path, contract, data, budget=Budget(epsilon=epsilon, delta=1e-5))


def test_a_budget_that_was_lowered_since_is_kept(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    client.answer(question(contract, count=3))
    del client
    with pytest.raises(BudgetError, match="do not take part"):
        make_client(tmp_path, contract, data, budget=Budget(epsilon=0.9, delta=1e-5))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda asked: asked[:-1], id="short"),
        pytest.param(lambda asked: asked + b"\0", id="long"),
        pytest.param(lambda asked: b"", id="empty"),
        pytest.param(lambda asked: b"XXXX" + asked[4:], id="another kind"),
        pytest.param(lambda asked: asked[:4] + b"\xff\xff\xff\x7f" + asked[8:], id="a round that never comes"),
        pytest.param(lambda asked: asked[:8] + b"\x01\0\0\0" + asked[12:], id="another client"),
        pytest.param(lambda asked: asked[:12] + b"\xff\0\0\0" + asked[16:], id="more queries than slots"),
        pytest.param(lambda asked: asked[:16] + bytes(16) + asked[32:], id="another contract"),
        pytest.param(lambda asked: asked[:-1] + b"\xff", id="a label that does not exist"),
    ],
)
def test_what_is_no_question_of_its_contract_is_refused_and_changes_nothing(spoil, data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    before = {path: path.read_bytes() for path in client.folder.rglob("*") if path.is_file()}
    answer = client.answer(spoil(question(contract)))
    assert status_of(answer, contract) == Status.INVALID
    assert len(answer) == messages.answer_bytes(contract)
    assert before == {path: path.read_bytes() for path in client.folder.rglob("*") if path.is_file()}


def test_records_that_break_the_critic_are_answered_with_noise_alone(data, contract, tmp_path, monkeypatch):
    """A failure that depends on the records must not show, neither in the status nor in silence."""
    client = make_client(tmp_path, contract, data)

    def quote_data(*_):
        raise ValueError(f"a pixel is {data.images[0, 0, 0, 0]}")

    monkeypatch.setattr(Client, "_work", quote_data)
    answer = messages.decode_answer(client.answer(question(contract)), contract)
    assert answer.status == Status.ANSWERED
    assert stats.kstest(answer.rows_dp.ravel() / contract.deviation, "norm").pvalue > 1e-6
    assert client.spending()["answers"] == 2


def test_a_failure_of_the_client_itself_says_nothing_about_itself(data, contract, tmp_path, monkeypatch):
    client = make_client(tmp_path, contract, data)

    def quote_data(*_):
        raise ValueError(f"a pixel is {data.images[0, 0, 0, 0]}")

    monkeypatch.setattr(Client, "_save", quote_data)
    answer = messages.decode_answer(client.answer(question(contract)), contract)
    assert answer.status == Status.FAILED
    assert not answer.rows_dp.any()


@pytest.mark.parametrize("lost", ["gone", "emptied", "older", "gone with the critic"])
def test_a_ledger_that_lost_what_it_held_is_refused_and_nothing_is_answered(data, contract, tmp_path, lost):
    client = make_client(tmp_path, contract, data)
    client.answer(question(contract, count=2))
    ledger = client.folder / "ledger.jsonl"
    if lost == "emptied":
        ledger.write_text("")
    elif lost == "older":
        ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    else:
        ledger.unlink()
    if lost == "gone with the critic":
        (client.folder / "private" / "critic.safetensors").unlink()
    for _ in range(2):  # trying again does not help
        with pytest.raises(InputError, match="its spending is unknown and nothing is answered; bring the file back"):
            make_client(tmp_path, contract, data)
    assert ledger.exists() == (lost in ("emptied", "older")), "no new ledger takes the place of a lost one"


def test_a_client_whose_records_come_and_go_keeps_its_critic(data, contract, tmp_path):
    make_client(tmp_path, contract, data).answer(question(contract, count=1))
    without = Client(tmp_path / "client-0", contract, Membership(0, GENEROUS), data.subset([]))
    rows = messages.decode_answer(without.answer(question(contract, number=1)), contract).rows_dp
    assert stats.kstest(rows.ravel() / contract.deviation, "norm").pvalue > 1e-6
    assert not without._critic.bank.active.any()
    back = make_client(tmp_path, contract, data)
    assert back._critic.bank.active.all()
    assert back._critic.bank.parameters.equal(without._critic.bank.parameters)


def test_answers_have_one_length_whatever_was_asked_and_whoever_holds_what(data, contract, tmp_path):
    sizes = set()
    empty = Client(tmp_path / "empty", contract, Membership(0, GENEROUS), data.subset([]))
    for client in (make_client(tmp_path, contract, data), empty):
        for number, count in enumerate((0, 1, contract.limits.slots)):
            asked = question(contract, count=count, number=number)
            sizes |= {len(client.answer(asked)), len(client.answer(asked + b"x"))}
    assert sizes == {messages.answer_bytes(contract)}


def test_a_client_does_the_same_work_whatever_it_is_asked(data, contract, tmp_path, monkeypatch):
    """Training steps and images looked at follow from the contract, so the time of an answer tells nothing."""

    def work(count: int) -> list[tuple[str, int]]:
        client, done = make_client(tmp_path / str(count), contract, data), []
        train, look = client._critic.train, client._critic.answer
        watched = {
            "train": lambda critics, pool: done.append(("train", len(pool.images))) or train(critics, pool),
            "answer": lambda pool, routing: done.append(("look", len(routing))) or look(pool, routing),
        }
        for name, function in watched.items():
            monkeypatch.setattr(client._critic, name, function)
        client.answer(question(contract, count=count))
        return done

    expected = [("train", contract.pool), ("look", contract.limits.slots)]
    assert work(0) == work(1) == work(contract.limits.slots) == expected


def test_rows_that_nobody_asked_for_are_noise_alone_and_cost_nothing(data, tmp_path):
    """With hardly any noise what is left of a row is its gradient: an asked row shows one, a padding row does not."""
    quiet = tiny_contract(data, privacy={"noise_multiplier": 10.0}).model_copy(
        update={"noise_multiplier": 0.01, "clip": 1e-3, "answer_bits": 16}
    )
    client = make_client(tmp_path, quiet, data, budget=Budget(1e6, 0.5))
    rows = messages.decode_answer(client.answer(question(quiet, count=5)), quiet).rows_dp
    norms = np.linalg.norm(rows, axis=1) / quiet.clip
    assert (norms[:5] > 0.6).all()  # clipped to 1
    assert (norms[5:] < 0.4).all()  # 64 values of deviation 0.02: 0.16, and 0.4 is out of reach
    assert client.spending()["answers"] == 5


def test_an_asked_answer_is_clipped_and_carries_full_noise(data, contract, tmp_path):
    """Chi-square of the rows around zero; false-alarm rate below 1e-6, and noise that is 10 % off is noticed."""
    clients = [make_client(tmp_path / str(place), contract, data, budget=Budget(1e6, 0.5)) for place in range(3)]
    rows = np.concatenate(
        [
            messages.decode_answer(client.answer(question(contract, count=12, number=n)), contract).rows_dp
            for client in clients
            for n in range(3)
        ]
    )
    values = rows.ravel() / contract.deviation
    assert values.size == 108 * 64
    square = float((values**2).mean())  # 1 + at most (C / deviation)^2 / 64 + 1/(12 * 16^2)
    slack = 4.9 * math.sqrt(2 / values.size)
    assert 1 - slack < square < 1.001 + slack
    assert 1.1**2 * (1 - slack) > 1.001 + slack, "so much more noise falls outside, but for one time in a million"


def test_the_critic_is_kept_between_messages_and_not_changed_by_queries(data, contract, tmp_path):
    client = make_client(tmp_path, contract, data)
    before = client._critic.bank.parameters.clone()
    client.answer(question(contract, count=1))
    trained = client._critic.bank.parameters.clone()
    assert not trained.equal(before)
    revived = make_client(tmp_path, contract, data)
    assert revived._critic.bank.parameters.equal(trained)


def test_a_folder_of_another_contract_is_refused(data, contract, tmp_path):
    make_client(tmp_path, contract, data)
    other = contract.model_copy(update={"federation": "1" * 32})
    with pytest.raises(InputError, match="another contract"):
        make_client(tmp_path, other, data)


def test_the_noise_of_a_started_membership_cannot_be_lowered(data, contract, tmp_path):
    make_client(tmp_path, contract, data).answer(question(contract))
    weaker = contract.model_copy(update={"noise_multiplier": 0.1})
    with pytest.raises(InputError, match="another mechanism"):
        make_client(tmp_path, weaker, data)


def test_a_client_that_is_not_enrolled_or_has_other_images_is_told_so(data, contract, tmp_path):
    with pytest.raises(InputError, match="the contract enrols 3"):
        Client(tmp_path, contract, Membership(3, GENEROUS), members(data, 0))
    unlabelled = federated_data(labelled=False)
    with pytest.raises(InputError, match="declare the data accordingly"):
        Client(tmp_path, contract, Membership(0, GENEROUS), members(unlabelled, 0))


def test_a_membership_has_a_number():
    with pytest.raises(InputError, match="number them from 0"):
        Membership(-1, GENEROUS)
    assert dataclasses.is_dataclass(Membership)
