"""One changed record reaches its own critic and its own gradient alone, bit by bit; here on the processor."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from understudy.engines.critics.bank import CriticBank

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = ["--device", "cpu", "--critics", "8", "--batch", "3", "--steps", "4", "--width", "8"]  # time to spread


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("independence", BENCHMARKS / "independence.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "independence", module)
    spec.loader.exec_module(module)
    return module


def test_one_changed_record_moves_one_critic_and_one_gradient(script):
    rows = script.look("fp32", script.parse(SMALL))
    assert len(rows) == 12
    for row in rows:
        assert row["repeats_itself"], row
        assert row["own_changed"], row
        if script.LONGER_PASS not in row["what"]:  # which may round otherwise
            assert row["others_changed"] == 0, row


def test_a_bank_whose_critics_share_anything_is_noticed(script, monkeypatch):
    original = CriticBank.train_step

    def leaking(self, critics, batch, generator=None):
        report = original(self, critics, batch, generator)
        self.parameters += 1e-7 * self.parameters.mean()
        return report

    monkeypatch.setattr(CriticBank, "train_step", leaking)
    row = script.look("fp32", script.parse(SMALL))[2]
    assert row["others_changed"] == 7
