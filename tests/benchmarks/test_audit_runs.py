"""The benchmark of run audits: every private method has settings, it goes on where it was, and it judges both ways."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from understudy.methods.registry import get_method, method_names
from understudy.privacy import accounting
from understudy.privacy.events import Event

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "benchmarks/results/audit-runs.json"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "audit_runs", raising=False)
    import audit_runs

    return audit_runs


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> int:
    given = ["--methods", "dp-merf", "--runs", "1", "--controls", "1", "--results", str(folder), *words]
    monkeypatch.setattr(sys, "argv", ["audit_runs.py", *given])
    return script.main()


def test_every_private_method_has_settings(script: ModuleType):
    assert set(script.SETTINGS) == {name for name in method_names() if get_method(name).private}


def test_it_goes_on_where_it_was_and_refuses_other_settings(script: ModuleType, monkeypatch, tmp_path: Path):
    assert run(script, monkeypatch, tmp_path) == 0
    path = tmp_path / "audit-runs.json"
    whole = json.loads(path.read_text())
    assert [(row["number"], row["broken"]) for row in whole["audit_runs"]] == [(0, False), (1, True)]
    first, broken = whole["audit_runs"]
    path.write_text(json.dumps({**whole, "audit_runs": [broken]}))  # as if it had been killed
    assert run(script, monkeypatch, tmp_path) == 0
    rows = json.loads(path.read_text())["audit_runs"]
    assert rows[0] == broken
    assert (rows[1]["number"], rows[1]["broken"]) == (0, False)
    assert rows[1]["created"] >= first["created"]
    with pytest.raises(SystemExit, match="begun with other corrected_for, runs"):
        run(script, monkeypatch, tmp_path, "--runs", "2")


def test_a_run_above_its_claim_and_a_control_below_it_are_failures(script: ModuleType):
    def row(broken: bool, *exceeds: bool) -> dict[str, object]:
        attacks = {str(place): {"exceeds": each} for place, each in enumerate(exceeds)}
        return {"method": "m", "number": 0, "broken": broken, "attacks": attacks}

    assert not script.failures({"audit_runs": [row(False, False, False), row(True, False, True)]})
    assert script.failures({"audit_runs": [row(False, False, True)]})
    assert script.failures({"audit_runs": [row(True, False, False)]})


def test_the_committed_result_is_whole_and_its_claims_follow_from_its_events(script: ModuleType):
    """All methods, all runs, none above its claim, every control above it; claims recomputed for the cheapest."""
    result = json.loads(COMMITTED.read_text())
    done = {(row["method"], row["number"]) for row in result["audit_runs"]}
    assert set(result["methods"]) == set(script.SETTINGS)
    assert result["runs"] >= 20
    assert done == {(m, n) for m in result["methods"] for n in range(result["runs"] + result["controls"])}
    assert not script.failures(result)
    assert result["corrected_for"] >= len(result["methods"]) * result["runs"] * max(map(len, result["claims"].values()))
    for claim in result["claims"]["dp-merf"].values():
        events = [Event.model_validate(event) for event in claim["events"]]
        assert accounting.certified_epsilon(events, claim["delta"]) == pytest.approx(claim["claimed"])
    for row in result["audit_runs"]:
        for attack, figure in row["attacks"].items():
            claimed = result["claims"][row["method"]][attack]["claimed"]
            assert figure["exceeds"] == (figure["epsilon_lower"] > claimed)
