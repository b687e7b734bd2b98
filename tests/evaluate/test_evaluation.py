"""One call gives all figures, stamped; every input is checked before any work."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import understudy.evaluate
from understudy.errors import InputError
from understudy.evaluate import evaluation
from understudy.evaluate.cnn import CnnConfig
from understudy.evaluate.downstream import LabelledImages
from understudy.evaluate.evaluation import STAMP, EvaluationConfig, evaluate, expand_metrics

Digits = tuple[LabelledImages, LabelledImages]
CONFIG = EvaluationConfig(device="cpu", classes=10)


def pairs(digits: Digits) -> tuple[Any, Any]:
    return tuple((part.images, part.labels) for part in digits)


@pytest.fixture
def quick_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "scorer_config", lambda device, seed: CnnConfig(minimum_steps=200, device=device))


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any training or scoring fails the test: checks come first."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("work started before all checks were done")

    for name in ("train_cnn", "downstream_accuracy", "fid", "score_images"):
        monkeypatch.setattr(evaluation, name, refuse)


def test_figures_of_real_digits(digits: Digits, quick_scorer: None) -> None:
    train, test = pairs(digits)
    result = evaluate(*train, train, test, ("fid[lenet]", "is", "logistic_regression"), CONFIG)
    plain = json.loads(json.dumps(result.as_dict()))
    assert [figure["name"] for figure in plain["figures"]] == ["fid[lenet]", "is", "logistic_regression"]
    assert plain["inception_score"] == result.value("is")
    assert 8 < plain["inception_score"] < 10
    assert result.value("logistic_regression") > 0.9  # type: ignore[operator]
    assert plain["fid"] is plain["cnn_accuracy"] is None
    assert plain["samples"] == 1347
    assert plain["figures"][1]["classifier_accuracy"] > 0.9


def test_every_figure_is_stamped_unless_the_data_are_declared_public(digits: Digits) -> None:
    train, test = pairs(digits)
    result = evaluate(*train, train, test, ("logistic_regression",), CONFIG).as_dict()
    assert result["stamp"] == STAMP == "not private: do not publish"
    assert [figure["stamp"] for figure in result["figures"]] == [STAMP]
    public = EvaluationConfig(device="cpu", real_data_private=False)
    result = evaluate(*train, train, test, ("logistic_regression",), public).as_dict()
    assert result["stamp"] is result["figures"][0]["stamp"] is None


def test_unlabelled_images_can_be_scored_but_not_trained_on(digits: Digits, quick_scorer: None) -> None:
    train, test = pairs(digits)
    assert evaluate(train[0], None, train, test, ("is",), CONFIG).value("is") > 5  # type: ignore[operator]
    with pytest.raises(InputError, match="labels: none given, but cnn trains on them"):
        evaluate(train[0], None, train, test, ("is", "cnn"), CONFIG)


def test_bad_input_is_refused_before_any_work(digits: Digits, no_work: None) -> None:
    train, test = pairs(digits)
    images, labels = train
    cases: list[tuple[tuple[Any, ...], str]] = [
        ((images, labels, train, test, ("cnn", "fid")), r"images: 1347 images.*at least 2049"),
        ((images[:90], labels[:90], train, test, ("cnn", "fid[lenet]")), r"images: 90 images.*at least 129"),
        ((images, np.where(labels == 3, 4, labels), train, test, ("is", "cnn")), "no image of class 3"),
        ((images, labels + 1, train, test, ("is",)), "labels: found 10, but classes=10"),
        ((images[:, :, :, :7], labels, train, test, ("is",)), "images: 8x7 pixels"),
        ((np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1))), labels, train, test, ("is",)), "images: 1x10x10, but real"),
        ((images, labels, (images, labels[:5]), test, ("is",)), "real training labels: shape"),
        ((images, labels, train, (test[0], test[1] + 1), ("is",)), "real test labels: found 10"),
    ]
    for arguments, message in cases:
        with pytest.raises(InputError, match=message):
            evaluate(*arguments, CONFIG)


def test_missing_weights_are_refused_before_any_work(digits: Digits, no_work: None) -> None:
    train, test = pairs(digits)
    enough = np.tile(train[0], (2, 1, 1, 1)), np.tile(train[1], 2)
    reference = np.tile(test[0], (5, 1, 1, 1)), np.tile(test[1], 5)
    with pytest.raises(InputError, match=r"no Inception network found.*fid\[lenet\]"):
        evaluate(*enough, train, reference, ("cnn", "fid"), CONFIG)


def test_metrics_are_expanded_once_each() -> None:
    assert expand_metrics(("is", "downstream", "cnn")) == ("is", "cnn", "mlp", "logistic_regression")
    assert expand_metrics("is") == ("is",)
    with pytest.raises(InputError, match="metrics: 'ssim' is unknown; choose from fid"):
        expand_metrics(("ssim",))
    with pytest.raises(InputError, match="metrics: none given"):
        expand_metrics(())


def test_the_package_exports_its_names_without_loading_torch() -> None:
    assert all(getattr(understudy.evaluate, name) is not None for name in understudy.evaluate.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        understudy.evaluate.nothing  # noqa: B018
    code = "import sys, understudy.evaluate; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
