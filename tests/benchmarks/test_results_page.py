"""The results page: a golden page from small files, every kind of file in its section, and no claim unchecked.

Every epsilon of a federation stands with its viewer, unit and delta, and only beside figures that promise the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from understudy.privacy import accounting, viewers
from understudy.privacy.certificate import parse_certificate
from understudy.report.published import PublishedRow, published_rows

from ..helpers.certificates import AS_DESIGNED

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("results_page.md")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("results_page", "results_readme", "results_summary", "results_sections"):
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


def kept(stem: str) -> dict[str, Any]:
    """A result file of this repository."""
    content: dict[str, Any] = json.loads((ROOT / "benchmarks/results" / f"{stem}.json").read_text(encoding="utf-8"))
    return content


FEATURED = "gs-wgan-federated-femnist-eps10-pull5"


def federated(**changes: object) -> dict[str, Any]:
    """A row of a federation of 359 clients, with the certificate of the run that the README shows."""
    names = ("method", "dataset", "epsilon", "delta", "epsilon_by_viewer", "certificate")
    row = {name: deepcopy(kept(FEATURED)[name]) for name in names}
    origin = {"device": "NVIDIA H200", "command": "python benchmarks/federated.py quality", "commit": "c" * 40}
    figures = {"fid": 50.0, "inception_score": 11.6, "cnn_accuracy": None, "train_seconds": 286.0}
    return {**row, **figures, **origin, **changes}


def results() -> dict[str, dict[str, Any]]:
    origin = {"device": "2 CPU cores, x86_64", "command": "python x.py", "commit": "b" * 40 + "-dirty"}
    judged = {"value": 1.03, "published": 1.02, "tolerance": 0.05, "within": True}
    points = [
        {"method": "dp-merf", "values": {"epsilon": epsilon}, "epsilon": epsilon, "figures": {"cnn": 0.5, "fid": 90.0}}
        for epsilon in (1.0, 10.0)
    ]
    classifier = {"classifier": "linear_svc", "accuracy": 0.915, "published": 0.92, "seconds": 3.0, "settings": "a | b"}
    teacher = {"kind": "linear", "epsilon": 1.0, "accuracy": 0.9806, "steps": 322, "steps_seconds": 10.5}
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
        "claims": {"dp-merf": {"black-box: x": {"claimed": 1.5, "delta": 8e-12, "events": [{"unit": "record"}]}}},
        "runs": 2,
        "corrected_for": 8,
        "epsilon": 1.0,
        "delta": 1e-5,
        "canaries": 600,
        "confidence": 0.9999,
    }
    naming = {
        "records": 1000,
        "epsilon": 3.0,
        "cnn_accuracy": {"drawn": 0.7, "teacher": None, "evened": 0.75, "both": 0.8},
        "teacher_accuracy": 0.84,
    }
    runs = [{"fid": fid, "cnn_accuracy": 0.8, "device": "NVIDIA H200", "commit": "b" * 40} for fid in (44.0, 47.0)]
    again = {"row": "gs-wgan-mnist-eps10", "command": quality()["command"], "repeats": runs}
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
        "gs-wgan-federated-femnist-eps10": federated(),
        "gs-wgan-mnist-eps10": quality(),
        "memory": {"peak": 3, **origin},
        "new-method-scans-eps1": quality(dataset="scans", method="new-method", fid=None, cnn_accuracy=None),
        "speed-critics": {"rows": [speed], **origin},
        "naming-mnist": {"dataset": "mnist", "namings": [naming | origin]},
        "teacher-mnist": {"dataset": "mnist", "teachers": [teacher | origin]},
        "real-images-digits": {"real_images": "digits", "figures": [{"name": "cnn", "value": 0.99} | origin]},
        "repeats-gs-wgan-mnist-eps10": again,
    }


def test_the_page_is_the_golden_one(script: ModuleType):
    page = script.page(results())
    assert page == GOLDEN.read_text(encoding="utf-8"), "if the change is meant, write the new page to results_page.md"


def test_in_colour_the_residual_network_stands_beside_the_cnn_with_its_size(script: ModuleType):
    sizes = {"cnn": {"parameters": 545_098}, "resnet": {"parameters": 1_228_074}}
    row = quality(dataset="cifar-10", resnet_accuracy=0.456, networks=sizes)
    page = script.page({"gs-wgan-cifar-10-eps10": row})
    assert "| 81.2 %; 45.6 % by a residual network of 1.2 million parameters |" in page


def test_every_file_is_on_the_page(script: ModuleType):
    page = script.page(results())
    for section in (
        "mnist",
        "femnist",
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
    assert "provisional" in readme(script, unchecked)
    assert "provisional" not in readme(script, results())
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
    assert text.startswith(f"before\n{script.START}\n## How good\n")
    assert text.endswith(f"{script.END}\nafter\n")
    assert "old" not in text


def readme(script: ModuleType, rows: dict[str, dict[str, Any]]) -> str:
    return script.readme(f"{script.START}{script.END}", rows)


def test_the_readme_has_the_best_of_each_level_beside_the_best_published_and_real_images(script: ModuleType):
    rows = results() | {"wide": quality(fid=33.3, cnn_accuracy=0.8), "unlabelled": quality(cnn_accuracy=None, fid=1.0)}
    text = readme(script, rows)
    theirs = [row for row in published_rows("mnist") if row.epsilon == 10]
    nearest = min(row.fid for row in theirs if row.fid is not None)
    rightest = max(row.cnn_accuracy for row in theirs if row.cnn_accuracy is not None)
    ours = f"**33.3** `gs-wgan` | {nearest:.1f} | 1.0 | **81.2 %** `gs-wgan` | {100 * rightest:.1f} % | 99.2 %"
    assert f"| mnist | 10 | random weights | {ours} |\n" in text
    assert text.count("| mnist |") == 1
    assert "`gan`" not in text, "nothing was promised for it"
    assert "scans" not in text, "nothing was measured for it"
    assert "femnist" not in text, "a federated figure stands with its viewers, on the results page"
    assert "trained in 123 to 123 seconds each (NVIDIA H200)" in " ".join(text.split())


def test_real_images_of_data_that_nobody_published_are_those_that_were_measured_by_the_same_networks(
    script: ModuleType,
):
    colour = {"dataset": "cells", "resnet_accuracy": 0.7, "networks": {"resnet": {"parameters": 1}}}
    figures = [{"name": "cnn", "value": 0.81}, {"name": "fid", "value": 2.04}]
    rows = {"cells": quality(**colour), "real-images-cells": {"real_images": "cells", "figures": figures}}
    ours = "**45.7** `gs-wgan` | - | {} | **70.0 %** `gs-wgan` | - | {} |"
    assert ours.format("2.0", "-") in readme(script, rows), "a CNN is no residual network"
    figures.append({"name": "resnet", "value": 0.95})
    assert ours.format("2.0", "95.0 %") in readme(script, rows)


def test_the_readme_says_what_attacks_found_and_whether_they_could(script: ModuleType):
    files = results()
    text = " ".join(readme(script, files).split())
    assert "2 whole runs of each of 1 methods with 600 planted images: 0 of 2 bounds exceed the claim" in text
    assert "the same attacks see it for 1 of 1 methods" in text
    files["audit-runs"]["audit_runs"][0]["attacks"]["black-box: x"]["epsilon_lower"] = 1.6
    files["audit-runs"]["audit_runs"][3]["attacks"]["black-box: x"]["epsilon_lower"] = 1.4
    text = " ".join(readme(script, files).split())
    assert "1 of 2 bounds exceed the claim" in text
    assert "the same attacks see it for 0 of 1 methods" in text


def test_the_readme_counts_accidents_and_hostile_files_and_shows_a_few_lines_of_speed(script: ModuleType):
    files = results() | {
        "faults": {"faults": 421, "came_too_late": 62, "violations": ["x"]},
        "fuzz": {"cases": 130100, "findings": []},
        "speed-startup": {
            "rows": [results()["speed-critics"]["rows"][0] | {"what": "understudy --help (rival: import torch)"}]
        },
    }
    text = " ".join(readme(script, files).split())
    assert "421 kills, full disks and damaged files, 62 of which came too late to hit: 1 lost" in text
    assert "130,100 forged or broken ones: 0 got through" in text
    assert (
        "| understudy --help (rival: import torch) (machine not recorded) | steps/s | 2,000.0 | 100.0 | 20.0 |" in text
    )
    assert "| critics |" not in text


def test_the_page_begins_with_one_table_for_each_data_set(script: ModuleType):
    text = script.in_short(results())
    assert "### mnist: FID / CNN accuracy\n" in text
    assert "| method | epsilon 10 | as published |\n" in text
    assert "| `gs-wgan` | 45.7 / 81.2 % | 61.3 / 80.0 % |\n" in text
    assert "| `new-method` | not measured / not measured | - |\n" in text
    assert "`gan`" not in text, "nothing was promised for it"
    assert text in script.page(results())


def test_in_short_a_method_has_one_row_at_one_epsilon_and_the_pictures_are_of_the_least_fid(script: ModuleType):
    rows = {"gs-wgan-mnist-eps10": quality(), "gs-wgan-mnist-eps10-wide": quality(fid=33.3)}
    text = script.in_short(rows)
    assert text.count("| `gs-wgan` |") == 1
    assert "| 33.3 / 81.2 % |" in text
    assert text.count("![Samples") == 1
    assert "![Samples of gs-wgan-mnist-eps10-wide]" in text


def test_in_short_rows_with_a_teacher_stand_by_themselves(script: ModuleType):
    text = script.in_short({name: kept(name) for name in ("gs-wgan-mnist-eps10", "gs-wgan-mnist-eps10-teacher")})
    assert "| `gs-wgan` | 28.8 / 94.9 % |" in text
    assert "| `gs-wgan` with a teacher | 29.2 / 97.8 % |" in text


def test_a_row_of_which_no_grid_was_kept_has_no_link_to_one(script: ModuleType):
    assert "](../benchmarks/results/gs-wgan-mnist-eps10.png)" in script.own_cells("gs-wgan-mnist-eps10", quality())[0]
    assert script.own_cells("gs-wgan-mnist-eps10", quality(grid=False))[0] == "**gs-wgan**"


def test_rows_without_accuracy_are_compared_by_their_inception_scores(script: ModuleType):
    rows = {"typical": federated(), "varied": federated(fid=44.0, inception_score=9.6)}
    text = script.in_short(rows)
    assert "### femnist: FID / Inception score\n" in text
    assert text.count("| `gs-wgan-federated` | 50.0 / 11.60 |") == text.count("| `gs-wgan-federated` |") == 1


def test_the_readme_refuses_an_epsilon_that_the_events_do_not_support(script: ModuleType):
    guarantee = AS_DESIGNED["guarantees"][0] | {"epsilon": 8.0}
    row = quality(epsilon=8.0, certificate=AS_DESIGNED | {"guarantees": [guarantee]})
    with pytest.raises(SystemExit, match="above the claimed 8"):
        script.readme(f"{script.START}{script.END}", {"gs-wgan-mnist-eps10": row})


def test_a_method_without_privacy_is_a_reference_and_claims_nothing(script: ModuleType):
    (line,) = [line for line in script.page(results()).splitlines() if "**gan**" in line]
    assert "| none, not private |" in line
    assert "recomputed" not in line


def test_recomputed_is_not_called_verified(script: ModuleType):
    """The page sees certificates without their releases: no hash, config or plan is compared here."""
    assert "verified" not in script.page(results())


def test_ours_stands_with_the_published_rows_of_its_level(script: ModuleType):
    lines = script.page({"gs-wgan-mnist-eps10": quality()}).splitlines()
    table = [line for line in lines if line.startswith("| ")]
    ours = next(number for number, line in enumerate(table) if "**gs-wgan**" in line)
    assert table[ours + 1].split("|")[3].strip() == "10"
    assert table[ours - 1].split("|")[2].strip() == "-"


def test_a_run_above_its_claim_stands_out(script: ModuleType):
    files = results()
    assert "| dp-merf | record | black-box: x | 1.50 | 0.25 | 52.5 % | 2 of 2 | 1 of 2 | 0.00 |" in script.page(files)
    files["audit-runs"]["audit_runs"][0]["attacks"]["black-box: x"]["epsilon_lower"] = 1.6
    assert "| dp-merf | record | black-box: x | 1.50 | 1.60 | 52.5 % | **1 of 2** | 1 of 2 | 0.00 |" in script.page(
        files
    )


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


# Federations: like beside like


def written(script: ModuleType, rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Both parts of the page of some rows."""
    return {"in short": script.in_short(rows), "details": script.details(rows)}


