"""Budgets: positive and finite, or a sentence that says what to pass instead."""

import math

import pytest

from understudy.errors import InputError
from understudy.privacy.budget import Budget


@pytest.mark.parametrize(("epsilon", "delta"), [(10, 1e-5), (1e-6, 0.5), (1e6, 1e-300)])
def test_a_sensible_budget_is_kept_as_it_is(epsilon, delta):
    budget = Budget(epsilon, delta)
    assert (budget.epsilon, budget.delta) == (epsilon, delta)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, -math.inf, "10", None])
def test_an_epsilon_that_is_not_positive_and_finite_is_refused(epsilon):
    with pytest.raises(InputError, match=r"epsilon: .* is not a positive finite number; pass for example epsilon=10"):
        Budget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 2, math.nan, math.inf, "1e-5", None])
def test_a_delta_that_is_no_probability_between_0_and_1_is_refused(delta):
    with pytest.raises(
        InputError, match=r"delta: .* does not lie strictly between 0 and 1; pass for example delta=1e-5"
    ):
        Budget(10, delta)


def test_a_budget_cannot_be_changed():
    with pytest.raises(AttributeError):
        Budget(10, 1e-5).epsilon = 100


@pytest.mark.parametrize("epsilon", [10**400, -(10**400)])
def test_an_epsilon_that_no_float_can_hold_is_refused(epsilon):
    with pytest.raises(InputError, match="is not a positive finite number"):
        Budget(epsilon, 1e-5)
