"""The Bayesian accountant against closed forms, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from pydantic import ValidationError

from understudy.errors import BudgetError, InputError
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.privacy.claims.bayesian_moments import MomentTable, left_moment, right_moment
from understudy.privacy.claims.statements import BayesianConfig, claim_in_words, markov_share
from understudy.privacy.events import Event, PoissonSampling, RoutedSampling

RATE, NOISE, STEPS = 0.02, 1.5, 200
SETTINGS = BayesianConfig()
STEP = Event(noise_multiplier=NOISE, sensitivity="C", sampling=PoissonSampling(rate=RATE), count=STEPS)
EMBEDDING = Event(noise_multiplier=8.0, sensitivity="C", count=1)


def accountant(lengths: np.ndarray | None = None, **changes: object) -> BayesianAccountant:
    made = BayesianAccountant(BayesianConfig(**changes), STEP)
    if lengths is not None:
        made.add(lengths)
    return made


def constant(length: float, steps: int = STEPS, pairs: int = 32) -> np.ndarray:
    return np.full((steps, pairs), length)


def renyi_moments(noise: float, orders: tuple[int, ...] = SETTINGS.orders) -> np.ndarray:
    """order * (divergence of order + 1) of one Poisson-sampled Gaussian, by Google's library."""
    reference = RdpAccountant([order + 1 for order in orders])
    reference.compose(PoissonSampledDpEvent(RATE, GaussianDpEvent(noise)))
    return np.array(orders) * np.array(reference._rdp)


# Moments


@pytest.mark.parametrize("length", [1.0, 0.5, 0.07])
def test_equation_6_is_the_moment_of_a_sampled_gaussian(length):
    """A shorter gradient under the same noise is the clip bound under more noise."""
    found = [left_moment(order, RATE, NOISE, np.array([length**2]))[0] for order in SETTINGS.orders]
    assert found == pytest.approx(renyi_moments(NOISE / length), rel=1e-7)


def test_without_sampling_equation_6_is_the_moment_of_a_gaussian():
    for order in (1, 8, 64, 256):
        expected = order * (order + 1) / 2 / NOISE**2
        assert left_moment(order, 1.0, NOISE, np.array([1.0]))[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2, 5, 20])
def test_equation_7_bounds_the_other_direction_from_above_and_equation_6_bounds_it_closer(order):
    """The exact divergence by integration: N(0, s^2) against the mixture."""
    grid = np.linspace(-40, 40, 400_001)
    plain = -((grid / NOISE) ** 2) / 2 - math.log(NOISE * math.sqrt(2 * math.pi))
    shifted = -(((grid - 1) / NOISE) ** 2) / 2 - math.log(NOISE * math.sqrt(2 * math.pi))
    mixture = np.logaddexp(math.log1p(-RATE) + plain, math.log(RATE) + shifted)
    exact = math.log(np.trapezoid(np.exp((order + 1) * plain - order * mixture), grid))
    one = np.array([1.0])
    assert exact <= left_moment(order, RATE, NOISE, one)[0] + 1e-9
    assert left_moment(order, RATE, NOISE, one)[0] < right_moment(order, RATE, NOISE, one)[0]


@pytest.mark.parametrize("noise", [0.05, 1.0, 1e4])
def test_moments_are_finite_zero_for_nothing_and_grow_with_length_order_and_rate(noise):
    lengths = np.linspace(0, 1, 11) ** 2
    rows = np.array([left_moment(order, RATE, noise, lengths) for order in (1, 16, 64, 256)])
    assert np.isfinite(rows).all()
    assert (rows[:, 0] == 0).all()
    assert (np.diff(rows, axis=0)[:, 1:] > 0).all()
    assert (np.diff(rows, axis=1) > 0).all()
    assert (left_moment(16, 2 * RATE, noise, lengths)[1:] > rows[1, 1:]).all()


def test_the_table_is_an_upper_bound_and_close():
    lengths = np.random.default_rng(0).random(500)
    table = MomentTable((1, 8, 64), RATE, NOISE)
    for row, order, close in zip(table.moments(lengths), (1, 8, 64), (1e-6, 1e-6, 0.05), strict=True):
        exact = left_moment(order, RATE, NOISE, lengths**2)
        assert (row >= exact * (1 - 1e-12)).all()
        assert row == pytest.approx(exact, rel=close, abs=1e-9)  # 64: where a single step costs a third already
    broken = table.moments(np.array([np.nan, np.inf, 7.0]))
    assert broken == pytest.approx(np.repeat(table.worst[:, None], 3, axis=1))