def refused(script: ModuleType, rows: dict[str, dict[str, Any]], words: str) -> None:
    """Neither part of the page is written, and one sentence says why."""
    for write in (script.in_short, script.details):
        with pytest.raises(SystemExit, match=words) as stopped:
            write(rows)
        assert "\n" not in str(stopped.value)


def table_with(text: str, words: str) -> list[dict[str, str]]:
    """The rows of the table that has ``words`` in its head, by the names of its columns."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|") and words in line)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]]
    end = next((number for number, line in enumerate(lines[start:]) if not line.startswith("|")), len(cells))
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:end]]


PUBLIC, SERVER = "epsilon against `public` (add-remove)", "epsilon against `server` (replace-one)"
COALITION = "epsilon against `client`, a coalition of 1 (add-remove)"


@pytest.mark.parametrize("name", ["in short", "details"])
def test_the_papers_figure_against_the_server_stands_beside_ours_against_the_server(script: ModuleType, name: str):
    text = written(script, {FEATURED: federated()})[name]
    rows = table_with(text, SERVER)
    (ours,) = [row for row in rows if "gs-wgan-federated" in row["method"]]
    (paper,) = [row for row in rows if row["method"].startswith("GS-WGAN, federated")]
    assert ours[SERVER].startswith("2,219.8822 (")
    assert paper[SERVER] == "599"
    assert ours[PUBLIC].startswith("9.998 (")
    assert paper[PUBLIC] == "not stated"
    assert ours[COALITION].startswith("10.0298 (")
    assert paper[COALITION] == "not stated"
    prose = " ".join(text.split())
    assert "Protected is one client with all its images" in prose
    assert "Epsilon is at delta 0.00115, and in brackets at delta 0.00025" in prose


def test_a_method_that_promises_nothing_against_the_server_says_so(script: ModuleType):
    rows = table_with(script.details({"fedavg": kept("fedavg-gan-femnist-eps10")}), SERVER)
    (ours,) = [row for row in rows if "**fedavg-gan**" in row["method"]]
    assert ours[SERVER] == "none"
    (paper,) = [row for row in rows if row["method"].startswith("Fed-Avg GAN")]
    assert (paper[PUBLIC], paper[SERVER]) == ("9,990,000", "not stated")


def test_epsilon_at_the_smaller_delta_leaves_room_for_the_limits(script: ModuleType):
    certificate = parse_certificate(federated()["certificate"])
    (ours, *_) = table_with(script.details({FEATURED: federated()}), SERVER)
    for guarantee, column in zip(certificate.guarantees, (PUBLIC, SERVER, COALITION), strict=True):
        stated = float(ours[column].split("(")[1].rstrip(")").replace(",", ""))
        part = 0.0 if guarantee.viewer == "server" else viewers.limits_delta(guarantee.limits, stated)
        seen = viewers.events_seen(certificate.events, guarantee)
        for accountant in ("pld", "fourier"):
            assert accounting.epsilon(seen, 2.5e-4 - part, accountant) <= stated
        assert stated <= 1.01 * accounting.epsilon(seen, 2.5e-4)
        assert stated > guarantee.epsilon


@pytest.mark.parametrize("missing", ["viewer", "unit", "delta", "adjacency"])
def test_a_federated_figure_that_leaves_something_out_is_refused(script: ModuleType, missing: str):
    row = federated()
    for number in range(3):
        changed = deepcopy(row)
        del changed["certificate"]["guarantees"][number][missing]
        refused(script, {FEATURED: changed}, f"{FEATURED}: guarantee {number + 1} does not state its {missing}")


def swap_the_first_two(row: dict[str, Any]) -> None:
    guarantees = row["certificate"]["guarantees"]
    guarantees[:2] = guarantees[1::-1]


def promise_records(row: dict[str, Any]) -> None:
    row["certificate"]["guarantees"][0]["unit"] = "record"


def forget_the_clients(row: dict[str, Any]) -> None:
    row["certificate"]["assumed_public"].pop()


def forget_the_limits(row: dict[str, Any]) -> None:
    row["certificate"]["guarantees"][0]["delta_parts"] = {"accountant": 1.15e-3}


def claim_less_against_the_server(row: dict[str, Any]) -> None:
    row["certificate"]["guarantees"][1]["epsilon"] = row["epsilon_by_viewer"]["server"] = 599.0


MIXED_UP: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "server's epsilon as the row's": (lambda row: row.update(epsilon=2219.8822), "epsilon 2219.8822 stands beside"),
    "another delta": (lambda row: row.update(delta=1e-5), "delta 1e-05 stands beside a certificate that says 0.00115"),
    "viewers": (lambda row: row["epsilon_by_viewer"].update(server=599), "epsilon_by_viewer .* stands beside"),
    "server first": (swap_the_first_two, "the first guarantee is against server"),
    "records for clients": (promise_records, "mixes units or deltas"),
    "number of clients": (forget_the_clients, "does not say how many clients"),
    "limits for nothing": (forget_the_limits, "the limits of answers cost"),
    "less than the events cost": (claim_less_against_the_server, "pld gives epsilon 2219.* above the claimed 599"),
}


@pytest.mark.parametrize("name", MIXED_UP)
def test_a_federated_row_that_says_other_than_its_certificate_is_refused(script: ModuleType, name: str):
    change, words = MIXED_UP[name]
    row = federated()
    change(row)
    refused(script, {FEATURED: row}, words)


def with_published(script: ModuleType, monkeypatch: pytest.MonkeyPatch, dataset: str, like: str, **fields: Any) -> None:
    """Plant a change into the published rows of one method."""

    def changed(row: PublishedRow) -> PublishedRow:
        same = (row.dataset, row.like) == (dataset, like) and row.epsilon is not None
        return replace(row, **fields) if same else row

    def planted(name: str | None = None) -> list[PublishedRow]:
        return [changed(row) for row in published_rows(name)]

    for module in (script, sys.modules["results_summary"]):
        monkeypatch.setattr(module, "published_rows", planted)


@pytest.mark.parametrize("missing", ["viewer", "unit", "delta"])
def test_a_published_figure_that_leaves_something_out_is_refused(script: ModuleType, monkeypatch, missing: str):
    with_published(script, monkeypatch, "femnist", "gs-wgan-federated", **{missing: None})
    refused(script, {FEATURED: federated()}, f"'GS-WGAN, federated, .* epsilon 599 without its {missing}")


@pytest.mark.parametrize(
    ("dataset", "like", "fields", "words"),
    [
        ("femnist", "gs-wgan-federated", {"viewer": "public"}, "epsilon 599 .* different adjacency"),
        ("femnist", "gs-wgan-federated", {"unit": "record"}, "is for one record, but gs-wgan-federated"),
        ("femnist", "gs-wgan-federated", {"adjacency": "add-remove"}, "epsilon 599 .* different adjacency"),
        ("mnist", "gs-wgan", {"viewer": "server"}, "epsilon 10 .* against server.* different viewer"),
        ("mnist", "gs-wgan", {"adjacency": "replace-one"}, "epsilon 10 .* different adjacency"),
    ],
)
def test_a_planted_mix_up_of_two_promises_is_refused(
    script: ModuleType, monkeypatch, dataset: str, like: str, fields: dict[str, str], words: str
):
    rows = {FEATURED: federated(), "gs-wgan-mnist-eps10": quality()}
    assert all(written(script, rows).values())
    with_published(script, monkeypatch, dataset, like, **fields)
    refused(script, rows, words)


def test_a_published_figure_at_another_delta_gets_a_table_of_its_own(script: ModuleType, monkeypatch):
    with_published(script, monkeypatch, "femnist", "gs-wgan-federated", delta=1e-5)
    for text in written(script, {FEATURED: federated()}).values():
        _, first, second = text.split("Protected is one client")
        assert "599" not in first
        assert "599" in second
        assert "Epsilon is at delta 1e-05" in " ".join(second.split())


def with_events(**purposes: str) -> dict[str, Any]:
    """The row of a run that bought these things beside its critics' answers: same event, so the epsilon still holds."""
    row = quality()
    certificate = deepcopy(row["certificate"])
    certificate["events"] += [{**certificate["events"][0], "count": 1, "planned": 1, "executed": 1}] * len(purposes)
    for event, purpose in zip(certificate["events"][1:], purposes.values(), strict=True):
        event["purpose"] = purpose
    return row | {"certificate": certificate}


