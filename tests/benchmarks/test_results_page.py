"""The results page: a golden page from small files, every kind of file in its section, and no claim unchecked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ..helpers.certificates import AS_DESIGNED

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("results_page.md")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("results_page", "results_readme", "results_sections"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import results_page

    return results_page


OPEN = AS_DESIGNED | {"method": "gan", "guarantees": [], "events": [], "not_private": "not private: do not publish"}


def quality(**changes: object) -> dict[str, object]:
    """A row of the quality table with the certificate of the design document (events at epsilon 9.0301)."""
    guarantee = AS_DESIGNED["guarantees"][0] | {"epsilon": 9.0301}
    row = {
        "method": "gs-wgan",
        "dataset": "mnist",
        "epsilon": 9.0301,
        "delta": 1e-5,
        "fid": 45.67,
        "cnn_accuracy": 0.812,
    }
    origin = {"device": "NVIDIA H200", "command": "python benchmarks/headline.py gs-wgan mnist", "commit": "a" * 40}
    certificate = AS_DESIGNED | {"guarantees": [guarantee]}
    return row | origin | {"inception_score": None, "train_seconds": 123.4, "certificate": certificate} | changes


def results() -> dict[str, dict[str, object]]:
    origin = {"device": "2 CPU cores, x86_64", "command": "python x.py", "commit": "b" * 40 + "-dirty"}
    judged = {"value": 1.03, "published": 1.02, "tolerance": 0.05, "within": True}
    points = [
        {"method": "dp-merf", "values": {"epsilon": epsilon}, "epsilon": epsilon, "figures": {"cnn": 0.5, "fid": 90.0}}
        for epsilon in (1.0, 10.0)
    ]
    classifier = {"classifier": "linear_svc", "accuracy": 0.915, "published": 0.92, "seconds": 3.0, "settings": "a | b"}
    speed = {"what": "critics", "unit": "steps/s", "ours": 2000.0, "rival": 100.0, "ratio": 20.0}
    shown = {
        "audit_runs": [
            {
                "method": "dp-merf",
                "broken": broken,
                "attacks": {"black-box: x": {"epsilon_lower": bound, "guesses": 40, "correct": 21}},
            }
            for broken, bound in ((False, 0.0), (False, 0.25), (True, 0.0), (True, 3.0))
        ],
        "claims": {"dp-merf": {"black-box: x": {"claimed": 1.5}}},
        "runs": 2,
        "corrected_for": 8,
        "epsilon": 1.0,
        "delta": 1e-5,
        "canaries": 600,
        "confidence": 0.9999,
    }
    return {
        "audit-runs": {**shown, **origin},
        "check-real-data-mnist": {"check": "real-data", "dataset": "mnist", "checks": {"fid": judged}, **origin},
        "classifiers-mnist-real": {
            "classifiers": [classifier],
            "dataset": "mnist",
            "trained_on": "real data",
            "average_accuracy": 0.915,
            "published_average": 0.88,
            **origin,
        },
        "curve-epsilon": {
            "points": points,
            "picture": "curve-epsilon.png",
            **origin,
            "command": "understudy curve \\\n  x",
        },
        "gan-mnist": quality(method="gan", epsilon=None, certificate=OPEN),
        "gs-wgan-mnist-eps10": quality(),
        "memory": {"peak": 3, **origin},
        "new-method-scans-eps1": quality(dataset="scans", method="new-method", fid=None, cnn_accuracy=None),
        "speed-critics": {"rows": [speed], **origin},
    }


def test_the_page_is_the_golden_one(script: ModuleType):
    page = script.page(results())
    assert page == GOLDEN.read_text(encoding="utf-8"), "if the change is meant, write the new page to results_page.md"


def test_every_file_is_on_the_page(script: ModuleType):
    page = script.page(results())
    for section in (
        "mnist",
        "scans",
        "Classifiers",
        "Curves and comparisons",
        "Checks on real data",
        "Run audits",
        "Speed",
        "Other measurements",
    ):
        assert f"## {section}\n" in page
    assert "provisional" not in page
    assert "linear svc" in page
    assert "a \\| b" in page, "a bar in a cell does not break the table"


def test_fid_is_provisional_until_it_was_checked(script: ModuleType):
    unchecked = {stem: row for stem, row in results().items() if "check" not in row}
    assert "provisional" in script.page(unchecked)
    failed = results()
    failed["check-real-data-mnist"]["checks"]["fid"]["within"] = False
    assert "provisional" in script.page(failed)


def test_an_epsilon_that_the_events_do_not_support_is_refused(script: ModuleType):
    guarantee = AS_DESIGNED["guarantees"][0] | {"epsilon": 8.0}
    row = quality(epsilon=8.0, certificate=AS_DESIGNED | {"guarantees": [guarantee]})
    with pytest.raises(SystemExit, match=r"pld gives epsilon 9\.0.*above the claimed 8"):
        script.page({"gs-wgan-mnist-eps10": row})


def test_a_run_that_was_scored_on_the_way_shows_every_score_and_what_its_certificate_charges(script: ModuleType):
    marks = [{"steps": 50, "epsilon": 4.5, "fid": 120.0}, {"steps": 100, "epsilon": 9.0301, "fid": 41.2, "cnn": 0.81}]
    point = {"method": "dpgan", "values": {"n": 50}, "epsilon": 9.0301, "figures": {"fid": 41.2}, "curve": marks}
    point["certificate"] = quality()["certificate"]
    shown = script.page({"sweep": {"points": [point]}})
    assert "the certificate of a run charges its whole plan: epsilon 9.0301" in shown
    assert "| method | n | steps | epsilon so far | fid | cnn |" in shown
    assert "| dpgan | 50 | 50 | 4.5 | 120.00 | not measured |" in shown
    assert "| dpgan | 50 | 100 | 9.0301 | 41.20 | 81.0 % |" in shown


def test_the_epsilon_of_a_point_is_recomputed_too_where_its_certificate_is_there(script: ModuleType):
    guarantee = AS_DESIGNED["guarantees"][0] | {"epsilon": 8.0}
    point = {"method": "dpgan", "values": {}, "epsilon": 8.0, "figures": {"fid": 41.2}, "samples": "x.png"}
    point["certificate"] = AS_DESIGNED | {"guarantees": [guarantee]}
    with pytest.raises(SystemExit, match=r"pld gives epsilon 9\.0.*above the claimed 8"):
        script.page({"noise": {"points": [point]}})


def test_the_readme_keeps_everything_outside_its_marks(script: ModuleType):
    text = script.readme(f"before\n{script.START}\nold\n{script.END}\nafter\n", results())
    assert text.startswith(f"before\n{script.START}\n## Results\n")
    assert text.endswith(f"{script.END}\nafter\n")
    assert "old" not in text
    assert "### mnist: FID / CNN accuracy\n" in text
    assert "| method | epsilon 10 | as published |\n" in text
    assert "| `gs-wgan` | 45.7 / 81.2 % | 61.3 / 80.0 % |\n" in text
    assert "| `new-method` | not measured / not measured | - |\n" in text
    assert "`gan`" not in text, "nothing was promised for it"


def test_the_readme_shows_one_row_for_a_method_at_one_epsilon_and_the_pictures_of_the_least_fid(script: ModuleType):
    rows = {"gs-wgan-mnist-eps10": quality(), "gs-wgan-mnist-eps10-wide": quality(fid=33.3)}
    text = script.readme(f"{script.START}{script.END}", rows)
    assert text.count("| `gs-wgan` |") == 1
    assert "| 33.3 / 81.2 % |" in text
    assert text.count("![Samples") == 1
    assert "![Samples of gs-wgan-mnist-eps10-wide]" in text


def test_rows_without_accuracy_are_compared_by_their_inception_scores(script: ModuleType):
    scored = {"dataset": "femnist", "method": "gs-wgan-federated", "cnn_accuracy": None}
    rows = {
        "typical": quality(fid=50.0, inception_score=11.6, **scored),
        "varied": quality(fid=44.0, inception_score=9.6, **scored),
    }
    text = script.readme(f"{script.START}{script.END}", rows)
    assert "### femnist: FID / Inception score\n" in text
    assert "| `gs-wgan-federated` | 50.0 / 11.60 | 60.8 / 11.25 at epsilon 599 |\n" in text


def test_the_readme_refuses_an_epsilon_that_the_events_do_not_support(script: ModuleType):
    guarantee = AS_DESIGNED["guarantees"][0] | {"epsilon": 8.0}
    row = quality(epsilon=8.0, certificate=AS_DESIGNED | {"guarantees": [guarantee]})
    with pytest.raises(SystemExit, match="above the claimed 8"):
        script.readme(f"{script.START}{script.END}", {"gs-wgan-mnist-eps10": row})


def test_a_method_without_privacy_is_a_reference_and_claims_nothing(script: ModuleType):
    (line,) = [line for line in script.page(results()).splitlines() if "**gan**" in line]
    assert "| none, not private |" in line
    assert "verified" not in line


def test_ours_stands_with_the_published_rows_of_its_level(script: ModuleType):
    lines = script.page({"gs-wgan-mnist-eps10": quality()}).splitlines()
    table = [line for line in lines if line.startswith("| ")]
    ours = next(number for number, line in enumerate(table) if "**gs-wgan**" in line)
    assert table[ours + 1].split("|")[2].strip() == "10"
    assert table[ours - 1].split("|")[2].strip() == "-"


def test_a_run_above_its_claim_stands_out(script: ModuleType):
    files = results()
    assert "| dp-merf | black-box: x | 1.50 | 0.25 | 52.5 % | 2 of 2 | 1 of 2 | 0.00 |" in script.page(files)
    files["audit-runs"]["audit_runs"][0]["attacks"]["black-box: x"]["epsilon_lower"] = 1.6
    assert "| dp-merf | black-box: x | 1.50 | 1.60 | 52.5 % | **1 of 2** | 1 of 2 | 0.00 |" in script.page(files)


def test_the_check_notices_a_page_that_is_out_of_date(script: ModuleType, tmp_path: Path, monkeypatch):
    for name in ("PAGE", "README"):
        monkeypatch.setattr(script, name, tmp_path / f"{name}.md")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "gs-wgan-mnist-eps10.json").write_text(json.dumps(quality()))
    (tmp_path / "README.md").write_text(f"{script.START}{script.END}")
    monkeypatch.setattr(sys, "argv", ["results_page.py"])
    assert script.main() == 0
    monkeypatch.setattr(sys, "argv", ["results_page.py", "--check"])
    assert script.main() == 0
    (tmp_path / "results" / "gs-wgan-mnist-eps10.json").write_text(json.dumps(quality(fid=1.0)))
    assert script.main() == 1


def test_the_script_runs_by_itself():
    command = [sys.executable, "benchmarks/results_page.py", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "--check" in result.stdout
