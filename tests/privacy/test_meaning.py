"""What a guarantee means: bounds on membership tests, and figures that are never rounded down."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from understudy.privacy.certificate import Guarantee, round_up
from understudy.privacy.meaning import AttackBound, attack_bound, headline_bound, in_words, percent

from ..release.building import EPSILON, make_release


def test_known_values_of_the_bound():
    bound = AttackBound(((1.0, 0.0),))
    assert bound.accuracy() == pytest.approx(math.e / (1 + math.e))
    assert bound.advantage() == pytest.approx(math.tanh(0.5))
    assert bound.true_positive_rate(0.01) == pytest.approx(0.01 * math.e)
    assert AttackBound(((0.0, 0.25),)).advantage() == pytest.approx(0.25)
    assert AttackBound(((0.0, 0.0),)).accuracy() == 0.5


def test_the_events_say_more_than_the_headline():
    certificate = make_release().certificate
    bound = attack_bound(certificate, [share / 10 * EPSILON for share in range(10)])
    assert bound.advantage() == pytest.approx(2 * norm.cdf(0.5) - 1, abs=1e-3)  # total variation of N(1, 1) and N(0, 1)
    assert bound.advantage() >= 2 * norm.cdf(0.5) - 1
    assert bound.accuracy() < headline_bound(certificate.headline).accuracy()
    for rate in (1e-4, 0.01, 0.2, 0.7):
        exact = norm.sf(norm.isf(rate) - 1)
        assert exact <= bound.true_positive_rate(rate) <= exact * 1.4


@given(epsilon=st.floats(0, 1000), delta=st.floats(0, 0.999), rate=st.floats(0, 1))
def test_bounds_are_probabilities(epsilon: float, delta: float, rate: float):
    bound = AttackBound(((epsilon, delta),))
    assert 0 <= bound.advantage() <= 1
    assert 0.5 <= bound.accuracy() <= 1
    assert 0 <= bound.true_positive_rate(rate) <= 1
    assert bound.true_positive_rate(rate) - rate <= bound.advantage() + 1e-9


@given(st.floats(0, 1e6))
def test_figures_are_rounded_up(value: float):
    assert float(round_up(value)) >= value
    assert float(round_up(value)) <= value + 1e-4 + value * 1e-12


def test_figures_as_text():
    assert round_up(9.03) == "9.03"
    assert round_up(9.03001) == "9.0301"
    assert round_up(10.0) == "10"
    assert round_up(math.inf) == "infinite"
    assert percent(0.9999546) == "99.996 %"
    assert percent(1.0) == "practically 100 %"
    assert percent(0.7311) == "73.2 %"


def test_words_for_every_kind_of_guarantee():
    for unit in ("record", "client"):
        for viewer in ("public", "server", "client"):
            guarantee = Guarantee(epsilon=800, delta=1e-5, unit=unit, viewer=viewer)  # type: ignore[arg-type]
            words = " ".join(in_words(guarantee, headline_bound(guarantee)))
            assert "more than a million" in words
            assert "rules out little" in words
