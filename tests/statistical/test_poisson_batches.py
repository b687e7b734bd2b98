"""The law of the Poisson batches that private steps draw, tested two-sided on real operating-system entropy.

Each check rejects a correct sampler with probability at most ``FALSE_ALARM`` (up to the normal approximation of its
statistic, which the sample sizes keep good); each is also shown to reject a sampler that is wrong in its way.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from understudy.data.sampling import sampling_rate, uniform_integers
from understudy.engines.dpsgd.batches import PoissonBatches
from understudy.privacy.randomness.streams import Randomness

FALSE_ALARM = 1e-6
Draw = Callable[[], NDArray[np.int64]]


def chi_square_rejects(statistic: float, freedom: int) -> bool:
    """Too large (the law is wrong) or too small (the draws are more regular than chance)."""
    law = stats.chi2(freedom)
    return bool(min(law.sf(statistic), law.cdf(statistic)) < FALSE_ALARM / 2)


def taken(draw: Draw, units: int, draws: int) -> NDArray[np.float64]:
    """Who took part: one row per batch, one column per unit."""
    rows = np.zeros((draws, units))
    for row in rows:
        row[draw()] = 1
    return rows


def rate_rejects(rows: NDArray[np.float64], rate: float) -> bool:
    """The number of all participations is binomial."""
    return bool(stats.binomtest(int(rows.sum()), rows.size, rate).pvalue < FALSE_ALARM)


def units_reject(rows: NDArray[np.float64], rate: float) -> bool:
    """Every unit takes part at the same rate."""
    draws, units = rows.shape
    scores = (rows.sum(0) - draws * rate) / np.sqrt(draws * rate * (1 - rate))
    return chi_square_rejects(float((scores**2).sum()), units)


def sizes_reject(rows: NDArray[np.float64], rate: float) -> bool:
    """The size of a batch is binomial: compare all frequent sizes, the tails joined to the outermost."""
    draws, units = rows.shape
    law = stats.binom(units, rate)
    frequent = [size for size in range(units + 1) if draws * law.pmf(size) >= 200]
    low, high = frequent[0], frequent[-1]
    found = np.bincount(np.clip(rows.sum(1).astype(int), low, high) - low, minlength=high - low + 1)
    expected = draws * np.array([law.cdf(low), *law.pmf(np.arange(low + 1, high)), law.sf(high - 1)])
    return chi_square_rejects(float(((found - expected) ** 2 / expected).sum()), len(expected) - 1)


def pairs_reject(rows: NDArray[np.float64], rate: float) -> bool:
    """Two units take part independently of each other, for all pairs."""
    draws, units = rows.shape
    centred = (rows - rate) / np.sqrt(rate * (1 - rate))
    scores = (centred.T @ centred / np.sqrt(draws))[np.triu_indices(units, 1)]
    return chi_square_rejects(float((scores**2).sum()), len(scores))


def memory_rejects(rows: NDArray[np.float64], rate: float) -> bool:
    """A batch does not depend on the one before it."""
    centred = (rows - rate) / np.sqrt(rate * (1 - rate))
    scores = (centred[1:] * centred[:-1]).sum(0) / np.sqrt(len(rows) - 1)
    return chi_square_rejects(float((scores**2).sum()), rows.shape[1])


CHECKS = [rate_rejects, units_reject, sizes_reject, pairs_reject, memory_rejects]
UNITS, RATE, DRAWS = 40, 0.3, 20_000


def batches(units: int, rate: float) -> PoissonBatches:
    return PoissonBatches(units, rate, Randomness().coins(torch.device("cpu")))


def drawn(rate: float) -> NDArray[np.float64]:
    """Who took part in ``DRAWS`` batches of ``UNITS`` units, drawn as many at a time as a step draws ahead."""
    source = batches(UNITS, rate)
    rows = []
    while len(rows) * source.steps_at_once < DRAWS:
        table = source.draw(source.steps_at_once)
        rows.append(torch.zeros(source.steps_at_once, UNITS + 1, dtype=torch.float64).scatter_(1, table.indices, 1.0))
    return torch.cat(rows)[:DRAWS, :UNITS].numpy()


def total_size(rate: float, draws: int) -> int:
    """How many records came in so many batches out of 60,000."""
    source = batches(60_000, rate)
    return sum(sum(source.draw(50).sizes) for _ in range(draws // 50))


@pytest.fixture(scope="module")
def sampled() -> NDArray[np.float64]:
    return drawn(sampling_rate(30, 100))


@pytest.mark.parametrize("rejects", CHECKS)
def test_batches_follow_the_law(
    sampled: NDArray[np.float64], rejects: Callable[[NDArray[np.float64], float], bool]
) -> None:
    assert not rejects(sampled, RATE)


def test_the_rate_is_exact_at_the_size_of_mnist() -> None:
    rate = sampling_rate(128, 60_000)
    assert stats.binomtest(total_size(rate, 1_000), 60_000 * 1_000, rate).pvalue >= FALSE_ALARM


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_rate_ten_percent_off_is_rejected(factor: float) -> None:
    rows = drawn(RATE * factor)
    assert rate_rejects(rows, RATE)
    assert units_reject(rows, RATE)
    assert sizes_reject(rows, RATE)
    total = total_size(factor * 128 / 60_000, 200)
    assert stats.binomtest(total, 60_000 * 200, 128 / 60_000).pvalue < FALSE_ALARM


def test_units_ten_percent_off_each_way_are_rejected() -> None:
    generator = np.random.default_rng()
    rates = np.where(np.arange(UNITS) % 2, 1.1 * RATE, 0.9 * RATE)
    rows = (generator.random((DRAWS, UNITS)) < rates).astype(float)
    assert units_reject(rows, RATE)


def test_batches_of_fixed_size_are_rejected() -> None:
    generator = np.random.default_rng()
    rows = taken(lambda: generator.permutation(UNITS)[: int(UNITS * RATE)], UNITS, DRAWS)
    assert rate_rejects(rows, RATE) is False, "its rate is right, which is why the rate alone proves nothing"
    assert sizes_reject(rows, RATE)
    assert pairs_reject(rows, RATE)


def test_shuffled_epochs_are_rejected() -> None:
    generator = np.random.default_rng()

    def epochs() -> NDArray[np.float64]:
        rows = np.zeros((DRAWS, UNITS))
        for start in range(0, DRAWS, 4):
            order = generator.permutation(UNITS)
            for batch in range(4):
                rows[start + batch, order[batch * 10 : batch * 10 + 10]] = 1
        return rows

    rows = epochs()
    assert memory_rejects(rows, 0.25)
    assert sizes_reject(rows, 0.25)


def test_units_that_move_together_are_rejected() -> None:
    generator = np.random.default_rng()
    rows = (generator.random((DRAWS, UNITS)) < RATE).astype(float)
    swapped = generator.random(DRAWS) < 0.3
    rows[swapped, 1] = rows[swapped, 0]
    assert pairs_reject(rows, RATE)


def test_integers_are_uniform_where_a_remainder_would_not_be() -> None:
    bound, count = 3 * 2**30, 300_000
    third = int((uniform_integers(count, bound, os.urandom) < 2**30).sum())
    assert stats.binomtest(third, count, 1 / 3).pvalue >= FALSE_ALARM
    folded = np.frombuffer(os.urandom(4 * count), dtype="<u4").astype(np.int64) % bound
    assert stats.binomtest(int((folded < 2**30).sum()), count, 1 / 3).pvalue < FALSE_ALARM
