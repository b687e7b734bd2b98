"""The Inception score on distributions whose score is known."""

from __future__ import annotations

import numpy as np
import pytest

from understudy.errors import InputError
from understudy.evaluate.inception_score import inception_score


@pytest.mark.parametrize("classes", [2, 10, 62])
def test_sure_and_even_scores_the_number_of_classes(classes: int) -> None:
    assert inception_score(np.tile(np.eye(classes), (7, 1))) == pytest.approx(classes, rel=1e-12)


def test_one_class_or_no_idea_scores_one() -> None:
    assert inception_score(np.eye(10)[np.zeros(50, dtype=int)]) == pytest.approx(1)
    assert inception_score(np.full((50, 10), 0.1)) == pytest.approx(1)
    assert inception_score(np.tile([0.7, 0.2, 0.1], (9, 1))) == pytest.approx(1)


@pytest.mark.parametrize("sure", [0.5, 0.8, 0.99])
def test_two_even_classes_named_with_one_certainty(sure: float) -> None:
    """KL of (s, 1-s) from (1/2, 1/2) is log 2 minus the entropy, whatever the class."""
    table = np.array([[sure, 1 - sure], [1 - sure, sure]] * 20)
    assert inception_score(table) == pytest.approx(2 * sure**sure * (1 - sure) ** (1 - sure), rel=1e-12)


def test_equals_the_definition() -> None:
    table = np.random.default_rng(0).dirichlet(np.ones(5), size=400)
    marginal = table.mean(axis=0)
    expected = np.exp(np.mean(np.sum(table * (np.log(table) - np.log(marginal)), axis=1)))
    assert inception_score(table) == pytest.approx(expected, rel=1e-12)


def test_a_table_that_holds_no_distributions_is_refused() -> None:
    for table in (np.zeros((3, 3)), np.array([[2.0, -1.0]]), np.array([[np.nan, 1.0]])):
        with pytest.raises(InputError, match="softmax"):
            inception_score(table)
    for shapeless in (np.zeros(3), np.zeros((0, 3))):
        with pytest.raises(InputError, match="one row for each image"):
            inception_score(shapeless)
