"""The method that docs/adding-a-method.md builds: planned, trained, verified and kept to the rules, as printed."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from understudy.api import TrainOptions, train
from understudy.methods import registry
from understudy.release.verify import verify

from ..helpers.cases import BUDGET, Case
from ..helpers.data import tiny_data
from ..helpers.runs import read_lines
from ..test_architecture import hard_to_read, imports_from_later_stages, secrets_from_elsewhere, untold_costs

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
SOURCE, LINE, ENTRY = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
((NAME, PLACE),) = ast.literal_eval(f"{{{LINE}}}").items()
MODULE = PLACE.split(":")[0]


@pytest.fixture
def case(tmp_path, monkeypatch) -> Case:
    """The method in the registry, under the name and at the place that the page gives it."""
    path = tmp_path / "example.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, MODULE, module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(registry._METHODS, NAME, PLACE)
    return eval(f"{{{ENTRY}}}", {"Case": Case})[NAME]


def test_it_trains_within_its_budget_reports_what_it_says_and_verifies(case, tmp_path):
    data, run = tiny_data(), tmp_path / "run"
    release = train(case.name, data, BUDGET, run, TrainOptions(config=case.config()))
    assert verify(run).passed
    assert release.certificate.headline.epsilon <= BUDGET.epsilon
    assert {key for line in read_lines(run / "progress.jsonl") for key in line} <= {*case.public_values, "step"}
    images, labels = release.sample(5, labels=[0, 2])
    assert images.shape == (5, 8, 8)
    assert set(labels.tolist()) <= {0, 2}


def test_its_noise_is_calibrated_to_the_budget_unless_it_is_given(case):
    method = registry.get_method(NAME)
    domain = tiny_data().domain
    calibrated = method.plan(method.config_type(), domain, BUDGET)
    assert 9.9 < calibrated.epsilon <= 10
    again = method.plan(calibrated.config, domain, BUDGET)
    assert again == calibrated


@pytest.mark.parametrize("rule", [imports_from_later_stages, hard_to_read, untold_costs, secrets_from_elsewhere])
def test_it_keeps_the_rules_of_the_architecture(rule):
    assert list(rule(f"{MODULE.removeprefix('understudy.').replace('.', '/')}.py", ast.parse(SOURCE))) == []