@pytest.mark.parametrize(
    ("purposes", "said"),
    [
        ({}, "random weights"),
        ({"start": "class-wise mean embedding"}, "an embedding"),
        ({"start": "class-wise central images"}, "central images"),
        ({"start": "the teacher's gradients"}, "random weights; named by a teacher"),
    ],
)
def test_how_a_row_starts_is_read_from_its_events(script: ModuleType, purposes, said):
    assert script.start_of(with_events(**purposes)) == said


def test_what_starts_from_an_embedding_and_what_does_not_are_two_lines_of_the_readme(script: ModuleType):
    text = readme(script, {name: kept(name) for name in ("dpgan-mnist-eps10-paper-adaptive", "dpgan-mnist-eps10-long")})
    lines = [line for line in text.splitlines() if line.startswith("| mnist |")]
    assert [line.split(" | ")[2] for line in lines] == ["an embedding", "random weights"]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (("dpgan-mnist-eps10-paper-adaptive", "dpgan-mnist-eps10-long"), ["`dpgan`", "`dpgan` from random weights"]),
        (("dpgan-mnist-eps10-paper-adaptive", "dp-merf-mnist-eps10"), ["`dp-merf`", "`dpgan`"]),  # it has no other rows
    ],
)
def test_in_short_a_method_has_two_rows_where_only_some_of_its_rows_bought_a_start(script: ModuleType, rows, named):
    text = script.in_short({name: kept(name) for name in rows})
    assert [line.split(" | ")[0].lstrip("| ") for line in text.splitlines() if line.startswith("| `d")] == named


