"""Mechanisms: no unit moves the exact value by more than the sensitivity, and every output is on record."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from understudy.errors import AbortedRun, BudgetError, InputError
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianAnswers, GaussianSum, clip_rows
from understudy.privacy.randomness.streams import OS_ENTROPY, SEEDED, Randomness

HOSTILE = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 3e38, 1e-30, 1e-45, math.nan, math.inf, -math.inf])
VALUES = st.one_of(HOSTILE, st.floats(width=32))
ROWS = arrays.arrays("float32", st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=VALUES)


CPU = torch.device("cpu")


def mechanism(kind, tmp_path, *, clip=1.0, planned=100, noise=2.0, sampling=None):
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    sampling = sampling or NoSampling()
    other = "2C" if sampling.kind in ("routed", "revealed") else None
    event = Event(
        noise_multiplier=noise,
        sensitivity=kind.sensitivity if sampling.kind in kind.allowed_sampling else other,
        sampling=sampling,
        count=planned,
        purpose="test",
    )
    return kind(ledger, Randomness(), clip=clip, event=event)


@given(rows=ROWS, bound=st.sampled_from([1e-3, 0.5, 1.0, 1.1, 1e3]))
@settings(max_examples=300, deadline=None)
def test_no_row_is_longer_than_the_bound_whatever_it_held(rows, bound):
    clipped = clip_rows(torch.from_numpy(rows), bound).double()
    assert torch.isfinite(clipped).all()
    assert (clipped.norm(dim=1) <= bound).all()


@pytest.mark.parametrize("values", [784, 8001, 200_001])
def test_one_large_entry_does_not_hide_many_small_ones(values):
    """In single precision the sum of squares would lose the small entries and leave the row too long."""
    row = torch.full((1, values), 2.4e-4)
    row[0, 0] = 1.0
    assert clip_rows(row, 0.5).double().norm() <= 0.5


@given(rows=ROWS)
@settings(max_examples=200, deadline=None)
def test_clipping_keeps_directions_and_leaves_short_rows_alone(rows):
    rows = torch.from_numpy(rows)
    clipped = clip_rows(rows, 1.0)
    for row, result in zip(rows.double(), clipped.double(), strict=True):
        if not torch.isfinite(row).all():
            assert (result == 0).all()
        elif row.norm() <= 0.999:
            assert torch.equal(result, row)
        else:
            cosine = torch.dot(result / result.norm(), row / row.abs().max() / (row / row.abs().max()).norm())
            assert cosine > 0.9999
            assert result.norm() > 0.999


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_are_computed_in_float32_or_better(dtype):
    rows = torch.full((4, 10_000), 0.01, dtype=dtype)
    assert clip_rows(rows, 0.5).dtype == torch.float32
    assert (clip_rows(rows, 0.5).double().norm(dim=1) <= 0.5).all()


@given(rows=ROWS, extra=arrays.arrays("float32", 6, elements=VALUES))
@settings(max_examples=100, deadline=None)
def test_one_more_unit_moves_an_exact_sum_by_at_most_the_clip_bound(tmp_path_factory, rows, extra):
    summing = mechanism(GaussianSum, tmp_path_factory.mktemp("run"), clip=0.7)
    rows, extra = torch.from_numpy(rows), torch.from_numpy(extra[: rows.shape[1]])
    totals = [torch.zeros(rows.shape[1], dtype=torch.float64) for _ in range(2)]
    summing.accumulate(totals[0], rows)
    summing.accumulate(totals[1], torch.cat([rows, extra[None]]))
    assert (totals[1] - totals[0]).norm() <= 0.7 * (1 + 1e-12)


def test_slots_place_each_row_whole_into_one_cell(tmp_path):
    summing = mechanism(GaussianSum, tmp_path)
    total = torch.zeros(3, 2, dtype=torch.float64)
    summing.accumulate(total, torch.tensor([[0.6, 0.0], [0.0, 0.5], [0.1, 0.1]]), torch.tensor([2, 0, 2]))
    assert torch.allclose(total, torch.tensor([[0.0, 0.5], [0.0, 0.0], [0.7, 0.1]], dtype=torch.float64))


def test_the_event_returned_is_the_event_recorded(tmp_path):
    answering = mechanism(GaussianAnswers, tmp_path, sampling=RoutedSampling(subsets=7), noise=1.25)
    event = answering.answer(torch.zeros(9, 4)).event
    (recorded,) = Ledger.open(tmp_path / "ledger.jsonl").events()
    assert (event.noise_multiplier, event.sampling, event.executed) == (1.25, RoutedSampling(subsets=7), 9)
    assert (recorded.noise_multiplier, recorded.sampling, recorded.executed) == (1.25, RoutedSampling(subsets=7), 9)


def test_nothing_is_answered_past_the_plan(tmp_path):
    answering = mechanism(GaussianAnswers, tmp_path, planned=10)
    answering.answer(torch.zeros(10, 4))
    with pytest.raises(BudgetError):
        answering.answer(torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [
        (GaussianSum, RoutedSampling(subsets=5)),
        (GaussianSum, RevealedRouting(subsets=5, rows=1)),
        (GaussianAnswers, PoissonSampling(rate=0.1)),
    ],
)
def test_a_sampling_the_mechanism_does_not_have_is_refused(tmp_path, kind, sampling):
    with pytest.raises(InputError, match="cannot be accounted"):
        mechanism(kind, tmp_path, sampling=sampling)


@pytest.mark.parametrize(("kind", "wrong"), [(GaussianSum, "2C"), (GaussianSum, None), (GaussianAnswers, "C")])
def test_an_event_with_another_sensitivity_than_the_mechanism_has_is_refused(tmp_path, kind, wrong):
    event = Event(noise_multiplier=1.0, sensitivity=wrong, count=1, purpose="test")
    with pytest.raises(InputError, match="has sensitivity"):
        kind(Ledger.create(tmp_path / "ledger.jsonl"), Randomness(), clip=1.0, event=event)


def test_a_revealed_draw_answers_exactly_its_rows(tmp_path):
    answering = mechanism(GaussianAnswers, tmp_path, sampling=RevealedRouting(subsets=5, rows=2))
    answering.answer(torch.zeros(2, 4))
    with pytest.raises(InputError, match="8 answers to one draw, but 2 are accounted"):
        answering.answer(torch.zeros(8, 4))


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_that_bounds_nothing_is_refused(tmp_path, clip):
    with pytest.raises(InputError, match="clip"):
        mechanism(GaussianSum, tmp_path, clip=clip)


def test_broken_rows_count_as_zero_and_too_many_stop_the_run(tmp_path):
    summing = mechanism(GaussianSum, tmp_path)
    total = torch.zeros(2, dtype=torch.float64)
    summing.accumulate(total, torch.ones(1000, 2) * 0.001)
    summing.accumulate(total, torch.tensor([[math.nan, 1.0]]))
    summing.check_finite()
    summing.accumulate(total, torch.full((500, 2), math.inf))
    assert torch.isfinite(total).all()
    with pytest.raises(AbortedRun, match="not finite"):
        summing.check_finite()


class TestReleaseOnce:
    def test_a_second_call_returns_the_same_noise_and_charges_once(self, tmp_path):
        summing = mechanism(GaussianSum, tmp_path, planned=1)
        first = summing.release_once(lambda: torch.zeros(5, dtype=torch.float64), tmp_path / "sum.safetensors")
        second = summing.release_once(lambda: pytest.fail("drawn twice"), tmp_path / "sum.safetensors")
        assert torch.equal(first, second)
        assert first.abs().min() > 0
        assert summing.account.reserved == 1

    def test_a_crash_before_the_record_draws_again(self, tmp_path):
        summing = mechanism(GaussianSum, tmp_path, planned=1)
        (tmp_path / "sum.pending").write_bytes(b"left over, never used")
        summing.release_once(lambda: torch.zeros(5, dtype=torch.float64), tmp_path / "sum.safetensors")
        assert summing.account.reserved == 1

    def test_a_crash_after_the_record_finds_the_result(self, tmp_path):
        summing = mechanism(GaussianSum, tmp_path, planned=1)
        value = summing.release_once(lambda: torch.zeros(5, dtype=torch.float64), tmp_path / "sum.safetensors")
        (tmp_path / "sum.safetensors").rename(tmp_path / "sum.pending")
        again = summing.release_once(lambda: pytest.fail("drawn twice"), tmp_path / "sum.safetensors")
        assert torch.equal(value, again)

    def test_a_result_that_is_gone_is_not_drawn_again(self, tmp_path):
        summing = mechanism(GaussianSum, tmp_path, planned=1)
        summing.release_once(lambda: torch.zeros(5, dtype=torch.float64), tmp_path / "sum.safetensors")
        (tmp_path / "sum.safetensors").unlink()
        with pytest.raises(BudgetError, match="paid for"):
            summing.release_once(lambda: torch.zeros(5, dtype=torch.float64), tmp_path / "sum.safetensors")


def test_two_sources_of_entropy_never_agree_and_a_seed_is_stamped():
    assert Randomness().bits(16) != Randomness().bits(16)
    assert not torch.equal(*(Randomness().noise(CPU).draw(torch.Size([8])) for _ in range(2)))
    assert Randomness().stamp == OS_ENTROPY
    assert Randomness(3).stamp == SEEDED
    seeded = Randomness(3)
    assert seeded.bits(8) != seeded.bits(8)
    assert Randomness(3).bits(8) == Randomness(3).bits(8)


def test_noise_is_drawn_and_added_in_double_precision(tmp_path):
    """Single-precision normals end at 5.8 deviations, where the certified tail does not."""
    assert Randomness().noise(CPU).draw(torch.Size([3])).dtype == torch.float64
    answering = mechanism(GaussianAnswers, tmp_path)
    assert answering._noisy(torch.zeros(2, 3), 1.0).dtype == torch.float64


NORMS = st.lists(st.one_of(HOSTILE.map(abs), st.floats(0)), min_size=1, max_size=20)


@given(norms=NORMS, clip=st.sampled_from([1e-3, 1.0, 1.1, 1e3]))
@settings(max_examples=200, deadline=None)
def test_a_clip_factor_brings_every_norm_within_the_bound_even_in_float32(tmp_path_factory, norms, clip):
    summing = mechanism(GaussianSum, tmp_path_factory.mktemp("run"), clip=clip)
    norms = torch.tensor(norms, dtype=torch.float64)
    factors = summing.clip_factors(norms, torch.ones(len(norms), dtype=torch.bool))
    for norm, factor, rounded in zip(norms.tolist(), factors.tolist(), factors.float().double().tolist(), strict=True):
        assert 0 <= factor <= 1
        if not math.isfinite(norm):
            assert factor == 0
        else:
            assert norm * rounded <= clip
            assert factor == 1 or norm * factor > 0.999 * clip or norm > 1e34 * clip


def test_rows_that_only_fill_up_a_batch_get_no_weight_and_are_not_counted(tmp_path):
    summing = mechanism(GaussianSum, tmp_path)
    norms = torch.tensor([0.5, math.nan, 0.5, math.nan])
    for _ in range(100):
        factors = summing.clip_factors(norms, torch.tensor([True, False, False, False]))
        assert factors.tolist() == [1, 0, 0, 0]
    summing.check_finite()
    summing.clip_factors(norms, torch.tensor([True, True, False, True]))
    with pytest.raises(AbortedRun, match="not finite"):
        summing.check_finite()


@pytest.mark.parametrize("clip", [0.0, -1.0, 1e-41, 1e31, float("inf"), float("nan")])
def test_clip_bounds_that_float32_cannot_keep_are_refused(tmp_path, clip):
    with pytest.raises(InputError, match=r"clip: .* is not a positive bound between 1e-30 and 1e\+30"):
        mechanism(GaussianSum, tmp_path, clip=clip)
