"""The bounds hold as often as they say, and a bound that is too tight is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from understudy.inspection.findings import at_least, at_most, fewer, mean_radius


@pytest.mark.parametrize("probability", [0.001, 0.03, 0.3, 0.97])
@pytest.mark.parametrize("total", [20, 500])
@pytest.mark.parametrize("level", [0.05, 1e-6])
def test_bounds_of_a_probability_fail_no_more_often_than_stated(probability: float, total: int, level: float):
    """Exact: the chance of every count is known."""
    chances = binom.pmf(range(total + 1), total, probability)
    too_high = sum(chances[count] for count in range(total + 1) if at_least(count, total, level) > probability)
    too_low = sum(chances[count] for count in range(total + 1) if at_most(count, total, level) < probability)
    assert too_high <= level * (1 + 1e-9)
    assert too_low <= level * (1 + 1e-9)
    assert at_least(0, total, level) == 0
    assert at_most(total, total, level) == 1


def test_the_bound_of_a_mean_holds_and_is_not_idle():
    """At level 0.01 about 5 of 500 may fail; more than 27 would come up once in a million."""
    random = np.random.default_rng(0)
    values = random.beta(0.5, 4.0, (500, 300))
    misses = sum(abs(row.mean() - 0.5 / 4.5) > mean_radius(row, 0.01 / 2) for row in values)
    assert misses <= 27
    narrow = sum(abs(row.mean() - 0.5 / 4.5) > 0.1 * mean_radius(row, 0.01 / 2) for row in values)
    assert narrow > 27
    assert mean_radius(np.array([0.5]), 0.01) == 1.0


def test_an_empty_middle_between_equal_sides_is_unlikely():
    assert fewer(0, 20) == pytest.approx(0.5**20)
    assert fewer(10, 10) > 0.5
    assert fewer(0, 0) == 1.0