# The accountant


def test_equal_gradients_cost_nothing():
    """With and without the unit the sums are the same; what is left is the price of delta at the largest order."""
    made = accountant(constant(0.0))
    assert made.costs() == pytest.approx(0.0)
    assert made.costs("student") == pytest.approx(0.0)
    left, order = SETTINGS.delta_mu - SETTINGS.failure, max(SETTINGS.orders)
    printed = accountant(constant(0.0), formulas="as printed").claim().epsilon_mu
    assert printed == pytest.approx(math.log(1 / left) / order, abs=2e-4)
    tight = math.log(1 / left) + order * math.log(order / (order + 1)) - math.log(order + 1)
    assert made.claim().epsilon_mu == pytest.approx(tight / order, abs=2e-4)


@pytest.mark.parametrize("length", [0.1, 0.5])
def test_a_fixed_difference_costs_its_sampled_gaussian_moments(length):
    expected = STEPS * renyi_moments(NOISE / length)
    for estimate in ("student", "charged"):
        found = accountant(constant(length)).costs(estimate)
        assert (found >= expected * (1 - 1e-9)).all()
        assert found == pytest.approx(expected, rel=5e-3, abs=1e-9)


@pytest.mark.parametrize("policy", ["charge", "warn"])
def test_it_agrees_with_the_worst_case_accountant_where_every_difference_is_the_clip_bound(policy):
    made = accountant(constant(1.0), heavy_tails=policy)
    assert made.costs() == pytest.approx(STEPS * renyi_moments(NOISE), rel=1e-9)
    claim = made.claim()
    assert claim.epsilon_mu == BayesianAccountant(BayesianConfig(heavy_tails=policy), STEP).claim().epsilon_mu
    reference = RdpAccountant([order + 1 for order in SETTINGS.orders])
    reference.compose(PoissonSampledDpEvent(RATE, GaussianDpEvent(NOISE)), STEPS)
    assert claim.epsilon_mu == pytest.approx(reference.get_epsilon(SETTINGS.delta_mu - SETTINGS.failure), abs=2e-4)


def test_it_never_exceeds_the_worst_case_whatever_is_sampled():
    random = np.random.default_rng(1)
    for lengths in (random.random((STEPS, 32)), random.random((STEPS, 32)) < 0.03, constant(np.nan)):
        for policy in ("charge", "warn"):
            found = accountant(np.asarray(lengths, dtype=float), heavy_tails=policy)
            for estimate in ("student", "charged", "bounded"):
                assert (found.costs(estimate) <= STEPS * renyi_moments(NOISE) * (1 + 1e-9)).all()


def test_it_grows_with_the_lengths_and_falls_with_delta():
    figures = [accountant(constant(length)).claim().epsilon_mu for length in (0.0, 0.2, 0.5, 0.8, 1.0)]
    assert figures == sorted(figures)
    assert len(set(figures)) == len(figures)
    deltas = [accountant(constant(0.5), delta_mu=delta).claim().epsilon_mu for delta in (1e-12, 1e-9, 1e-6)]
    assert deltas == sorted(deltas, reverse=True)


def test_more_pairs_leave_less_to_doubt():
    random = np.random.default_rng(2)
    few, many = (
        accountant(random.uniform(0.3, 0.5, (STEPS, pairs)), pairs=pairs).claim().epsilon_mu for pairs in (8, 512)
    )
    assert many < few


def test_an_unsampled_release_is_added_for_everybody():
    alone, both = BayesianAccountant(SETTINGS, STEP), BayesianAccountant(SETTINGS, STEP, [EMBEDDING])
    orders = np.array(SETTINGS.orders)
    assert both.costs() - alone.costs() == pytest.approx(orders * (orders + 1) / 2 / 64)


def test_the_printed_formulas_are_dearer():
    printed, tight = (accountant(constant(0.5), formulas=name).claim() for name in ("as printed", "tight"))
    assert printed.epsilon_mu > 1.5 * tight.epsilon_mu


