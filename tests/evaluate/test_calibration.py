"""Calibrated accuracy: ratios of ratios, and reference accuracies that are computed once."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from understudy.evaluate import calibration
from understudy.evaluate.calibration import ratio, reference_accuracies, summarise
from understudy.evaluate.classifiers import ClassifierSetup
from understudy.evaluate.downstream import DownstreamResult, LabelledImages, downstream_accuracy
from understudy.evaluate.parallel import Crew, DownstreamProgress
from understudy.evaluate.private_cache import default_folder

Digits = tuple[LabelledImages, LabelledImages]
NAMES = ("gaussian_nb", "bernoulli_nb")
SETUP = ClassifierSetup(10)


def result(name: str, accuracy: float) -> DownstreamResult:
    return DownstreamResult(name, accuracy, 1.0, 10, 10, 10, "settings")


def test_calibrated_is_the_mean_of_the_ratios_as_in_the_paper() -> None:
    results = {"mlp": result("mlp", 0.79), "gaussian_nb": result("gaussian_nb", 0.64)}
    summary = summarise(results, {"mlp": 0.98, "gaussian_nb": 0.56})
    assert summary.average == pytest.approx(0.715)
    assert summary.calibrated == pytest.approx((0.79 / 0.98 + 0.64 / 0.56) / 2)
    assert [figure["name"] for figure in summary.figures()] == ["average_accuracy", "calibrated_accuracy"]
    assert summarise(results, None).calibrated is None
    assert len(summarise(results, None).figures()) == 1
    assert (ratio(0.5, 0.0), ratio(0.0, 0.0)) == (1.0, 0.0)


def test_references_are_the_accuracies_after_training_on_real_data(digits: Digits) -> None:
    found = reference_accuracies(NAMES, digits, SETUP, Crew(), None)
    assert found == {name: downstream_accuracy(name, *digits, SETUP).accuracy for name in NAMES}


def test_references_are_kept_for_their_owner_and_found_again(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "private"
    heard: list[DownstreamProgress] = []
    first = reference_accuracies(NAMES, digits, SETUP, Crew(listener=heard.append), cache)
    assert [progress.trained_on for progress in heard] == ["real data"] * 2
    kept = sorted(cache.iterdir())
    assert len(kept) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    monkeypatch.setattr(calibration, "downstream_accuracies", None)  # whoever trains, fails
    assert reference_accuracies(NAMES, digits, replace(SETUP, threads=2), Crew(), cache) == first


def test_whatever_changes_an_accuracy_changes_its_key(digits: Digits, tmp_path: Path) -> None:
    train, test = digits
    other_labels = replace(train, labels=np.roll(train.labels, 1))
    other_test = replace(test, images=255 - test.images)
    cases = [
        (digits, SETUP),
        ((other_labels, test), SETUP),
        ((train, other_test), SETUP),
        (digits, replace(SETUP, seed=1)),
        (digits, replace(SETUP, fast=True)),
        (digits, replace(SETUP, classes=11)),
    ]
    keys = [calibration._keys(("bernoulli_nb",), real, setup) for real, setup in cases]
    assert len({key for pairs in keys for _, key in pairs}) == len(cases)


def test_an_interrupted_pass_keeps_what_it_has(digits: Digits, tmp_path: Path) -> None:
    def interrupt(progress: DownstreamProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reference_accuracies(NAMES, digits, SETUP, Crew(listener=interrupt), tmp_path)
    heard: list[DownstreamProgress] = []
    reference_accuracies(NAMES, digits, SETUP, Crew(listener=heard.append), tmp_path)
    assert [progress.result.classifier for progress in heard] == ["bernoulli_nb"]


def test_a_damaged_file_is_computed_again(digits: Digits, tmp_path: Path) -> None:
    first = reference_accuracies(NAMES[:1], digits, SETUP, Crew(), tmp_path)
    (kept,) = tmp_path.iterdir()
    for content in ("", "[]", "{}", '{"accuracy": "high"}', "{"):
        kept.write_text(content)
        assert reference_accuracies(NAMES[:1], digits, SETUP, Crew(), tmp_path) == first


def test_the_default_folder_lies_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "understudy" / "private"