def test_people_and_records_of_one_data_set_never_share_a_table(script: ModuleType):
    people = kept("dp-merf-mnist-writers-eps10") | {"dataset": "mnist"}
    rows = {"dp-merf-mnist-eps10": kept("dp-merf-mnist-eps10"), "people": people}
    for text in written(script, rows).values():
        parts = [part for part in text.split("\n\n") if "| **dp-merf**" in part or "| `dp-merf` |" in part]
        assert len(parts) == 2
        assert text[: text.index(parts[1])].rstrip("\n").splitlines()[-1].startswith("Protected is one person")
    lines = [line for line in readme(script, rows).splitlines() if line.startswith("| mnist |")]
    assert ["for one person at delta 0.0001" in line for line in lines] == [False, True]


def test_central_and_federated_rows_of_one_data_set_each_say_which_figures_they_show(script: ModuleType):
    people = kept("dp-merf-mnist-writers-eps10") | {"dataset": "femnist"}
    text = script.in_short({"people": people, "clients": federated()})
    assert "### femnist: FID / CNN accuracy\n" in text
    assert "| method | FID / Inception score | epsilon against" in text


def test_in_colour_the_readme_takes_the_residual_network_as_others_do(script: ModuleType):
    text = readme(script, {"dp-diffusion-cifar-10-eps10-teacher": kept("dp-diffusion-cifar-10-eps10-teacher")})
    (line,) = [line for line in text.splitlines() if line.startswith("| cifar-10 |")]
    assert "**65.8 %** `dp-diffusion` | 43.3 %" in line


