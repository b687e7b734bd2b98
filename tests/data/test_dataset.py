from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.errors import InputError


def domain(**changes: object) -> Domain:
    values: dict[str, object] = {"shape": (1, 8, 8), "classes": 3, "nominal_records": 100}
    return Domain.model_validate(values | changes)


def images(count: int = 4) -> np.ndarray:
    return np.arange(count * 64, dtype=np.uint8).reshape(count, 1, 8, 8)


def labels(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_a_valid_set_keeps_what_it_was_given() -> None:
    data = ImageDataset("toy", domain(nominal_clients=2), images(), labels(0, 1, 2, 0), labels(0, 0, 1, 1))
    assert len(data) == 4
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 2, 0]
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]


def test_the_nominal_size_is_never_compared_with_the_true_one() -> None:
    for nominal in (1, 4, 10**9):
        data = ImageDataset("toy", domain(nominal_records=nominal), images(), labels(0, 1, 2, 0))
        assert data.domain.nominal_records == nominal


def test_its_text_shows_public_facts_only() -> None:
    data = ImageDataset("toy", domain(), images(7), labels(0, 1, 2, 0, 0, 0, 0))
    assert "7" not in repr(data)
    assert "nominal_records: 100" in repr(data)


@pytest.mark.parametrize(
    ("pictures", "numbers", "clients", "sentence"),
    [
        (images().astype(np.float32), labels(0, 1, 2, 0), None, "images: type float32, expected uint8"),
        (images()[:, 0], labels(0, 1, 2, 0), None, "but 1x8x8 was declared"),
        (images(), None, None, "labels: none, but classes=3 was declared"),
        (images(), labels(0, 1, 2), None, "labels: 3 values for 4 images"),
        (images(), labels(0, 1, 2, 12), None, "labels: found 12, but classes=3 was declared; pass classes=13 or drop"),
        (images(), labels(0, 1, 2, -1), None, "labels: found -1, but labels run from 0 to 2"),
        (images(), np.zeros(4), None, "labels: type float64, expected int64"),
        (images(), [0, 1, 2, 0], None, "labels: type list, expected int64"),
        (images(), labels(0, 1, 2, 0), labels(0, 0), "client_ids: 2 values for 4 images"),
        (images(), labels(0, 1, 2, 0), labels(0, 0, 1, -1), "client_ids: found -1"),
    ],
)
def test_bad_parts_are_refused(pictures: np.ndarray, numbers: np.ndarray, clients: np.ndarray, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        ImageDataset("toy", domain(), pictures, numbers, clients)
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


def test_labels_need_declared_classes_and_values_the_stored_range() -> None:
    with pytest.raises(InputError, match="classes were not declared; pass classes=N"):
        ImageDataset("toy", domain(classes=None), images(), labels(0, 1, 2, 0))
    with pytest.raises(InputError, match=r"stored in 0\.\.255"):
        ImageDataset("toy", domain(value_range=(0, 1)), images(), labels(0, 1, 2, 0))


def test_subset_keeps_columns_together_and_may_be_empty() -> None:
    data = ImageDataset("toy", domain(nominal_clients=2), images(), labels(0, 1, 2, 0), labels(5, 5, 9, 9))
    part = data.subset(np.array([2, 0]))
    assert part.labels is not None
    assert part.client_ids is not None
    assert part.labels.tolist() == [2, 0]
    assert part.client_ids.tolist() == [9, 5]
    assert np.array_equal(part.images, data.images[[2, 0]])
    assert part.domain == data.domain
    assert len(data.subset(np.array([], dtype=np.int64))) == 0


def test_units() -> None:
    data = ImageDataset("toy", domain(nominal_clients=7), images(), labels(0, 1, 2, 0), labels(9, 5, 5, 9))
    assert data.unit_of_record("record").tolist() == [0, 1, 2, 3]
    assert data.unit_of_record("client").tolist() == [1, 0, 0, 1]
    assert (data.nominal_units("record"), data.nominal_units("client")) == (100, 7)


def test_the_unit_client_needs_clients_and_their_declared_number() -> None:
    without = ImageDataset("toy", domain(), images(), labels(0, 1, 2, 0))
    with pytest.raises(InputError, match="has no clients"):
        without.unit_of_record("client")
    undeclared = ImageDataset("toy", domain(), images(), labels(0, 1, 2, 0), labels(0, 0, 1, 1))
    with pytest.raises(InputError, match="pass nominal_clients=N"):
        undeclared.nominal_units("client")


def test_the_fingerprint_sees_every_column_and_the_order() -> None:
    base = ImageDataset("toy", domain(classes=None), images())
    seen = {base.fingerprint(), ImageDataset("toy", domain(), images(), labels(0, 1, 2, 0)).fingerprint()}
    seen.add(ImageDataset("toy", domain(), images(), labels(0, 1, 2, 1)).fingerprint())
    seen.add(ImageDataset("toy", domain(), images(), labels(0, 1, 2, 0), labels(0, 0, 0, 0)).fingerprint())
    seen.add(base.subset(np.array([1, 0, 2, 3])).fingerprint())
    assert len(seen) == 5
    assert base.fingerprint() == base.subset(np.arange(4)).fingerprint()


@given(st.lists(st.integers(-5, 20), min_size=1, max_size=30), st.integers(1, 15))
def test_labels_are_accepted_exactly_when_declared(values: list[int], classes: int) -> None:
    valid = all(0 <= value < classes for value in values)
    try:
        ImageDataset("toy", domain(classes=classes), images(len(values)), labels(*values))
        accepted = True
    except InputError:
        accepted = False
    assert accepted == valid
