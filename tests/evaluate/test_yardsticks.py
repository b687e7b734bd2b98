"""Every score stands between chance and real images, and a verdict in words says where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from understudy.evaluate import fid as distances
from understudy.evaluate.cnn import CnnConfig, train_cnn
from understudy.evaluate.downstream import LabelledImages
from understudy.evaluate.evaluation import EvaluationConfig, evaluate
from understudy.evaluate.fid import FidConfig, LenetFeatures, fid_bounds, reference_statistics
from understudy.evaluate.yardsticks import accuracy_yardstick, chance_accuracy, noise_images, score_yardstick

Digits = tuple[LabelledImages, LabelledImages]
CONFIG = EvaluationConfig(device="cpu", classes=10)


@pytest.mark.parametrize(
    ("accuracy", "verdict", "recovered"),
    [
        (0.345, "recovers 28 % of what real images give", 0.28),
        (0.98, "as good as real images", 1.0057),
        (0.12, "cannot be told from guessing", 0.0229),
        (0.02, "no better than guessing", -0.0914),
    ],
)
def test_the_verdict_says_how_far_from_guessing_to_real_images(accuracy: float, verdict: str, recovered: float) -> None:
    beside = accuracy_yardstick(accuracy, 0.1, 0.975, tested_on=500)
    assert beside.verdict == verdict
    assert beside.recovered == pytest.approx(recovered, abs=1e-3)


def test_doubt_shrinks_with_the_number_of_test_images() -> None:
    """Three deviations of guessing: at 12 % against 10 % that is the case with 2,500 images, and not with 500."""
    assert accuracy_yardstick(0.12, 0.1, 0.975, 2_500).verdict == "recovers 2 % of what real images give"
    assert accuracy_yardstick(0.12, 0.1, 0.975, 500).verdict == "cannot be told from guessing"


def test_where_real_images_teach_nothing_a_score_says_nothing() -> None:
    beside = accuracy_yardstick(0.6, 0.5, 0.52, tested_on=300)
    assert beside.verdict == "says nothing: real images cannot be told from guessing either"
    assert beside.recovered is None


def test_without_a_reference_there_is_chance_alone() -> None:
    assert accuracy_yardstick(0.6, 0.1, None, 300).verdict == "better than guessing"
    assert accuracy_yardstick(0.11, 0.1, None, 300).verdict == "cannot be told from guessing"


def test_distances_are_measured_by_the_same_formula() -> None:
    assert score_yardstick(80.0, 300.0, "noise", 2.0, "real").recovered == pytest.approx(220 / 298)
    assert score_yardstick(310.0, 300.0, "noise", 2.0, "real").verdict == "no better than noise"


def test_guessing_knows_the_commonest_class() -> None:
    assert chance_accuracy(np.array([0, 1, 1, 2])) == 0.5
    assert chance_accuracy(np.arange(10).repeat(3)) == pytest.approx(0.1)


def test_an_evaluation_says_what_half_of_the_real_images_and_what_noise_are_worth(
    digits: Digits, tmp_path: Path
) -> None:
    train, test = ((part.images[:, 0], part.labels) for part in digits)
    config = replace(CONFIG, cache=tmp_path)
    (good,) = evaluate(train[0][:700], train[1][:700], train, test, ("logistic_regression",), config).figures
    assert good["yardstick"]["chance"] == chance_accuracy(test[1])
    assert good["yardstick"]["real"] == good["real_accuracy"] > 0.9
    assert good["yardstick"]["recovered"] > 0.9
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("reference-")
    random = np.random.default_rng(0)
    (noise,) = evaluate(
        noise_images(train[0], 500),
        random.integers(0, 10, 500),
        train,
        test,
        ("gaussian_nb",),
        replace(config, reference=False),
    ).figures
    assert noise["yardstick"]["verdict"] in ("cannot be told from guessing", "no better than guessing")
    assert "real_accuracy" not in noise


def test_scores_of_networks_have_yardsticks_too(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = CnnConfig(minimum_steps=200, epochs=2, device="cpu")
    monkeypatch.setattr("understudy.evaluate.evaluation.scorer_config", lambda device, seed, fast: quick)
    train, test = ((part.images[:, 0], part.labels) for part in digits)
    config = replace(CONFIG, cache=tmp_path)  # the classifier behind the scores is trained once
    for images, low, high in ((train[0][:300], 0.9, 1.1), (noise_images(train[0], 300), -0.2, 0.3)):
        for figure in evaluate(images, None, train, test, ("is", "fid[lenet]"), config).figures:
            assert low < figure["yardstick"]["recovered"] < high, figure


def test_distances_of_noise_and_of_real_images_are_kept_where_the_network_has_a_name(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = digits
    network = LenetFeatures(
        train_cnn(train.images, train.labels, 10, CnnConfig(minimum_steps=20, epochs=1, device="cpu"))
    )
    network.key = "a network that does not change"
    statistics, config = reference_statistics(test.images, network, None), FidConfig(statistics_cache=tmp_path)
    first = fid_bounds(train.images, test.images, network, config, statistics)
    assert first.real < first.noise
    monkeypatch.setattr(distances, "feature_statistics", None)  # whoever computes, fails
    assert fid_bounds(train.images, test.images, network, config, statistics) == first
