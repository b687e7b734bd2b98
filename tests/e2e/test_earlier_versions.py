"""What an earlier version began, this one continues; what it released, this one verifies; its plans cost the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.api import TrainOptions, release_early, resume, resume_annotation
from understudy.data.domain import Domain
from understudy.errors import UnderstudyError
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.privacy.budget import Budget, NoBudget
from understudy.release.release import load
from understudy.release.verify import verify
from understudy.runs.folder import RunFolder

from ..helpers.cases import EVERY_CASE, case_of
from ..helpers.data import dealt, tiny_data
from ..helpers.runs import open_to_others

VERSIONS = Path(__file__).parents[1] / "fixtures"
COMMITS = [folder.name for folder in sorted(VERSIONS.iterdir()) if folder.is_dir()]
PLANS = {commit: json.loads((VERSIONS / commit / "plans.json").read_text(encoding="utf-8")) for commit in COMMITS}
PLANNED = [(commit, name) for commit in COMMITS for name in PLANS[commit]]
QUICK_PLANS = [f"{method} default records=1797 epsilon=10" for method in ("dp-merf", "dpgan", "gs-wgan", "g-pate")]
LATER = {  # what a version did not have yet
    "e25aeaa": (
        "dp-cgan as published",
        "dp-diffusion",
        "dp-diffusion from central images",
        "gs-wgan in low frequencies with two queries for an image",
    )
}
EACH_CASE = [  # a further case of a method is slow
    pytest.param(commit, case, marks=() if case == case_of(case).name else pytest.mark.slow)
    for commit in COMMITS
    for case in EVERY_CASE
    if case not in LATER[commit]
]
MOVED = TrainOptions(moved=True)  # a fixture is a copy


def folder_of(case: str) -> str:
    return case.replace(",", "").replace(" ", "-")


def copied(commit: str, kind: str, name: str, target: Path) -> Path:
    return Path(shutil.copytree(VERSIONS / commit / kind / name, target / name))


def accesses(certificate: Any) -> list[tuple[Any, ...]]:
    return [(event.purpose, event.noise_multiplier, event.sampling, event.count) for event in certificate.events]


every_commit = pytest.mark.parametrize("commit", COMMITS)


# Runs


@every_commit
def test_every_case_was_recorded_or_is_said_to_have_come_later(commit):
    recorded = {folder.name for folder in (VERSIONS / commit / "runs").iterdir()} - {"annotated", "gan"}  # no cases
    assert recorded == {folder_of(case) for case in EVERY_CASE if case not in LATER[commit]}


@pytest.mark.parametrize(("commit", "case"), EACH_CASE)
def test_a_run_that_was_begun_is_resumed_and_costs_what_it_would_have_cost(commit, case, tmp_path):
    run = copied(commit, "runs", folder_of(case), tmp_path)
    release = resume(dealt(case, tiny_data()), run, MOVED)
    finished = load(VERSIONS / commit / "releases" / folder_of(case)).certificate
    assert release.certificate.stopped_because == finished.stopped_because
    assert accesses(release.certificate) == accesses(finished)
    assert [each.model_dump() for each in release.certificate.guarantees] == [
        each.model_dump() for each in finished.guarantees
    ]
    assert verify(run).passed


@every_commit
def test_a_run_without_privacy_and_an_annotation_are_resumed_too(commit, tmp_path):
    assert resume(tiny_data(), copied(commit, "runs", "gan", tmp_path), MOVED).certificate.not_private is not None
    annotation = copied(commit, "runs", "annotated", tmp_path)
    annotated = resume_annotation(tiny_data(), annotation, MOVED)
    finished = load(VERSIONS / commit / "releases" / "annotated").certificate
    assert annotated.certificate.headline.epsilon == finished.headline.epsilon
    assert verify(annotation).passed
    assert "seconds" not in (annotation / "progress.jsonl").read_text()
    assert RunFolder(annotation).seconds()[0] == 0.035, "which stood in the public file"
    assert open_to_others(annotation / "private") == []


@every_commit
@pytest.mark.parametrize("case", ["dpgan", "gs-wgan", "datalens"])
def test_a_run_that_was_begun_is_released_early(commit, case, tmp_path):
    run = copied(commit, "runs", folder_of(case), tmp_path)
    assert release_early(run).certificate.stopped_because.startswith("released early")
    assert verify(run).passed


# Releases


@pytest.mark.parametrize(
    ("commit", "case"),
    [*EACH_CASE, *((commit, case) for commit in COMMITS for case in ("bdp-gan published", "annotated"))],
)
def test_a_release_loads_samples_and_verifies(commit, case):
    folder = VERSIONS / commit / "releases" / folder_of(case)
    images, labels = load(folder).sample(6, labels=[0, 2])
    assert images.shape == (6, 8, 8)
    assert images.dtype == np.uint8
    assert set(labels.tolist()) <= {0, 2}
    result = verify(folder)
    assert result.passed, result
    assert 0 < result.epsilon <= load(folder).certificate.headline.epsilon


@every_commit
def test_a_release_without_privacy_loads_and_never_verifies(commit):
    folder = VERSIONS / commit / "releases" / "gan"
    assert len(load(folder).sample(2)[0]) == 2
    assert not verify(folder).passed


# Plans


def planned(name: str) -> Any:
    method, preset, records, epsilon = name.split(" ")
    implementation, count = get_method(method), int(records.split("=")[1])
    domain = Domain(
        shape=(1, 28, 28) if count == 60_000 else (1, 8, 8),
        classes=10,
        nominal_records=count,
        nominal_clients=300 if implementation.federated else None,
    )
    budget = Budget(float(epsilon.split("=")[1]), 1e-5) if implementation.private else NoBudget()
    config = configure(implementation, {}, None if preset == "default" else preset)
    try:
        return implementation.plan(config, domain, budget).as_dict()
    except UnderstudyError as error:
        return str(error)


@pytest.mark.parametrize(
    ("commit", "name"),
    [pytest.param(commit, name, marks=() if name in QUICK_PLANS else pytest.mark.slow) for commit, name in PLANNED],
)
def test_a_plan_costs_the_same_to_the_last_digit(commit, name):
    then, now = PLANS[commit][name], json.loads(json.dumps(planned(name)))
    if isinstance(then, str):
        assert now == then
        return
    config = now.pop("config")
    for group, values in then.pop("config").items():
        assert {key: config[group][key] for key in values} == values
    guessed = ("seconds", "seconds_on_gpu", "memory_bytes")  # may be guessed better than they were
    assert {key: now[key] for key in then if key not in guessed} == {
        key: value for key, value in then.items() if key not in guessed
    }
