"""Votes: no teacher moves a tally further than the mechanism says, counts are exact, and the noise has its scale."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays
from scipy import stats

from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import BinVotes, PeakVotes, RealVotes, SignVotes
from understudy.privacy.randomness.streams import Randomness

FALSE_ALARM = 1e-6
VALUES, TEACHERS = 6, 3
anything = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, -1.0])
one_teacher = arrays.arrays(np.float32, (1, 1, VALUES), elements=anything)


def votes_of(kind, folder, count=100, multiplier=1.0):
    """A mechanism of the kind, with everything that it needs, on a ledger of its own."""
    convention = {SignVotes: "2C", BinVotes: "sqrt(2)C", PeakVotes: "C", RealVotes: "C"}[kind]
    more = {
        SignVotes: {"top": 4},
        BinVotes: {"coordinates": VALUES, "bins": 5, "limit": 1.0},
        PeakVotes: {"coordinates": VALUES},
        RealVotes: {},
    }[kind]
    ledger = Ledger.create(folder / f"{kind.__name__}.jsonl")
    event = Event(noise_multiplier=multiplier, sensitivity=convention, count=count, purpose="votes")
    return kind(ledger, Randomness(), event=event, **more)


def tally_of(mechanism, rows):
    """The tally of several teachers, each a (1, queries, values) array."""
    queries = rows[0].shape[1]
    shape = {SignVotes: (queries, VALUES), BinVotes: (queries, VALUES, 5), RealVotes: (queries,)}[type(mechanism)]
    tally = torch.zeros(shape, dtype=torch.int64)
    mechanism.count(tally, torch.from_numpy(np.concatenate(rows)))
    return tally


def distance(first, second):
    return float((first - second).double().norm())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("votes")


@pytest.fixture(scope="module")
def signs(folder):
    return votes_of(SignVotes, folder)


@pytest.fixture(scope="module")
def histograms(folder):
    return votes_of(BinVotes, folder), votes_of(PeakVotes, folder)


@pytest.fixture(scope="module")
def reals(folder):
    return votes_of(RealVotes, folder)


@settings(max_examples=200, deadline=None)
@given(first=one_teacher, second=one_teacher, others=arrays.arrays(np.float32, (2, 1, VALUES), elements=anything))
def test_another_gradient_of_one_teacher_moves_signs_by_at_most_twice_the_root_of_top(signs, first, second, others):
    moved = distance(tally_of(signs, [first, others]), tally_of(signs, [second, others]))
    assert moved <= 2 * math.sqrt(4) == signs.reach
    assert int(signs.cast(torch.from_numpy(first)).abs().sum()) <= 4


@settings(max_examples=200, deadline=None)
@given(values=one_teacher, other=one_teacher, coins=arrays.arrays(np.float32, (1, 1, VALUES), elements=st.floats(0, 1)))
def test_drawn_signs_are_votes_like_any_other(signs, values, other, coins):
    cast = signs.cast(torch.from_numpy(values), torch.from_numpy(coins.astype(np.float32)))
    assert set(cast.unique().tolist()) <= {-1, 0, 1}
    assert int(cast.abs().sum()) <= 4
    assert distance(cast, signs.cast(torch.from_numpy(other))) <= signs.reach


@settings(max_examples=200, deadline=None)
@given(first=one_teacher, second=one_teacher, others=arrays.arrays(np.float32, (2, 1, VALUES), elements=anything))
def test_another_gradient_of_one_teacher_moves_histograms_and_their_peaks_within_reach(
    histograms, first, second, others
):
    votes, peaks = histograms
    before, after = tally_of(votes, [first, others]), tally_of(votes, [second, others])
    assert distance(before, after) <= math.sqrt(2 * VALUES) == votes.reach
    assert distance(peaks.peaks(before), peaks.peaks(after)) <= math.sqrt(VALUES) == peaks.reach
    assert before.sum(dim=2).eq(TEACHERS).all(), "every teacher has one vote in every histogram"


@settings(max_examples=100, deadline=None)
@given(
    first=arrays.arrays(np.float32, (1, 4), elements=anything),
    second=arrays.arrays(np.float32, (1, 4), elements=anything),
    others=arrays.arrays(np.float32, (2, 4), elements=anything),
)
def test_another_score_of_one_teacher_moves_each_count_by_at_most_one(reals, first, second, others):
    before, after = tally_of(reals, [first, others]), tally_of(reals, [second, others])
    assert (before - after).abs().max() <= 1 == reals.reach


def test_the_bounds_are_reached(signs, histograms, reals):
    """A smaller noise would be too small."""
    up = np.ones((1, 1, VALUES), np.float32)
    votes, peaks = histograms
    assert distance(tally_of(signs, [up]), tally_of(signs, [-up])) == signs.reach
    assert distance(tally_of(votes, [up]), tally_of(votes, [-up])) == votes.reach
    assert distance(*(peaks.peaks(tally_of(votes, [up, other])) for other in (up, -up))) == peaks.reach
    assert distance(tally_of(reals, [up[0]]), tally_of(reals, [-up[0]])) == reals.reach * VALUES**0.5  # of six queries


def test_votes_of_many_teachers_are_counted_exactly(signs, histograms):
    rows = np.random.default_rng(0).normal(size=(5000, 2, VALUES)).astype(np.float32)
    expected = np.zeros((2, VALUES), np.int64)
    for row in rows:
        for query in range(2):
            places = np.argsort(-np.abs(row[query]))[:4]
            expected[query, places] += np.sign(row[query, places]).astype(np.int64)
    assert np.array_equal(tally_of(signs, [rows]).numpy(), expected)
    bins = np.clip(np.floor((rows + 1) / 2 * 5), 0, 4).astype(np.int64)
    counted = tally_of(histograms[0], [rows]).numpy()
    for place in range(5):
        assert np.array_equal(counted[..., place], (bins == place).sum(axis=0))


def test_the_middle_of_a_bin_lies_in_that_bin(histograms):
    votes = histograms[0]
    middles = votes.middles(torch.device("cpu"))
    assert votes.cast(middles.view(1, 5, 1).expand(1, 5, VALUES))[0, :, 0].tolist() == [0, 1, 2, 3, 4]
    assert middles.tolist() == pytest.approx([-0.8, -0.4, 0.0, 0.4, 0.8])


@pytest.mark.parametrize(
    ("kind", "shape", "reach"),
    [
        (SignVotes, (100, 1000), 4.0),
        (BinVotes, (100, 200, 5), math.sqrt(2 * VALUES)),
        (PeakVotes, (100, 1000), math.sqrt(VALUES)),
        (RealVotes, (100_000,), 1.0),
    ],
)
def test_the_noise_has_the_promised_scale_and_law(kind, shape, reach, tmp_path):
    mechanism = votes_of(kind, tmp_path, count=shape[0], multiplier=2.5)
    noise = mechanism.release(torch.full(shape, 7, dtype=torch.int64)).value_dp.numpy().ravel() - 7
    scaled = noise / (reach * 2.5)
    tail = stats.chi2(len(scaled))
    statistic = float(np.square(scaled).sum())
    assert 2 * min(tail.cdf(statistic), tail.sf(statistic)) > FALSE_ALARM
    assert stats.kstest(scaled, "norm").pvalue > FALSE_ALARM
    assert 2 * min(tail.cdf(statistic * 1.1), tail.sf(statistic * 1.1)) < FALSE_ALARM, "the test can fail"


def test_every_query_costs_one_execution_and_none_is_answered_beyond_the_plan(tmp_path):
    mechanism = votes_of(RealVotes, tmp_path, count=5)
    answer = mechanism.release(torch.zeros(3, dtype=torch.int64))
    assert answer.event.executed == 3
    assert mechanism.account.remaining == 2
    with pytest.raises(BudgetError, match="only 2 of the 5 planned"):
        mechanism.release(torch.zeros(3, dtype=torch.int64))


def test_a_tally_that_is_not_exact_and_another_number_of_coordinates_are_refused(tmp_path, histograms):
    with pytest.raises(InputError, match="count in whole numbers"):
        votes_of(RealVotes, tmp_path).release(torch.zeros(3))
    with pytest.raises(InputError, match="4 coordinates, but 6 are accounted"):
        histograms[0].cast(torch.zeros(1, 1, 4))


def test_another_sensitivity_or_sampling_than_that_of_the_votes_is_refused(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    wrong = Event(noise_multiplier=1.0, sensitivity="C", count=1, purpose="votes")
    with pytest.raises(InputError, match="SignVotes has sensitivity 2C, not C"):
        SignVotes(ledger, Randomness(), top=4, event=wrong)
    sampled = wrong.model_copy(update={"sampling": PoissonSampling(rate=0.5)})
    with pytest.raises(InputError, match="cannot be accounted with 'poisson' sampling"):
        RealVotes(ledger, Randomness(), event=sampled)


def test_teachers_whose_gradients_are_not_finite_cast_an_empty_vote_and_too_many_end_the_run(tmp_path):
    mechanism = votes_of(SignVotes, tmp_path)
    broken = torch.ones(2, 1, VALUES)
    broken[0, 0, 3] = torch.nan
    assert mechanism.cast(broken)[0].eq(0).all()
    with pytest.raises(AbortedRun, match="not finite"):
        mechanism.check_finite()
