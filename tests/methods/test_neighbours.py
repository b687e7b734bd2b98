"""Neighbouring data sets: a record more changes sanitized values and nothing else, so control flow tells nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from understudy.data.dataset import ImageDataset

from ..helpers.cases import EVERY_CASE, TAUGHT
from ..helpers.data import with_labels
from ..helpers.runs import own_state_folder, read_lines, recorded, tiny_train

TWO_CLASSES = (0, 1) * 20  # five whole micro-batches of eight
every_case = pytest.mark.parametrize(
    "case", [*EVERY_CASE, *(pytest.param(case, marks=pytest.mark.slow) for case in TAUGHT)]
)


def footprint(folder: Path) -> dict[str, Any]:
    """What a run shows besides values: its ledger, the steps it reported, its files, and the shapes of its release."""
    config = json.loads((folder / "release" / "config.json").read_text())
    for generator in (config["generator"], config["generator"].get("base", {"label_weights": None})):
        generator.pop("label_weights")  # sanitized values; their number is fixed by the declared classes
    for found_on_samples in ("shifts", "drawn_weight", "names"):  # anybody can make them from the rest
        config["generator"].pop(found_on_samples, None)
    with safe_open(folder / "release" / "generator.safetensors", framework="np") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    progress = read_lines(folder / "progress.jsonl")
    return {
        "ledger": recorded(folder),
        "progress": [(line["step"], sorted(line), line.get("epsilon_spent")) for line in progress],
        "config": config,
        "shapes": shapes,
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "diagnostics": len(list((folder / "private").glob("*.jsonl"))),
    }


@pytest.fixture(scope="module")
def footprint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, tuple[int, ...]], dict[str, Any]]:
    """The footprint of a run on one record for each label; trained once for each case and labels."""
    known: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}

    def find(case: str, labels: tuple[int, ...]) -> dict[str, Any]:
        if (case, labels) not in known:
            known[case, labels] = _trained(case, with_labels(labels), tmp_path_factory.mktemp("neighbour"))
        return known[case, labels]

    return find


def _trained(case: str, data: ImageDataset, home: Path) -> dict[str, Any]:
    with own_state_folder(home):
        tiny_train(case, data, home / "run", runtime={"micro_batch": 8})
    return footprint(home / "run")


@every_case
@pytest.mark.parametrize(
    ("without", "with_record"),
    [
        pytest.param(TWO_CLASSES, (*TWO_CLASSES, 1), id="a record that begins a new micro-batch"),
        pytest.param(TWO_CLASSES, (*TWO_CLASSES, 2), id="the first record of a class"),
        pytest.param((), (0,), id="the first record of all"),
    ],
)
def test_a_record_more_changes_values_and_never_what_is_done(case, without, with_record, footprint_of):
    first, second = footprint_of(case, without), footprint_of(case, with_record)
    for name, value in first.items():
        assert second[name] == value, name


@every_case
def test_a_record_like_no_other_changes_values_and_never_what_is_done(case, footprint_of, tmp_path):
    usual = with_labels(TWO_CLASSES)
    images = usual.images.copy()
    images[0] = 255
    images[0, :, ::2] = 0
    unusual = ImageDataset(usual.name, usual.domain, images, usual.labels)
    assert not np.array_equal(usual.images, unusual.images)
    second = _trained(case, unusual, tmp_path)
    for name, value in footprint_of(case, TWO_CLASSES).items():
        assert second[name] == value, name
