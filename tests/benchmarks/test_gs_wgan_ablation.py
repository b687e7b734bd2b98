"""The ablation of gs-wgan: every variant can be planned for the data that it is for, and says what it turns."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

from understudy.data.domain import Domain
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gs_wgan_ablation")


def test_every_variant_can_be_planned_and_differs_from_its_base_in_what_it_is_named_for(script):
    method, plans = get_method("gs-wgan"), {}
    noise = ["privacy.noise_multiplier=10", "privacy.embedding_noise_multiplier=10"]  # nothing to calibrate
    for variant in script.VARIANTS:
        preset, config = script.settings_of(variant, argparse.Namespace(device="cpu", settings=noise))
        plans[variant] = method.plan(configure(method, config, preset), MNIST, Budget(10, 1e-5))
    for start, events in (("", 1), ("embedding-", 2)):
        base = plans[f"{start}base"]
        assert len(base.events) == events
        for name in script.TURNED:
            plan = plans[start + name]
            assert (plan.config == base.config) == (name == "base")
            assert plan.events == base.events or name == "large-batches"
    assert plans["basis"].config.method.low_frequencies == (8,)
    assert plans["embedding-both"].config.method.queries_per_point == 4


def test_a_result_is_a_table_of_the_results_page(script, tmp_path):
    """What the script writes is recognised there, with what was not measured as such."""
    page = importlib.import_module("results_page")
    point = {
        "method": "gs-wgan",
        "values": {"variant": "basis", "seconds": 12},
        "epsilon": 9.9,
        "figures": {"fid": None, "cnn": 0.5},
        "samples": "x.png",
    }
    path = tmp_path / "gs-wgan-ablation-mnist-eps10.json"
    origin = {"dataset": "mnist", "device": "a card", "command": "python x", "commit": "a" * 40}
    script.write(path, {**origin, "points": [point], "failed": []})
    results = page.read_results(tmp_path)
    assert page.kind_of(results[path.stem]) == "curve"
    table = page.page(results)
    assert "| gs-wgan ([samples](../benchmarks/results/x.png)) | basis | 12 | 9.9 | not measured | 50.0 % |" in table
