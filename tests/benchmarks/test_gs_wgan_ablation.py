"""The ablation of gs-wgan: every variant can be planned for the data that it is for, and says what it turns."""

from __future__ import annotations

import argparse
import importlib
import sys
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
            assert plan.events == base.events or name in ("large-batches", "fewer-subsets")
    assert plans["basis"].config.method.low_frequencies == (8,)
    assert plans["embedding-both"].config.method.queries_per_point == 4


def test_what_the_script_writes_is_a_table_of_the_results_page(script, monkeypatch, tmp_path):
    """A variant is trained, scored and written; what was not measured is said to be so."""
    small = {
        "privacy": {"subsets": 4, "queries": 32, "noise_multiplier": 10},
        "method.critics": {"width": 8, "per_step": 3, "batch": 4, "warm_iterations": 1},
        "method": {"queries_per_step": 8, "generator.width": 2},
    }
    settings = [f"--set={group}.{key}={value}" for group, values in small.items() for key, value in values.items()]
    where = ["--device", "cpu", "--commit", "a" * 40, "--results", str(tmp_path)]
    asked = ["--epsilon", "100", "--variants", "basis", "--name", "small", "--metrics", "cnn", "--samples", "300"]
    monkeypatch.setattr(sys, "argv", ["benchmarks/gs_wgan_ablation.py", "digits", *asked, *where, *settings])
    script.main()
    page = importlib.import_module("results_page")
    results = page.read_results(tmp_path)
    point = results["gs-wgan-ablation-digits-eps100-small"]["points"][0]
    assert 0 < point["figures"]["cnn"] < 1
    assert point["settings"]["method"]["low_frequencies"] == [8]
    assert point["certificate"]["guarantees"][0]["epsilon"] == point["epsilon"] < 1
    row = f"| gs-wgan ([samples](../benchmarks/results/{point['samples']})) | basis | {point['values']['seconds']} |"
    accuracy = f"not measured | {100 * point['figures']['cnn']:.1f} % |"
    assert any(line.startswith(row) and line.endswith(accuracy) for line in page.page(results).splitlines())
