from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.data.arrays import from_arrays
from understudy.data.dataset import ImageDataset
from understudy.data.domain import SourceOptions
from understudy.data.npz import read_array, write_arrays
from understudy.data.partition import Partition
from understudy.errors import InputError


def toy(records: int, nominal: int = 10**6, clients: int | None = None) -> ImageDataset:
    images = np.zeros((records, 8, 8), dtype=np.uint8)
    images[:, 0, 0] = np.arange(records) % 256
    if clients is None:
        return from_arrays(images, records=nominal)
    options = SourceOptions(nominal_clients=clients)
    return from_arrays(images, client_ids=np.arange(records) % clients, records=nominal, options=options)


@given(st.integers(1, 60), st.integers(1, 40))
@settings(deadline=None)
def test_every_record_is_assigned_to_one_of_the_subsets(records: int, subsets: int) -> None:
    assignment = Partition.draw(toy(records), subsets).assignment
    assert assignment.shape == (records,)
    assert set(assignment.tolist()) <= set(range(subsets))


def test_clients_stay_together() -> None:
    data = toy(300, clients=20)
    partition = Partition.draw(data, 7, unit="client")
    assert data.client_ids is not None
    for client in range(20):
        assert len(set(partition.assignment[data.client_ids == client].tolist())) == 1
    partition.check(data)


def test_subsets_are_held_against_the_declared_number() -> None:
    with pytest.raises(InputError) as caught:
        Partition.draw(toy(500, nominal=100), 101)
    assert "subsets: 101, but only 100 nominal records are declared; pass at most 100" in str(caught.value)
    assert caught.value.exit_code == 2
    assert Partition.draw(toy(5, nominal=100), 100).subsets == 100, "the true number is never looked at"
    with pytest.raises(InputError, match="only 20 nominal clients are declared"):
        Partition.draw(toy(500, clients=20), 21, unit="client")
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="is not a positive whole number"):
            Partition.draw(toy(5), wrong)  # type: ignore[arg-type]


def test_the_unit_client_needs_clients() -> None:
    with pytest.raises(InputError, match="has no clients; load it with clients=True"):
        Partition.draw(toy(5), 2, unit="client")


def test_save_and_load(tmp_path: Path) -> None:
    data = toy(100, clients=10)
    for unit in ("record", "client"):
        partition = Partition.draw(data, 5, unit=unit)  # type: ignore[arg-type]
        partition.save(tmp_path / "partition.npz", data)
        again = Partition.load(tmp_path / "partition.npz", data)
        assert np.array_equal(again.assignment, partition.assignment)
        assert (again.subsets, again.unit) == (5, unit)


def test_a_partition_of_other_data_is_refused(tmp_path: Path) -> None:
    data = toy(100)
    path = tmp_path / "partition.npz"
    Partition.draw(data, 5).save(path, data)
    with pytest.raises(InputError, match="the data changed since the partition was drawn"):
        Partition.load(path, data.subset(np.arange(100)[::-1]))
    with pytest.raises(InputError, match="made for another data set"):
        Partition.draw(data, 5).save(path, toy(99))
    with pytest.raises(InputError, match="the partition of this run is missing"):
        Partition.load(tmp_path / "nowhere.npz", data)


def test_a_tampered_partition_is_refused(tmp_path: Path) -> None:
    data = toy(100, clients=10)
    path = tmp_path / "partition.npz"
    Partition.draw(data, 5, unit="client").save(path, data)
    good = {name: read_array(path, name) for name in ("assignment", "subsets", "unit", "fingerprint")}
    split = good["assignment"].copy()
    split[0] = (split[0] + 1) % 5
    cases = [
        ({"assignment": split}, "a client lies in two subsets, so the guarantee fails"),
        ({"assignment": good["assignment"] + 5}, "a record lies outside the 5 subsets"),
        ({"assignment": good["assignment"] - 5}, "a record lies outside the 5 subsets"),
        ({"assignment": good["assignment"][:-1]}, "made for another data set"),
        ({"assignment": good["assignment"].astype(float)}, "assignment is float64"),
        ({"subsets": np.array(0)}, "subsets: 0; pass at least 1"),
        ({"unit": np.array("planet")}, "unknown unit 'planet'"),
        ({"surplus": np.array(1)}, "not a partition"),
    ]
    for change, sentence in cases:
        write_arrays(path, good | change)
        with pytest.raises(InputError) as caught:
            Partition.load(path, data)
        assert sentence in str(caught.value)