def test_records_and_clients_of_one_data_set_never_share_a_table(script: ModuleType):
    rows = {"gs-wgan-mnist-eps10": quality(), "dealt": federated(dataset="mnist")}
    for text in written(script, rows).values():
        lines = [line for line in text.splitlines() if line.startswith(("| **gs-wgan", "| `gs-wgan"))]
        assert len(lines) == 2
        tables = [part for part in text.split("\n\n") if any(line in part for line in lines)]
        assert len(tables) == 2


def test_points_of_a_federation_have_a_column_for_each_viewer(script: ModuleType):
    point = {"method": "gs-wgan-federated", "values": {"noise multiplier": 1.8}, "figures": {"fid": 50.0}}
    point |= {"epsilon": 9.998, "certificate": federated()["certificate"]}
    (row,) = table_with(script.page({"noise": {"points": [point]}}), SERVER)
    assert row[SERVER].startswith("2,219.8822 (")
    assert row["noise multiplier"] == "1.8"
    del point["certificate"]
    with pytest.raises(SystemExit, match="noise: a federated row needs its certificate"):
        script.page({"noise": {"points": [point]}})


def test_an_audit_of_a_federation_states_its_unit(script: ModuleType):
    shown = results()["audit-runs"]
    for run in shown["audit_runs"]:
        run["method"] = "fedavg-gan"
    shown["claims"] = {"fedavg-gan": shown["claims"]["dp-merf"]}
    (claim,) = shown["claims"]["fedavg-gan"].values()
    claim["events"] = [{"unit": "client"}]
    assert "| fedavg-gan | client | black-box: x | 1.50 |" in script.page({"audit-runs": shown})
    claim["events"] = [{}]
    with pytest.raises(SystemExit, match="run audits of fedavg-gan do not state the one unit"):
        script.page({"audit-runs": shown})


