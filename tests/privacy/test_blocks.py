"""GaussianBlocks: any function of a Poisson batch, clipped in blocks, costs what its event says and no more."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.privacy import accounting
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RoutedSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianBlocks
from understudy.privacy.randomness.streams import Randomness

FALSE_ALARM = 1e-6
EPSILONS = (0.0, 0.3, 1.0, 2.0, 4.0)


def blocks(tmp_path, *, noise: float = 1.0, clip: float = 1.0, count: int = 1, sampling=None) -> GaussianBlocks:
    event = Event(
        noise_multiplier=noise, sensitivity="2C", sampling=sampling or NoSampling(), count=count, purpose="blocks"
    )
    return GaussianBlocks(Ledger.create(tmp_path / "ledger.jsonl"), Randomness(), clip=clip, event=event)


def _profile(first: np.ndarray, second: np.ndarray, epsilon: float, width: float) -> float:
    """The hockey-stick divergence of two densities on a grid."""
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum() * width)


def _worst(answers: np.ndarray, rate: float, noise: float, epsilon: float) -> float:
    """Exact delta, in both directions, of a step on three other units and one more: ``answers[unit in, subset]``."""
    grid = np.linspace(-14 * noise - 1, 14 * noise + 1, 4001)
    chances = [rate ** sum(taken) * (1 - rate) ** (3 - sum(taken)) for taken in itertools.product((0, 1), repeat=3)]
    without = sum(
        chance * stats.norm.pdf(grid, answer, 2 * noise) for chance, answer in zip(chances, answers[0], strict=True)
    )
    taken = sum(
        chance * stats.norm.pdf(grid, answer, 2 * noise) for chance, answer in zip(chances, answers[1], strict=True)
    )
    there = (1 - rate) * without + rate * taken
    width = grid[1] - grid[0]
    return max(_profile(there, without, epsilon, width), _profile(without, there, epsilon, width))


@given(
    answers=arrays.arrays(float, (2, 8), elements=st.floats(-1, 1)),
    rate=st.sampled_from([0.02, 0.2, 0.5, 1.0]),
    noise=st.sampled_from([0.6, 1.0, 3.0]),
)
@settings(max_examples=10, deadline=None)
def test_whatever_a_batch_answers_the_accountants_cover_it(answers, rate, noise):
    """Every function from subsets of four units to [-C, C] with C = 1, at noise of deviation 2C * multiplier."""
    event = Event(noise_multiplier=noise, sensitivity="2C", sampling=PoissonSampling(rate=rate), count=1)
    for epsilon in EPSILONS:
        exact = _worst(answers, rate, noise, epsilon)
        for accountant in ("pld", "fourier"):
            assert exact <= accounting.delta([event], epsilon, accountant) + 1e-9


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_unit_that_turns_the_answer_round_costs_all_that_is_charged(rate):
    """The sensitivity 2C cannot be lowered: with the half of it the same answers would be under-charged."""
    answers = np.stack([-np.ones(8), np.ones(8)])
    event = Event(noise_multiplier=1.0, sensitivity="2C", sampling=PoissonSampling(rate=rate), count=1)
    cheaper = event.model_copy(update={"noise_multiplier": 2.0})
    exact = _worst(answers, rate, 1.0, 1.0)
    assert exact == pytest.approx(accounting.delta([event], 1.0), rel=1e-2)
    assert exact > 1.5 * accounting.delta([cheaper], 1.0)


@given(first=arrays.arrays("float32", (3, 5)), second=arrays.arrays("float32", (1, 5)), row=st.integers(0, 2))
@settings(max_examples=200, deadline=None)
def test_a_block_that_is_exchanged_moves_the_answer_by_at_most_twice_the_bound(first, second, row):
    other = first.copy()
    other[row] = second[0]
    mechanism = GaussianBlocks.__new__(GaussianBlocks)  # clipping needs no ledger
    mechanism.clip, mechanism._rows = 0.7, None
    moved = (mechanism._clip(torch.from_numpy(first)) - mechanism._clip(torch.from_numpy(other))).double()
    assert moved.norm() <= 2 * 0.7
    assert (moved[[number for number in range(3) if number != row]] == 0).all()


def test_noise_has_twice_the_bound_times_the_multiplier_as_deviation(tmp_path):
    answer = blocks(tmp_path, noise=1.5, clip=0.2).answer(torch.zeros(40, 500)).value_dp.double().numpy()
    statistic = float((answer**2).sum())
    for deviation, fits in ((2 * 0.2 * 1.5, True), (2 * 0.2 * 1.5 * 1.1, False), (0.2 * 1.5, False)):
        law = stats.chi2(answer.size, scale=deviation**2)
        assert (law.ppf(FALSE_ALARM / 2) < statistic < law.isf(FALSE_ALARM / 2)) == fits


def test_a_matrix_is_one_execution_however_many_blocks_it_has(tmp_path):
    mechanism = blocks(tmp_path, count=2, sampling=PoissonSampling(rate=0.1))
    mechanism.answer(torch.zeros(7, 4))
    assert mechanism.account.remaining == 1
    mechanism.answer(torch.zeros(3, 4))
    with pytest.raises(BudgetError):
        mechanism.answer(torch.zeros(1, 4))


def test_routed_sampling_and_another_sensitivity_are_refused(tmp_path):
    with pytest.raises(InputError, match="GaussianBlocks cannot be accounted with 'routed'"):
        blocks(tmp_path, sampling=RoutedSampling(subsets=5))
    event = Event(noise_multiplier=1.0, sensitivity="C", count=1, purpose="blocks")
    with pytest.raises(InputError, match="has sensitivity 2C, not C"):
        GaussianBlocks(Ledger.create(tmp_path / "other.jsonl"), Randomness(), clip=1.0, event=event)


def test_a_block_that_is_not_finite_is_noise_alone_and_too_many_stop_the_run(tmp_path):
    mechanism = blocks(tmp_path, noise=1e-9)
    rows = torch.zeros(4, 3)
    rows[2, 1] = math.nan
    assert mechanism.answer(rows).value_dp.abs().max() < 1e-6
    with pytest.raises(AbortedRun, match="'blocks' were not finite"):
        mechanism.check_finite()
