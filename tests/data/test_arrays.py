from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from understudy.data.arrays import from_arrays
from understudy.data.domain import SourceOptions, source_options
from understudy.errors import InputError

GREY = np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8)
UNIT = SourceOptions(value_range=(0, 1))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 8, 9), (1, 8, 9)),
        ((2, 1, 8, 9), (1, 8, 9)),
        ((2, 8, 9, 1), (1, 8, 9)),
        ((2, 3, 8, 9), (3, 8, 9)),
        ((2, 8, 9, 3), (3, 8, 9)),
        ((2, 64, 64, 3), (3, 64, 64)),
    ],
)
def test_layouts(shape: tuple[int, ...], expected: tuple[int, int, int]) -> None:
    data = from_arrays(np.zeros(shape, dtype=np.uint8), records=10)
    assert data.domain.shape == expected
    assert data.images.shape == (2, *expected)
    assert data.images.flags.c_contiguous


def test_channels_last_keeps_each_channel() -> None:
    picture = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    picture[..., 2] = 7
    data = from_arrays(picture, records=1)
    assert (data.images[0, 2] == 7).all()
    assert (data.images[0, :2] == 0).all()


def test_labels_and_clients() -> None:
    options = SourceOptions(nominal_clients=9, class_names=("a", "b"))
    data = from_arrays(GREY, [1.0, 0.0], client_ids=["zoe", "adam"], records=50, options=options)
    assert data.labels is not None
    assert data.client_ids is not None
    assert data.labels.dtype == np.int64
    assert data.labels.tolist() == [1, 0]
    assert data.client_ids.tolist() == [1, 0]
    assert (data.domain.classes, data.domain.class_names) == (2, ("a", "b"))
    assert (data.domain.nominal_records, data.domain.nominal_clients) == (50, 9)


def test_declared_numbers_may_come_from_numpy() -> None:
    data = from_arrays(GREY, [1, 0], records=np.int64(7), classes=np.uint8(2))  # type: ignore[arg-type]
    assert (data.domain.nominal_records, data.domain.classes) == (7, 2)


def test_unlabelled_ignores_labels() -> None:
    data = from_arrays(GREY, [0, 77], records=5, options=SourceOptions(unlabelled=True))
    assert data.labels is None
    assert not data.domain.labelled


def test_a_column_of_labels_is_accepted() -> None:
    assert from_arrays(GREY, np.array([[1], [0]]), records=5, classes=2).labels is not None


@given(hnp.arrays(np.float64, (3, 8, 8), elements=st.floats(-2, 6)), st.sampled_from([(-2.0, 6.0), (-3.0, 7.0)]))
@settings(max_examples=50, deadline=None)
def test_floats_are_mapped_linearly_with_less_than_one_level_of_error(
    values: np.ndarray, value_range: tuple[float, float]
) -> None:
    data = from_arrays(values, records=3, options=SourceOptions(value_range=value_range))
    low, high = value_range
    exact = (values - low) / (high - low) * 255
    assert np.abs(data.images[:, 0] - exact).max() <= 0.5 + 1e-9
    assert data.domain.value_range == (0, 255)


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint16, np.uint8, np.float16, np.float32])
def test_a_declared_range_maps_any_kind_of_number(dtype: type) -> None:
    values = np.zeros((1, 8, 8), dtype=dtype)
    values[0, 0, 0] = 16
    data = from_arrays(values, records=1, options=SourceOptions(value_range=(0, 16)))
    assert (data.images[0, 0, 0, 0], data.images[0, 0, 0, 1]) == (255, 0)


def test_booleans_are_black_and_white() -> None:
    assert set(np.unique(from_arrays(np.eye(8, dtype=bool)[None], records=1).images)) == {0, 255}


def test_records_are_mapped_alone_so_a_neighbour_changes_nothing() -> None:
    values = np.random.default_rng(1).random((5000, 8, 8))
    whole = from_arrays(values, records=10, options=UNIT).images
    assert np.array_equal(whole[:-1], from_arrays(values[:-1], records=10, options=UNIT).images)


def test_channels_and_size_convert() -> None:
    grey = from_arrays(GREY, records=2, options=SourceOptions(channels=3, size=(16, 10)))
    assert grey.domain.shape == (3, 16, 10)
    assert np.array_equal(grey.images[:, 0], grey.images[:, 2])
    colour = np.zeros((1, 3, 8, 8), dtype=np.uint8)
    colour[:, 1] = 255
    assert (from_arrays(colour, records=1, options=SourceOptions(channels=1)).images == 150).all()
    large = np.full((1, 200, 100), 9, dtype=np.uint8)
    assert (from_arrays(large, records=1, options=SourceOptions(size=(8, 8))).images == 9).all()