def test_a_delta_that_is_large_for_so_many_units_is_remarked(script: ModuleType):
    rows = {FEATURED: federated(), "gs-wgan-mnist-eps10": quality()}
    assert script.page(rows).count("A remark on delta") == 1
    for text in written(script, rows).values():
        prose = " ".join((*script.remark(rows), text))
        prose = " ".join(prose.split())
        assert "1e-05, the customary one, times 60,000 records is 0.60 (mnist)" in prose
        assert "0.00115 times 359 clients is 0.41 (femnist)" in prose
        assert "**Delta is large here:** 0.00115 times 359 clients is 0.41" in prose
        assert "0.00115 times 866 clients is 1.00 (as published)" in prose
        assert "At 0.00025 it is 0.09 for 359." in prose
    few = AS_DESIGNED | {"guarantees": [AS_DESIGNED["guarantees"][0] | {"epsilon": 9.0301}]}
    few["assumed_public"] = ["nominal_records: 999", *AS_DESIGNED["assumed_public"][1:]]
    assert "A remark on delta" not in script.page({"gs-wgan-mnist-eps10": quality(certificate=few)})


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_a_mix_up_ends_the_script_with_one_sentence_and_writes_nothing(script, tmp_path, monkeypatch, arguments):
    monkeypatch.setattr(script, "ROOT", tmp_path)
    for name in ("PAGE", "README"):
        monkeypatch.setattr(script, name, tmp_path / f"{name}.md")
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["results_page.py", *arguments])
    (tmp_path / "results").mkdir()
    row = federated()
    del row["certificate"]["guarantees"][1]["viewer"]
    (tmp_path / "results" / f"{FEATURED}.json").write_text(json.dumps(row))
    (tmp_path / "README.md").write_text(f"{script.START}{script.END}")
    with pytest.raises(SystemExit, match="guarantee 2 does not state its viewer; every epsilon of a federation"):
        script.main()
    assert (tmp_path / "README.md").read_text() == f"{script.START}{script.END}"
    assert not (tmp_path / "PAGE.md").exists()


@pytest.mark.parametrize("stem", [FEATURED, "gs-wgan-federated-femnist-eps10", "gs-wgan-federated-mnist-writers-eps10"])
def test_what_the_guide_quotes_against_the_server_is_what_the_certificates_say(stem: str):
    told = (ROOT / "docs/federated.md").read_text(encoding="utf-8")
    assert f"{kept(stem)['epsilon_by_viewer']['server']:,}" in told
