"""The law of the partition, tested two-sided on real operating-system entropy.

Each check rejects a correct partition with probability at most ``FALSE_ALARM`` (up to the normal approximation of its
statistic); each is also shown to reject one that is wrong in its way: a favoured subset, subsets of equal size, units
that travel together, a remainder without rejection.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.data.domain import SourceOptions
from understudy.data.partition import Partition

FALSE_ALARM = 1e-6
SUBSETS, UNITS, RUNS = 10, 40, 4_000
Rows = NDArray[np.int64]  # one row per partition, one column per unit


def chi_square_rejects(statistic: float, freedom: int) -> bool:
    """Too large (the law is wrong) or too small (the draws are more regular than chance)."""
    law = stats.chi2(freedom)
    return bool(min(law.sf(statistic), law.cdf(statistic)) < FALSE_ALARM / 2)


def subsets_reject(rows: Rows) -> bool:
    """Every subset is equally likely."""
    expected = rows.size / SUBSETS
    found = np.bincount(rows.ravel(), minlength=SUBSETS)
    return chi_square_rejects(float(((found - expected) ** 2).sum() / expected), SUBSETS - 1)


def positions_reject(rows: Rows) -> bool:
    """Every subset is equally likely for each unit by itself."""
    expected = len(rows) / SUBSETS
    found = np.stack([(rows == subset).sum(0) for subset in range(SUBSETS)])
    return chi_square_rejects(float(((found - expected) ** 2).sum() / expected), (SUBSETS - 1) * rows.shape[1])


def sizes_reject(rows: Rows) -> bool:
    """The sizes within one partition scatter as independent assignment makes them, neither more nor less."""
    expected = rows.shape[1] / SUBSETS
    sizes = np.stack([(rows == subset).sum(1) for subset in range(SUBSETS)])
    statistic = float(((sizes - expected) ** 2).sum() / expected)
    # The mean of one partition's statistic is SUBSETS - 1; its variance for a multinomial with equal cells:
    variance = 2 * (SUBSETS - 1) * (1 - 1 / rows.shape[1])
    score = (statistic - len(rows) * (SUBSETS - 1)) / np.sqrt(len(rows) * variance)
    return bool(2 * stats.norm.sf(abs(score)) < FALSE_ALARM)


def pairs_reject(rows: Rows) -> bool:
    """Two units share a subset with probability 1/K, for all pairs."""
    draws, units = rows.shape
    together = sum((rows == subset).T.astype(float) @ (rows == subset) for subset in range(SUBSETS))
    share = 1 / SUBSETS
    scores = (together[np.triu_indices(units, 1)] - draws * share) / np.sqrt(draws * share * (1 - share))
    return chi_square_rejects(float((scores**2).sum()), len(scores))


CHECKS = [subsets_reject, positions_reject, sizes_reject, pairs_reject]


def toy(units: int, copies: int = 1) -> ImageDataset:
    images = np.zeros((units * copies, 8, 8), dtype=np.uint8)
    clients = np.repeat(np.arange(units), copies)
    return from_arrays(images, client_ids=clients, records=1000, options=SourceOptions(nominal_clients=100))


@pytest.fixture(scope="module")
def drawn() -> Rows:
    data = toy(UNITS)
    return np.stack([Partition.draw(data, SUBSETS).assignment for _ in range(RUNS)])


@pytest.fixture(scope="module")
def drawn_by_client() -> Rows:
    data = toy(UNITS, copies=3)
    return np.stack([Partition.draw(data, SUBSETS, unit="client").assignment[::3] for _ in range(RUNS)])


@pytest.mark.parametrize("rejects", CHECKS)
def test_records_follow_the_law(drawn: Rows, rejects: Callable[[Rows], bool]) -> None:
    assert not rejects(drawn)


@pytest.mark.parametrize("rejects", CHECKS)
def test_clients_follow_the_law(drawn_by_client: Rows, rejects: Callable[[Rows], bool]) -> None:
    assert not rejects(drawn_by_client)


@pytest.mark.parametrize("unit", [0, 17, 39])
def test_the_others_are_independent_of_one_unit(drawn: Rows, unit: int) -> None:
    """Where a unit goes says nothing about its neighbours in the file, nor about all others' sizes."""
    for other in ((unit + 1) % UNITS, (unit - 1) % UNITS, (unit + 20) % UNITS):
        table = np.zeros((SUBSETS, SUBSETS))
        np.add.at(table, (drawn[:, unit], drawn[:, other]), 1)
        expected = RUNS / SUBSETS**2
        assert not chi_square_rejects(float(((table - expected) ** 2).sum() / expected), SUBSETS**2 - 1)


def test_removing_one_unit_leaves_the_law_of_the_others() -> None:
    """Assignments of the others with and without the unit come from the same law (two-sample chi-square)."""
    whole, without = toy(5), toy(4)
    found = np.zeros((2, 4, SUBSETS))
    for _ in range(RUNS):
        for row, others in enumerate(
            (Partition.draw(whole, SUBSETS).assignment[1:], Partition.draw(without, SUBSETS).assignment)
        ):
            found[row, np.arange(4), others] += 1
    statistic = float(((found[0] - found[1]) ** 2 / found.sum(0)).sum())
    assert not chi_square_rejects(statistic, 4 * (SUBSETS - 1))


@pytest.mark.parametrize("removed", [0, 3, 19])
def test_removing_one_unit_changes_one_subset_only(removed: int) -> None:
    """With the same randomness for every other unit, the other subsets stay as they are, byte for byte."""
    words = [os.urandom(4) for _ in range(20)]
    # Words that uniform draws would reject are left out, so that unit i always consumes word i.
    words = [word if int.from_bytes(word, "little") < 4 * 10**9 else bytes(4) for word in words]
    kept = [word for number, word in enumerate(words) if number != removed]
    whole = Partition.draw(toy(20), SUBSETS, bits=lambda count: b"".join(words))
    without = Partition.draw(toy(19), SUBSETS, bits=lambda count: b"".join(kept))
    assert np.array_equal(np.delete(whole.assignment, removed), without.assignment)
    changed = np.bincount(whole.assignment, minlength=SUBSETS) != np.bincount(without.assignment, minlength=SUBSETS)
    assert np.flatnonzero(changed).tolist() == [whole.assignment[removed]]


def test_a_subset_favoured_by_ten_percent_is_rejected() -> None:
    weights = np.ones(SUBSETS)
    weights[3] = 1.1
    rows = np.random.default_rng().choice(SUBSETS, (4 * RUNS, UNITS), p=weights / weights.sum())
    assert subsets_reject(rows)


def test_subsets_of_equal_size_are_rejected() -> None:
    generator = np.random.default_rng()
    rows = np.stack([generator.permutation(np.arange(UNITS) % SUBSETS) for _ in range(RUNS)])
    assert not positions_reject(rows), "each unit alone is uniform, which is why that alone proves nothing"
    assert sizes_reject(rows)
    assert pairs_reject(rows)


def test_units_that_travel_together_are_rejected() -> None:
    generator = np.random.default_rng()
    rows = generator.integers(0, SUBSETS, (RUNS, UNITS))
    joined = generator.random(RUNS) < 0.3
    rows[joined, 1] = rows[joined, 0]
    assert pairs_reject(rows)


def test_a_remainder_without_rejection_is_rejected() -> None:
    """Bytes modulo 10 favour 0..5 by four percent: the check sees it."""
    rows = np.frombuffer(os.urandom(8 * RUNS * UNITS), dtype=np.uint8).astype(np.int64).reshape(-1, UNITS)
    assert subsets_reject(rows % SUBSETS)
