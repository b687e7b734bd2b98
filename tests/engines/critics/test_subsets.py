"""Batches inside subsets, and a warm start that keeps every record with its own critic."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.engines.critics.bank import CriticBank, CriticBankConfig
from understudy.engines.critics.subsets import PrivateRecords, SubsetTable, take
from understudy.engines.critics.warm_start import WarmStartConfig, warm_start
from understudy.errors import InputError
from understudy.models.critic import CriticConfig

ASSIGNMENT = torch.tensor([0, 3, 1, 0, 3, 3, 1, 0])


def make_bank(active):
    config = CriticBankConfig(critic=CriticConfig(shape=(1, 8, 8), classes=3, width=8), critics=len(active))
    return CriticBank(config, active=active, generator=torch.Generator().manual_seed(1))


def make_records(seed=0, assignment=ASSIGNMENT):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (len(assignment), 1, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (len(assignment),), generator=generator)
    return PrivateRecords(images, labels, SubsetTable.from_assignment(assignment, 4))


def test_table_holds_every_record_once():
    table = SubsetTable.from_assignment(ASSIGNMENT, 4)
    assert table.sizes.tolist() == [3, 2, 0, 3]
    held = [sorted(row[:size].tolist()) for row, size in zip(table.members, table.sizes, strict=True)]
    assert held == [[0, 3, 7], [2, 6], [], [1, 4, 5]]
    assert table.nonempty.tolist() == [True, True, False, True]


@given(st.integers(0, 60), st.integers(1, 40), st.integers(0, 2**32))
@settings(deadline=None)
def test_subsets_are_disjoint_and_complete(records, subsets, seed):
    assignment = torch.randint(subsets, (records,), generator=torch.Generator().manual_seed(seed))
    table = SubsetTable.from_assignment(assignment, subsets)
    parts = [torch.nonzero(assignment == subset)[:, 0].tolist() for subset in range(subsets)]
    assert table.sizes.tolist() == [len(part) for part in parts]
    assert table.members.shape == (subsets, max(1, *map(len, parts)))
    for row, part in zip(table.members.tolist(), parts, strict=True):
        assert row[: len(part)] == part
        assert set(row[len(part) :]) <= {0}, "a valid index, so that a gather never fails"


def test_empty_subsets_are_valid():
    table = SubsetTable.from_assignment(torch.tensor([7]), 50)
    assert sorted(table.sizes.tolist()) == [0] * 49 + [1]
    assert table.members.shape == (50, 1)


def test_overlapping_tables_are_caught():
    overlap = SubsetTable(torch.tensor([[0, 1], [1, 2]]), torch.tensor([2, 2]))
    with pytest.raises(InputError, match="subsets are not disjoint"):
        overlap.check_disjoint(3)
    missing = SubsetTable(torch.tensor([[0, 1], [2, 0]]), torch.tensor([2, 1]))
    missing.check_disjoint(3)
    with pytest.raises(InputError, match="subsets are not disjoint"):
        missing.check_disjoint(4)


def test_draws_stay_inside_their_subset_and_reach_all_of_it():
    table = SubsetTable.from_assignment(ASSIGNMENT, 4)
    drawn = table.draw(slice(0, 4), 200, torch.Generator().manual_seed(0))
    assert [sorted(set(row.tolist())) for row in drawn] == [[0, 3, 7], [2, 6], [-1], [1, 4, 5]]
    counts = torch.bincount(table.draw(slice(0, 1), 30_000, torch.Generator().manual_seed(0))[0], minlength=8)
    assert (counts[[0, 3, 7]] - 10_000).abs().max() < 400
    some = table.draw(torch.tensor([3, 1]), 50)
    assert set(some[0].tolist()) <= {1, 4, 5}
    assert set(some[1].tolist()) <= {2, 6}


def test_an_empty_subset_is_given_zeros_and_no_record():
    images, labels = torch.full((8, 1, 8, 8), 255, dtype=torch.uint8), torch.full((8,), 2)
    chosen, classes = take(images, labels, torch.tensor([[0, 3], [-1, -1]]))
    assert torch.equal(chosen[0], torch.ones(2, 1, 8, 8))
    assert torch.equal(chosen[1], torch.zeros(2, 1, 8, 8))
    assert classes.tolist() == [[2, 2], [0, 0]]


def test_no_records_and_bad_assignments():
    assert (
        SubsetTable.from_assignment(torch.zeros(0, dtype=torch.long), 3).draw(slice(0, 3), 2).tolist() == [[-1, -1]] * 3
    )
    with pytest.raises(InputError, match="outside"):
        SubsetTable.from_assignment(torch.tensor([4]), 4)


@pytest.mark.parametrize("removed", [False, True])
def test_warm_start_of_a_critic_depends_on_its_own_subset_only(removed):
    config = WarmStartConfig(iterations=3, batch=4, block=3, latent=4, hidden=8)
    records, neighbour = make_records(), make_records()
    if removed:  # record 6, of subset 1, is gone
        keep = torch.arange(8) != 6
        table = SubsetTable.from_assignment(ASSIGNMENT[keep], 4)
        neighbour = PrivateRecords(records.images[keep], records.labels[keep], table)
    else:
        neighbour.images[6] = 255 - neighbour.images[6]
    banks = []
    for each in (records, neighbour):
        bank = make_bank(each.table.nonempty)
        report = warm_start(bank, each, config, torch.Generator().manual_seed(2))
        assert report.loss.shape == (4,)
        assert torch.isfinite(report.loss).all()
        banks.append(bank.state())
    untouched = make_bank(records.table.nonempty).state()
    for name in banks[0]:
        assert torch.equal(banks[0][name][[0, 2, 3]], banks[1][name][[0, 2, 3]])
        assert torch.equal(banks[0][name][2], untouched[name][2])
    assert not torch.equal(banks[0]["parameters"][1], banks[1]["parameters"][1])


def test_warm_start_widens_the_gap_between_real_and_fake():
    bright = PrivateRecords(
        torch.full((8, 1, 8, 8), 230, dtype=torch.uint8), torch.zeros(8, dtype=torch.long), make_records().table
    )
    bank = make_bank(bright.table.nonempty)
    config = WarmStartConfig(iterations=1, batch=8, block=4)
    first = warm_start(bank, bright, config, torch.Generator().manual_seed(3))
    later = warm_start(bank, bright, config.model_copy(update={"iterations": 15}), torch.Generator().manual_seed(3))
    active = bright.table.nonempty
    assert (later.loss[active] < first.loss[active]).all()
