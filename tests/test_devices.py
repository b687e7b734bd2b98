"""Where things run: what does not fit is said in one sentence."""

from types import SimpleNamespace

import pytest
import torch

from understudy.api import resume
from understudy.data.domain import Domain
from understudy.devices import cards_of, check_memory, choose_device, explained_memory_errors
from understudy.engines.learner import SlopeLearner
from understudy.errors import InputError
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.privacy.ledger import Ledger

from .helpers.cases import BUDGET, case_of
from .helpers.data import tiny_data
from .helpers.runs import tiny_train

GIB = 2**30


def test_a_plan_larger_than_the_card_is_refused_before_any_data_is_read(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a small card")
    check_memory(7 * GIB, torch.device("cuda"))
    with pytest.raises(InputError, match=r"needs about 35\.0 GiB, but a small card has 8\.0 GiB; use smaller"):
        check_memory(35 * GIB, torch.device("cuda"))


@pytest.mark.parametrize(
    ("processes", "here", "cards", "together"),
    [(1, None, 0, 1), (4, None, 4, 4), (4, None, 1, 1), (16, 8, 8, 16), (16, 8, 4, 8)],
)
def test_processes_have_a_card_each_unless_a_machine_has_fewer(processes, here, cards, together, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    if here is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    assert cards_of(processes) == together


@pytest.mark.parametrize(("case", "divided"), [("gs-wgan", True), ("pate-gan", True), ("dpgan", False)])
def test_critics_that_do_not_fit_one_card_fit_several(case, divided, monkeypatch):
    method = get_method(case_of(case).name)
    domain = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)
    plan = method.plan(configure(method, {"privacy": {"noise_multiplier": 30.0}}), domain, BUDGET)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert method.memory_of_device(plan, 1) == plan.memory_bytes
    assert (method.memory_of_device(plan, 4) < 0.6 * plan.memory_bytes) == divided


def test_the_processor_is_not_refused():
    check_memory(2**60, torch.device("cpu"))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_a_failed_allocation_becomes_one_sentence_with_a_way_out(error):
    expected = pytest.raises(InputError, match=r"out of memory on cpu.*--resume.*--device cpu")
    with expected, explained_memory_errors(torch.device("cpu")):
        raise error


def test_a_run_that_ran_out_of_memory_keeps_its_spending_and_can_be_resumed(tmp_path, monkeypatch):
    learn, calls = SlopeLearner.learn, []

    def failing(self, *arguments):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        learn(self, *arguments)

    monkeypatch.setattr(SlopeLearner, "learn", failing)
    with pytest.raises(InputError, match="out of memory"):
        tiny_train("gs-wgan", tiny_data(), tmp_path / "run")
    assert Ledger.open(tmp_path / "run" / "ledger.jsonl").events()
    assert resume(tiny_data(), tmp_path / "run").certificate.headline.epsilon > 0


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="'tpu'"):
        choose_device("tpu")
