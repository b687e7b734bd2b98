"""One call gives all figures, stamped; every input is checked before any work."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.errors import InputError
from understudy.evaluate import evaluation
from understudy.evaluate.classifiers import CLASSIFIERS, table_classifiers
from understudy.evaluate.cnn import CnnConfig
from understudy.evaluate.downstream import LabelledImages
from understudy.evaluate.evaluation import STAMP, EvaluationConfig, evaluate, expand_metrics

Digits = tuple[LabelledImages, LabelledImages]
CONFIG = EvaluationConfig(device="cpu", classes=10)


def pairs(digits: Digits) -> tuple[Any, Any]:
    return tuple((part.images[:, 0], part.labels) for part in digits)


@pytest.fixture
def quick_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = CnnConfig(minimum_steps=200, device="cpu")
    monkeypatch.setattr(evaluation, "scorer_config", lambda device, seed, fast: replace(quick, epochs=1 if fast else 2))


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any training or scoring fails the test: checks come first."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("work started before all checks were done")

    for name in ("trained_scorer", "downstream_accuracies", "reference_accuracies", "fid", "score_images"):
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


def test_downstream_comes_with_its_averages_and_says_what_the_fast_mode_left_out(
    digits: Digits, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train, test = pairs(digits)
    cheap = {name: replace(CLASSIFIERS[name], fast_limit=400) for name in ("gaussian_nb", "bernoulli_nb")}
    for module in ("evaluation", "classifiers"):
        monkeypatch.setattr(f"understudy.evaluate.{module}.CLASSIFIERS", cheap)
    half = (train[0][:700], train[1][:700])
    config = replace(CONFIG, cache=tmp_path)
    whole, fast = (
        evaluate(*half, train, test, ("downstream",), replace(config, fast=fast)).as_dict() for fast in (False, True)
    )
    assert [figure["name"] for figure in whole["figures"]] == [*cheap, "average_accuracy", "calibrated_accuracy"]
    own, real = ([figure[key] for figure in whole["figures"][:2]] for key in ("accuracy", "real_accuracy"))
    assert whole["average_accuracy"] == pytest.approx(sum(own) / 2)
    ratios = [mine / reference for mine, reference in zip(own, real, strict=True)]
    assert whole["calibrated_accuracy"] == pytest.approx(sum(ratios) / 2)
    assert all(figure["stamp"] == STAMP for figure in whole["figures"])
    assert whole["left_out"] == []
    assert fast["left_out"] == ["2 classifiers trained on 400 of 700 images"]
    assert [figure["trained_on"] for figure in fast["figures"][:2]] == [400, 400]
    assert len(list(tmp_path.iterdir())) == 4  # two classifiers on real data, in two modes


def test_the_fast_mode_trains_networks_for_fewer_epochs(digits: Digits, quick_scorer: None) -> None:
    train, test = pairs(digits)
    config = replace(CONFIG, fast=True)
    assert (config.cnn.epochs, CONFIG.cnn.epochs) == (5, 15)
    result = evaluate(*train, train, test, ("is",), config)
    assert result.left_out == (
        "the classifier behind is and fid[lenet] ran 1 epochs instead of 2 (more where these are few steps)",
    )


def test_slow_work_says_how_far_it_is(digits: Digits, quick_scorer: None) -> None:
    train, test = pairs(digits)
    heard: list[tuple[str, int, int]] = []
    config = replace(CONFIG, listener=lambda *count: heard.append(count))
    evaluate(*train, train, test, ("fid[lenet]",), config)
    epochs = [count for count in heard if count[0].startswith("epochs")]
    assert [done for _, done, _ in epochs] == list(range(1, epochs[0][2] + 1))
    assert ("samples through the network of the Fréchet distance", 1347, 1347) in heard
    assert heard[-1] == ("real images through the network, to compare with", 1347, 1347)


def test_the_classifier_behind_the_scores_is_kept_and_found_again(
    digits: Digits, quick_scorer: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train, test = pairs(digits)
    config = replace(CONFIG, cache=tmp_path)
    first = evaluate(*train, train, test, ("is", "fid[lenet]"), config)
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("scorer-")
    content = kept.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("understudy.evaluate.inception_score.train_cnn", None)  # whoever trains, fails
        second = evaluate(*train, train, test, ("is", "fid[lenet]"), config)
        assert second.value("fid[lenet]") == pytest.approx(first.value("fid[lenet]"), rel=1e-6)
        assert second.value("is") == pytest.approx(first.value("is"), rel=1e-6)
    kept.write_bytes(content[:100])
    evaluate(*train, train, test, ("is",), config)
    assert len(kept.read_bytes()) == len(content)


def test_a_cache_that_cannot_be_written_and_a_missing_library_are_refused_before_any_work(
    digits: Digits, no_work: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train, test = pairs(digits)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cache: .*file.inside cannot be written"):
        evaluate(*train, train, test, ("is",), replace(CONFIG, cache=tmp_path / "file" / "inside"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"xgboost: the library is not installed; .*understudy\[evaluate\]"):
        evaluate(*train, train, test, ("is", "xgboost"), CONFIG)


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
        ((images[:, :, :7], labels, train, test, ("is",)), "images: 8x7 pixels"),
        ((np.pad(images, ((0, 0), (1, 1), (1, 1))), labels, train, test, ("is",)), "images: 1x10x10, but real"),
        ((images, labels, (images, labels[:5]), test, ("is",)), "real training labels: shape"),
        ((images, labels, train, (test[0], test[1] + 1), ("is",)), "real test labels: found 10"),
    ]
    for arguments, message in cases:
        with pytest.raises(InputError, match=message):
            evaluate(*arguments, CONFIG)


def test_missing_weights_are_refused_before_any_work(digits: Digits, no_work: None) -> None:
    train, test = pairs(digits)
    enough = np.tile(train[0], (2, 1, 1)), np.tile(train[1], 2)
    reference = np.tile(test[0], (5, 1, 1)), np.tile(test[1], 5)
    with pytest.raises(InputError, match=r"no Inception network found.*fid\[lenet\]"):
        evaluate(*enough, train, reference, ("cnn", "fid"), CONFIG)


def test_metrics_are_expanded_once_each() -> None:
    assert expand_metrics(("is", "downstream", "cnn")) == ("is", *table_classifiers())
    assert expand_metrics("is") == ("is",)
    with pytest.raises(InputError, match="metrics: 'ssim' is unknown; choose from fid"):
        expand_metrics(("ssim",))
    with pytest.raises(InputError, match="metrics: none given"):
        expand_metrics(())


def test_a_process_that_trains_one_classifier_loads_torch_only_if_it_needs_it() -> None:
    code = "import sys, understudy.evaluate.parallel; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
