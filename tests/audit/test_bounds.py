"""Bounds from counted errors: right on known values, never above the truth, and blind where nothing can be seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from understudy.audit.bounds import (
    Family,
    correlation_of_neighbours,
    count_errors,
    gaussian_epsilon,
    gaussian_shift,
    one_run_chance,
    one_run_epsilon,
    upper_rate,
)
from understudy.privacy import accounting
from understudy.privacy.events import Event, PoissonSampling

FALSE_ALARM = 1e-6


@pytest.mark.parametrize(("errors", "trials"), [(0, 10), (3, 10), (500, 1000)])
def test_a_rate_above_the_bound_makes_so_few_errors_as_unlikely_as_asked(errors, trials):
    bound = upper_rate(errors, trials, 1e-4)
    assert stats.binom.cdf(errors, trials, bound) == pytest.approx(1e-4)
    assert upper_rate(trials, trials, 1e-4) == 1


@pytest.mark.parametrize("shift", [0.1, 0.27, 1.0, 3.0])
@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0])
def test_the_rates_of_a_gaussian_test_give_its_shift(shift, threshold):
    assert gaussian_shift(stats.norm.sf(threshold), stats.norm.cdf(threshold - shift)) == pytest.approx(shift)
    assert gaussian_shift(0.9, 0.9) == 0


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.73])
def test_the_epsilon_of_a_shift_is_that_of_the_accountants(noise):
    expected = accounting.epsilon([Event(noise_multiplier=noise, count=1)], 1e-5)
    assert gaussian_epsilon(1 / noise, 1e-5) == pytest.approx(expected, rel=1e-3)
    assert gaussian_epsilon(0.0, 1e-5) == 0


def test_one_run_bound_on_known_values():
    """Without delta it is a binomial tail; all of 100 guesses right bounds epsilon at q^100 = risk."""
    assert one_run_chance(1000, 100, 60, 0.0, 0.0) == pytest.approx(stats.binom.sf(59, 100, 0.5))
    expected = math.log(1e-4 ** (1 / 100) / (1 - 1e-4 ** (1 / 100)))
    assert one_run_epsilon(100, 100, 100, 0.0, 1e-4) == pytest.approx(expected, rel=1e-6)
    assert one_run_epsilon(1000, 100, 50, 0.0, 1e-4) == 0
    assert one_run_epsilon(1000, 0, 0, 1e-5, 1e-4) == 0


def test_a_delta_can_explain_guesses_that_epsilon_cannot():
    assert one_run_epsilon(1000, 100, 95, 1e-9, 1e-4) > one_run_epsilon(1000, 100, 95, 1e-6, 1e-4) > 0
    assert one_run_epsilon(1000, 100, 95, 1e-3, 1e-4) == 0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_is_never_said_to_leak_more_than_it_does(epsilon):
    """400 runs of 500 coins, answered truly with the largest chance that epsilon allows; false alarms: 1e-6 in all."""
    random = np.random.default_rng(1)
    correct = random.binomial(500, 1 / (1 + math.exp(-epsilon)), size=400)
    bounds = [one_run_epsilon(500, 500, int(count), 0.0, FALSE_ALARM / 800) for count in correct]
    assert max(bounds) <= epsilon
    assert epsilon < 1 or np.mean(bounds) > 0.3 * epsilon, "and it shows a good part of what is not small"


def _gaussian_trials(shift, trials, random):
    """Log-likelihood ratios of Normal(0, 1) and Normal(shift, 1) under ``shift`` = 1."""
    return random.normal(0, 1, trials) - 0.5, random.normal(shift, 1, trials) - 0.5


def test_a_gaussian_with_less_noise_than_claimed_exceeds_its_claim_and_a_true_one_does_not():
    """False alarms: 1e-6 for the true one; the bound of the other is 6 deviations above the claim on average."""
    random, family = np.random.default_rng(2), Family([Event(noise_multiplier=1.0, count=1)], 1e-5)
    claimed = accounting.certified_epsilon(family.events, 1e-5)
    assert family.plain
    for shift, exceeds in ((1.0, False), (1.12, True)):
        threshold = family.choose_threshold(*_gaussian_trials(shift, 4000, random), FALSE_ALARM)
        errors = count_errors(*_gaussian_trials(shift, 100_000, random), threshold, FALSE_ALARM)
        assert (family.lower_epsilon(errors) > claimed) == exceeds
        assert family.lower_epsilon(errors) > 0.8 * claimed


def test_sampled_events_are_bounded_through_their_own_curve():
    """The exact rates of the best test of a Poisson-sampled Gaussian give back nearly all of its epsilon."""
    rate, noise = 0.5, 1.0
    event = Event(noise_multiplier=noise, sampling=PoissonSampling(rate=rate), count=1)
    family, threshold = Family([event], 1e-5), 0.2
    place = noise**2 * (math.log((math.exp(threshold) - 1 + rate) / rate) + 1 / (2 * noise**2))  # where the ratio is so
    alarms = stats.norm.sf(place / noise)
    misses = 1 - ((1 - rate) * alarms + rate * stats.norm.sf(place / noise - 1 / noise))
    errors = count_errors(np.zeros(1), np.ones(1), threshold, 0.5)
    exact = type(errors)(threshold, float(alarms), float(misses), 0)
    claimed = accounting.epsilon([event], 1e-5)
    assert 0.97 * claimed < family.lower_epsilon(exact) <= claimed
    better = type(errors)(threshold, float(alarms) * 0.9, float(misses), 0)
    assert family.lower_epsilon(better) > claimed
    nothing = type(errors)(threshold, 0.6, 0.6, 0)
    assert family.lower_epsilon(nothing) == 0


def test_values_that_share_their_noise_are_noticed():
    random = np.random.default_rng(3)
    assert abs(correlation_of_neighbours(random.normal(size=10_000))) < 6
    assert correlation_of_neighbours(np.repeat(random.normal(size=100), 100)) > 50
    assert correlation_of_neighbours(np.ones(100)) == math.inf