def nan_at(value: float) -> np.ndarray:
    values = np.zeros((3, 8, 8))
    values[2, 3, 4] = value
    return values


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"images": GREY}, "records: the number of records was not declared; pass records=N"),
        ({"images": GREY, "records": 0}, "records: 0 is not a positive whole number"),
        ({"images": GREY, "records": 2.5}, "records: 2.5 is not a positive whole number"),
        ({"images": GREY, "records": True}, "records: True is not a positive whole number"),
        ({"images": GREY[:0], "records": 1}, "images: the set is empty"),
        ({"images": GREY[0], "records": 1}, "shape (8, 8); pass numbers of shape (N, H, W)"),
        ({"images": np.array([["a"]]), "records": 1}, "images: <U1 of shape (1, 1)"),
        ({"images": GREY.astype(complex), "records": 1}, "images: complex128"),
        ({"images": GREY.astype(object), "records": 1}, "images: object"),
        ({"images": np.zeros((2, 2, 8, 8), np.uint8), "records": 1}, "grey (1 channel) or RGB (3 channels)"),
        ({"images": np.zeros((2, 7, 8), np.uint8), "records": 1}, "sizes from 8x8 to 64x64 are supported"),
        ({"images": np.zeros((2, 65, 8), np.uint8), "records": 1}, "shape: 65x8; sizes from 8x8 to 64x64"),
        ({"images": GREY / 255, "records": 1}, "float64 values without a declared range; pass value_range="),
        ({"images": nan_at(np.nan), "records": 1, "options": UNIT}, "images: found NaN in record 2; repair or drop"),
        ({"images": nan_at(np.inf), "records": 1, "options": UNIT}, "images: found inf in record 2"),
        ({"images": nan_at(-np.inf), "records": 1, "options": UNIT}, "images: found -inf in record 2"),
        ({"images": nan_at(1.5), "records": 1, "options": UNIT}, "images: found 1.5, but the range 0..1 was declared"),
        ({"images": nan_at(-0.1), "records": 1, "options": UNIT}, "images: found -0.1, but the range 0..1"),
        ({"images": GREY.astype(int) * 9, "records": 1}, "images: found 1143, but the range 0..255 was declared"),
        ({"images": GREY, "labels": [0, 1], "records": 1}, "the classes were not declared; pass classes=N"),
        ({"images": GREY, "labels": [0, 12], "records": 1, "classes": 10}, "labels: found 12, but classes=10"),
        ({"images": GREY, "labels": [0, 12], "records": 1, "classes": 10}, "pass classes=13 or drop them"),
        ({"images": GREY, "labels": [0, -1], "records": 1, "classes": 10}, "labels: found -1"),
        ({"images": GREY, "labels": [0, 1.5], "records": 1, "classes": 10}, "labels: found 1.5; pass whole numbers"),
        ({"images": GREY, "labels": [0, np.nan], "records": 1, "classes": 10}, "labels: found nan"),
        ({"images": GREY, "labels": [0, 1e30], "records": 1, "classes": 10}, "labels: found 1e+30"),
        ({"images": GREY, "labels": [0, -1e30], "records": 1, "classes": 10}, "labels: found -1e+30"),
        (
            {"images": GREY, "labels": ["a", "b"], "records": 1, "classes": 10},
            "labels: 2 classes (a, b), but classes=10",
        ),
        ({"images": GREY, "labels": np.eye(2), "records": 1, "classes": 2}, "labels: shape (2, 2); pass one whole"),
        ({"images": GREY, "labels": [0], "records": 1, "classes": 2}, "labels: 1 values for 2 images"),
        ({"images": GREY, "labels": [0, 1], "records": 1, "classes": 0}, "classes: 0 is not a positive whole number"),
        ({"images": GREY, "records": 1, "classes": 2}, "classes: declared, but there are no labels"),
        ({"images": GREY, "client_ids": [0, 1], "records": 1}, "pass nominal_clients=N"),
        (
            {"images": GREY, "client_ids": [0], "records": 1, "options": SourceOptions(nominal_clients=3)},
            "client_ids: 1 values for 2 images",
        ),
        (
            {"images": GREY, "client_ids": [0.5, 1], "records": 1, "options": SourceOptions(nominal_clients=3)},
            "client_ids: type float64",
        ),
        (
            {"images": GREY, "records": 1, "options": SourceOptions(nominal_clients=3)},
            "nominal_clients: declared, but records carry no clients",
        ),
        (
            {"images": GREY, "labels": [0, 1], "records": 1, "classes": 2, "options": SourceOptions(unlabelled=True)},
            "classes: 2 given together with unlabelled=True",
        ),
        (
            {
                "images": GREY,
                "labels": [0, 1],
                "records": 1,
                "classes": 3,
                "options": SourceOptions(class_names=("a",)),
            },
            "class_names: 1 names, but classes=3 was declared",
        ),
        (
            {"images": np.zeros((1, 0, 5), np.uint8), "records": 1, "options": SourceOptions(size=(8, 8))},
            "holds no pixels",
        ),
    ],
)
def test_bad_input(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        from_arrays(**arguments)  # type: ignore[arg-type]
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"value_range": (1, 1)}, "value_range: (1.0, 1.0) is empty"),
        ({"value_range": (0, float("nan"))}, "value_range.1: nan is not valid"),
        ({"size": (7, 8)}, "size: 7x8; sizes from 8x8 to 64x64"),
        ({"channels": 4}, "channels: 4 is not valid"),
        ({"class_names": ("a", "a")}, "holds a name twice"),
        ({"class_names": ("a",), "unlabelled": True}, "given together with unlabelled=True"),
        ({"nominal_clients": 0}, "nominal_clients: 0 is not valid"),
        ({"colour": True}, "colour: there is no such option; known are channels, "),
    ],
)
def test_bad_options(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        source_options(**values)
    assert sentence in str(caught.value)