# What was fixed in advance


def test_more_steps_than_were_fixed_are_refused():
    made = accountant(constant(0.1))
    with pytest.raises(BudgetError, match=r"201 steps, but Hoelder's exponent was fixed at 200"):
        made.add(constant(0.1, steps=1))
    assert made.recorded == STEPS


def test_another_number_of_pairs_is_refused():
    with pytest.raises(InputError, match="31 in a step, but 32 were fixed in advance"):
        accountant(constant(0.1, pairs=31))


@pytest.mark.parametrize(
    "event",
    [
        Event(noise_multiplier=1.0, sensitivity="C", count=5),
        Event(noise_multiplier=1.0, sensitivity="2C", sampling=RoutedSampling(subsets=9), count=5),
        Event(noise_multiplier=1.0, sensitivity="2C", sampling=PoissonSampling(rate=0.1), count=5),
    ],
)
def test_only_sampled_sums_of_clipped_units_are_accounted(event):
    with pytest.raises(InputError, match="only Poisson-sampled sums of clipped units are"):
        BayesianAccountant(SETTINGS, event)


def test_steps_without_a_record_cost_their_worst_case():
    half = accountant(constant(0.3, steps=STEPS // 2))
    worst, full = accountant().costs(), accountant(constant(0.3)).costs()
    assert half.costs() == pytest.approx((worst + full) / 2, rel=1e-3)
    claim = half.claim()
    assert (claim.steps, claim.estimated_steps) == (STEPS, STEPS // 2)


def test_blocks_and_a_restart_give_the_same_claim(tmp_path: Path):
    lengths = np.random.default_rng(3).uniform(0, 0.6, (STEPS, 32))
    whole, first = accountant(lengths), accountant(lengths[:70])
    first.save(tmp_path / "record.json")
    second = accountant()
    second.restore(tmp_path / "record.json")
    second.add(lengths[70:])
    for estimate in ("student", "charged"):
        assert second.costs(estimate) == pytest.approx(whole.costs(estimate), rel=1e-12)
    assert second.claim().epsilon_mu == whole.claim().epsilon_mu


@pytest.mark.parametrize("content", ["", "[]", '{"recorded": 5}', '{"recorded": 900}'])
def test_a_damaged_record_is_refused(tmp_path: Path, content: str):
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(InputError, match=r"record\.json is not the record of this run"):
        accountant().restore(tmp_path / "record.json")


# The claim


def test_the_claim_states_its_parts_and_its_percentile():
    claim = accountant(constant(0.3)).claim()
    assert claim.kind == "bayesian-dp"
    assert (claim.delta_mu, claim.failure) == (1e-10, 5e-11)
    assert claim.confidence == 1 - 5e-11
    assert claim.percentile.delta == 1e-5
    assert claim.percentile.share == pytest.approx(1 - 1e-5, abs=1e-12)
    assert markov_share(1e-3, 1e-5) == 0
    assert len(claim.assumptions) == 4
    words = " ".join(claim_in_words(claim))
    assert "for a random member of these data" in words
    assert "For members, whatever the law" in words
    assert any(assumption.startswith("members stand for newcomers") for assumption in claim.assumptions)
    assert "not an epsilon of differential privacy" in words
    assert "epsilon_mu" in words
    assert "discloses something" in words


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"failure": 1e-10}, "is not below delta_mu"),
        ({"confidence": 1.0}, "is above 1 - failure"),
        ({"percentile": {"delta": 1e-6, "share": 0.99999}}, "does not follow from delta_mu"),
        ({"estimated_steps": 201}, "estimated of 200 steps"),
        ({"effective_samples": 3.0}, "too few for that"),
        ({"kind": "dp"}, "Input should be 'bayesian-dp'"),
        ({"epsilon": 1.0}, "Extra inputs"),
    ],
)
def test_a_claim_that_does_not_add_up_is_refused(changes, reason):
    claim = accountant(constant(0.3)).claim()
    with pytest.raises(ValidationError, match=reason):
        type(claim).model_validate(claim.model_dump() | changes)


def test_settings_without_a_percentile_are_refused():
    with pytest.raises(ValidationError, match="must be above delta_mu"):
        BayesianConfig(delta_mu=1e-4)
