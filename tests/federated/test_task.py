"""A client in its folder whose data are empty, incomplete or unreadable: it takes part, or says so before it does."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from understudy.data.npz import write_arrays
from understudy.errors import InputError
from understudy.federated import messages
from understudy.federated.fedavg_gan import FedAvgConfig, FedAvgGan
from understudy.federated.messages import Status
from understudy.federated.task import ClientTerms, open_client, read_spending, write_client
from understudy.methods.config import build_config

from .helpers import BUDGET, federated_data, members, tiny_contract
from .test_client import question
from .test_fedavg import CONFIG as FEDAVG


@pytest.fixture(scope="module")
def contract():
    return tiny_contract(federated_data())


@pytest.fixture
def home(contract, tmp_path):
    """The folder of client 0, whose images lie in an archive."""
    own = members(federated_data(), 0)
    source = tmp_path / "data.npz"
    write_arrays(source, {"x": own.images[:, 0], "y": own.labels})
    write_client(tmp_path / "home", contract, terms(source))
    return tmp_path / "home"


def terms(source) -> ClientTerms:
    return ClientTerms(client=0, epsilon=1e5, delta=1e-5, source=str(source))


def spoil(source, how: str) -> None:
    if how == "gone":
        source.unlink()
    elif how == "not an archive":
        source.write_bytes(b"rubbish")
    elif how == "no images":
        write_arrays(source, {"x": np.zeros((4, 8), dtype=np.uint8), "y": np.zeros(4, dtype=np.int64)})
    else:
        write_arrays(source, {"x": np.zeros((4, 8, 8), dtype=np.uint8), "y": np.full(4, 99)})


UNREADABLE = ("gone", "not an archive", "no images", "labels outside")


def noise_alone(answer: bytes, contract) -> bool:
    decoded = messages.decode_answer(answer, contract)
    assert decoded.status == Status.ANSWERED
    return stats.kstest(decoded.rows_dp.ravel() / contract.deviation, "norm").pvalue > 1e-6


@pytest.mark.parametrize("how", ["archive", "folder", "class folders"])
def test_a_client_without_images_takes_part_like_any_other(how, contract, tmp_path):
    source = tmp_path / "data"
    if how == "archive":
        source = tmp_path / "data.npz"
        write_arrays(source, {"x": np.zeros((0, 8, 8), dtype=np.uint8), "y": np.zeros(0, dtype=np.int64)})
    else:
        source.mkdir()
        for name in "012" if how == "class folders" else "":
            (source / name).mkdir()
    write_client(tmp_path / "home", contract, terms(source))
    client = open_client(tmp_path / "home")
    answer = client.answer(question(contract, count=3))
    assert len(answer) == messages.answer_bytes(contract)
    assert noise_alone(answer, contract)
    assert client.spending()["answers"] == 3, "it pays like any other"


@pytest.mark.parametrize("names", [None, ("cat", "dog", "owl")])
def test_a_client_may_have_no_image_of_a_class(names, tmp_path):
    """Class folders by number, or by the names in the contract: one that is missing says nothing is there."""
    plain = tiny_contract(federated_data())
    contract = plain.model_copy(update={"domain": plain.domain.model_copy(update={"class_names": names})})
    for label in (0, 2):
        folder = tmp_path / "data" / (names[label] if names else str(label))
        folder.mkdir(parents=True)
        Image.fromarray(np.full((8, 8), 50 * label, dtype=np.uint8)).save(folder / "one.png")
    write_client(tmp_path / "home", contract, terms(tmp_path / "data"))
    client = open_client(tmp_path / "home")
    assert client._critic._records_private.labels.tolist() == [0, 2]
    assert messages.decode_answer(client.answer(question(contract)), contract).status == Status.ANSWERED


@pytest.mark.parametrize("how", UNREADABLE)
def test_data_that_cannot_be_read_are_an_error_before_a_client_takes_part(how, home):
    spoil(home.parent / "data.npz", how)
    with pytest.raises(InputError):
        open_client(home)
    assert not (home / "private").exists()
    assert not (home / "ledger.jsonl").exists()


@pytest.mark.parametrize("how", UNREADABLE)
def test_data_that_cannot_be_read_any_more_silence_nobody(how, home, contract):
    """Neither the number nor the size nor the status of the answers shows it; the owner alone is told."""
    first = open_client(home).answer(question(contract, number=0, count=2))
    spoil(home.parent / "data.npz", how)
    told: list[str] = []
    client = open_client(home, told.append)
    answer = client.answer(question(contract, number=1, count=2))
    assert (len(answer), noise_alone(answer, contract)) == (len(first), True)
    assert messages.decode_answer(first, contract).status == Status.ANSWERED
    assert client.spending()["answers"] == 4
    assert len(told) == 1
    assert told[0].startswith("data: they cannot be read now, so this client answers with noise alone")


def test_a_client_of_federated_averaging_goes_on_without_a_change_of_its_own(tmp_path):
    data, method = federated_data(), FedAvgGan()
    contract = method.contract(method.plan(build_config(FedAvgConfig, FEDAVG), data.domain, BUDGET))
    own = members(data, 0)
    source = tmp_path / "data.npz"
    write_arrays(source, {"x": own.images[:, 0], "y": own.labels})
    write_client(tmp_path / "home", contract, terms(source))
    open_client(tmp_path / "home")
    source.unlink()
    client = open_client(tmp_path / "home")
    assert not client._critic.bank.active.any()


def test_a_lost_ledger_is_told_by_spending_too(home, contract):
    assert read_spending(home)["answers"] == 0
    open_client(home).answer(question(contract, count=2))
    assert read_spending(home)["answers"] == 2
    (home / "ledger.jsonl").unlink()
    with pytest.raises(InputError, match="its spending is unknown"):
        read_spending(home)
    with pytest.raises(InputError, match="its spending is unknown"):
        open_client(home)
    shutil.rmtree(home / "private")
    assert read_spending(home)["answers"] == 0


def test_spending_is_not_read_from_a_ledger_that_lost_records(home, contract):
    """The client refuses it, so its owner must not be told less than was spent either."""
    client = open_client(home)
    for number in range(2):
        client.answer(question(contract, number=number, count=2))
    lines = (home / "ledger.jsonl").read_text().splitlines(keepends=True)
    (home / "ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(InputError, match="its spending is unknown"):
        read_spending(home)
