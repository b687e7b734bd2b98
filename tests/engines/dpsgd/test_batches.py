"""Poisson batches: every record by its own coin, nothing cut off, and the realised rate never above the stated one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.errors import InputError
from understudy.privacy.randomness.streams import KeyedWords, Randomness

CPU = torch.device("cpu")
FALSE_ALARM = 1e-6


def batches(records, rate, seed=None):
    return PoissonBatches(records, rate, Randomness(seed).coins(CPU))


def test_a_table_holds_every_record_that_was_drawn_once_and_fills_up_with_the_filler():
    taken = Randomness(1).coins(CPU).flip((40, 50), 0.3)
    table = batches(50, 0.3, seed=1).draw(40, multiple=8)
    assert table.indices.shape[1] % 8 == 0
    assert table.filler == 50
    for row, size, flips in zip(table.indices, table.sizes, taken, strict=True):
        assert row[:size].tolist() == flips.nonzero().flatten().tolist()
        assert (row[size:] == 50).all()


def test_a_batch_larger_than_a_multiple_is_kept_whole():
    table = batches(30, 1.0).draw(2, multiple=8)
    assert table.sizes == (30, 30)
    assert table.indices.shape == (2, 32)
    assert table.indices[0, :30].tolist() == list(range(30))


@pytest.mark.parametrize(("records", "rate"), [(0, 0.5), (5, 1e-12), (60, 1e-300)])
def test_an_empty_batch_is_a_batch(records, rate):
    table = batches(records, rate).draw(3, multiple=4)
    assert table.sizes == (0, 0, 0)
    assert (table.indices == records).all()
    assert table.indices.shape == (3, 4)


def test_their_text_does_not_show_private_numbers():
    source = batches(37, 0.5)
    for text in (repr(source), repr(source.draw(2))):
        assert "tensor" not in text
        assert "sizes" not in text
        assert "37," not in text


def test_draws_are_fresh():
    source = batches(200, 0.5)
    drawn = [tuple(source.draw(1).indices[0].tolist()) for _ in range(10)] + [
        tuple(row.tolist()) for row in batches(200, 0.5).draw(10).indices
    ]
    assert all(one != other for one, other in itertools.combinations(drawn, 2))


def test_sizes_follow_the_binomial_law():
    """Chi-square over 4,000 steps; false-alarm rate 1e-6."""
    records, rate, steps = 200, 0.05, 4000
    source = batches(records, rate)
    sizes = np.array([size for _ in range(10) for size in source.draw(steps // 10).sizes])
    law = stats.binom(records, rate)
    edges = [4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18]
    cells = np.digitize(sizes, edges)
    expected = np.diff(np.concatenate([[0], law.cdf(np.array(edges) - 1), [1]])) * steps
    assert stats.chisquare(np.bincount(cells, minlength=len(expected)), expected).pvalue > FALSE_ALARM


def test_each_record_and_each_pair_comes_as_often_as_it_should():
    """Exact binomial tests for 20 records and 190 pairs, Bonferroni; a wrong rate of one record would be seen."""
    records, rate, steps = 20, 0.3, 4000
    taken = torch.zeros(steps, records + 1)
    table = batches(records, rate).draw(steps)
    taken.scatter_(1, table.indices, 1.0)
    taken = taken[:, :records].numpy()
    pairs = list(itertools.combinations(range(records), 2))
    counts = [(taken[:, one].sum(), rate) for one in range(records)]
    counts += [((taken[:, one] * taken[:, other]).sum(), rate**2) for one, other in pairs]
    lowest = min(stats.binomtest(int(count), steps, law).pvalue for count, law in counts)
    assert lowest > FALSE_ALARM / len(counts)


def test_the_same_test_sees_a_rate_that_is_ten_per_cent_off():
    flips = Randomness().coins(CPU).flip((400_000,), 0.11)
    assert stats.binomtest(int(flips.sum()), 400_000, 0.1).pvalue < FALSE_ALARM


@pytest.mark.parametrize("rate", [1 / 3, 0.1, 128 / 60000, 5e-10, 1 - 2**-53])
def test_the_threshold_is_never_above_the_rate(rate, monkeypatch):
    """One step below the threshold is taken, the threshold itself is not: floor(rate * 2^63) words out of 2^63."""
    from fractions import Fraction

    threshold = int(Fraction(rate) * 2**63)
    assert Fraction(threshold, 2**63) <= Fraction(rate) < Fraction(threshold + 1, 2**63)
    words = torch.tensor([threshold - 1, threshold, 0, 2**63 - 1])
    monkeypatch.setattr(KeyedWords, "words", lambda self, count: words)
    assert Randomness().coins(CPU).flip((4,), rate).tolist() == [True, False, True, False]


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(InputError, match="rate"):
        Randomness().coins(CPU).flip((3,), rate)


def test_many_steps_are_drawn_at_once_but_not_too_many():
    assert batches(10, 0.1).steps_at_once == 64
    assert batches(60_000, 0.1).steps_at_once == 64
    assert batches(3_000_000, 0.1).steps_at_once == 1
    assert batches(10**9, 0.1).steps_at_once == 1
