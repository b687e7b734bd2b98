"""The noise has the promised scale and law. Two-sided tests, each with a false-alarm rate of 1e-6 per run."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.privacy.events import Event, RoutedSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianAnswers, GaussianSum
from understudy.privacy.randomness.streams import Randomness

FALSE_ALARM = 1e-6
SIZE = 100_000


def variance_p_value(sample, deviation):
    """Two-sided p-value of 'independent Normal(0, deviation^2)', from the chi-square law of the sum of squares."""
    statistic = float(np.square(sample / deviation).sum())
    tail = stats.chi2(len(sample))
    return 2 * min(tail.cdf(statistic), tail.sf(statistic))


def noise_of_sums(tmp_path, clip, multiplier):
    event = Event(noise_multiplier=multiplier, sensitivity="C", count=1, purpose="noise")
    summing = GaussianSum(Ledger.create(tmp_path / "ledger.jsonl"), Randomness(), clip=clip, event=event)
    return summing.release(torch.zeros(SIZE, dtype=torch.float64)).value_dp.numpy()


def noise_of_answers(tmp_path, clip, multiplier, rows=100):
    sampling = RoutedSampling(subsets=10)
    event = Event(noise_multiplier=multiplier, sampling=sampling, sensitivity="2C", count=rows, purpose="noise")
    answering = GaussianAnswers(Ledger.create(tmp_path / "ledger.jsonl"), Randomness(), clip=clip, event=event)
    return answering.answer(torch.zeros(rows, SIZE // rows)).value_dp.double().numpy()


@pytest.mark.parametrize(("clip", "multiplier"), [(1.0, 1.0), (0.5, 3.0), (1.1, 0.4)])
def test_a_sum_gets_noise_of_deviation_clip_times_multiplier(tmp_path, clip, multiplier):
    noise = noise_of_sums(tmp_path, clip, multiplier)
    assert variance_p_value(noise, clip * multiplier) > FALSE_ALARM
    assert stats.kstest(noise / (clip * multiplier), "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize(("clip", "multiplier"), [(1.0, 1.0), (0.5, 3.0), (1.1, 0.4)])
def test_an_answer_gets_noise_of_deviation_twice_clip_times_multiplier(tmp_path, clip, multiplier):
    noise = noise_of_answers(tmp_path, clip, multiplier).ravel()
    assert variance_p_value(noise, 2 * clip * multiplier) > FALSE_ALARM
    assert stats.kstest(noise / (2 * clip * multiplier), "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("wrong", [0.9, 1.1, 0.5, 2.0])
def test_a_scale_that_is_ten_per_cent_off_is_rejected(tmp_path, wrong):
    """The power of the tests above: with 100,000 values even a 2 % error would be seen."""
    assert variance_p_value(noise_of_sums(tmp_path, 1.0, wrong), 1.0) < FALSE_ALARM


def test_a_law_with_the_right_scale_but_another_shape_is_rejected():
    uniform = np.random.default_rng().uniform(-math.sqrt(3), math.sqrt(3), SIZE)
    assert stats.kstest(uniform, "norm").pvalue < FALSE_ALARM


def test_each_row_has_noise_of_its_own(tmp_path):
    """Correlation of any two rows: 4,950 pairs, Bonferroni, so 1e-6 in all."""
    noise = noise_of_answers(tmp_path, 1.0, 1.0)
    correlations = np.corrcoef(noise)[np.triu_indices(len(noise), 1)]
    bound = stats.norm.isf(FALSE_ALARM / 2 / len(correlations)) / math.sqrt(noise.shape[1] - 3)
    assert np.abs(np.arctanh(correlations)).max() < bound


def test_two_releases_have_unrelated_noise(tmp_path):
    event = Event(noise_multiplier=1.0, sensitivity="C", count=2, purpose="noise")
    summing = GaussianSum(Ledger.create(tmp_path / "ledger.jsonl"), Randomness(), clip=1.0, event=event)
    first, second = (summing.release(torch.zeros(SIZE, dtype=torch.float64)).value_dp.numpy() for _ in range(2))
    correlation = float(np.corrcoef(first, second)[0, 1])
    assert abs(math.atanh(correlation)) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(SIZE - 3)
