from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from understudy.data import catalog
from understudy.data.domain import SourceOptions
from understudy.data.fetch import import_local
from understudy.data.sources import load
from understudy.errors import InputError

Write = Callable[..., Path]


def test_digits_are_bundled_and_split() -> None:
    train, test = load("digits"), load("digits", split="test")
    assert (len(train), len(test)) == (1437, 360)
    assert (train.domain.nominal_records, test.domain.nominal_records) == (1437, 360)
    assert train.domain.shape == (1, 8, 8)
    assert (train.images.min(), train.images.max()) == (0, 255)
    assert train.labels is not None
    assert test.labels is not None
    assert min(np.bincount(train.labels)) > 130
    assert min(np.bincount(test.labels)) > 25


def test_the_two_splits_of_digits_are_disjoint_and_complete() -> None:
    from sklearn.datasets import load_digits

    every = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    assert np.array_equal(load("digits", split="test").images[:, 0], every[0::5])
    assert np.array_equal(load("digits").images[:, 0], np.delete(every, np.s_[0::5], axis=0))


def test_options_apply_to_named_sets() -> None:
    options = SourceOptions(size=(16, 16), channels=3, unlabelled=True, name="mine")
    data = load("digits", records=2000, options=options)
    assert data.domain.shape == (3, 16, 16)
    assert data.domain.nominal_records == 2000
    assert (data.labels, data.name) == (None, "mine")


@pytest.mark.parametrize(
    ("name", "classes", "options", "sentence"),
    [
        ("digits", 12, {}, "classes: 12, but digits has 10; leave classes out"),
        ("digits", None, {"value_range": (0, 1)}, "value_range: built in for digits"),
        ("digits", None, {"clients": True, "nominal_clients": 3}, "does not say who contributed what"),
        ("digits", None, {"min_images": 3}, "min_images: a filter of femnist only"),
        ("mnits", None, {}, "'mnits' is neither an existing path nor a known data set; did you mean mnist?"),
        ("zzz", None, {}, "pass a path, or one of digits, mnist, fashion-mnist, femnist"),
        ("\0", None, {}, "is neither an existing path nor a known data set"),
        (
            "mnist",
            None,
            {},
            "mnist is not on this machine; run `understudy data fetch mnist` or `understudy data import",
        ),
        ("femnist", None, {}, "femnist is not on this machine; run `understudy data import femnist PATH`"),
    ],
)
def test_bad_requests(name: str, classes: int | None, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        load(name, classes=classes, options=SourceOptions.model_validate(options))
    assert sentence in str(caught.value)


def test_an_unknown_split() -> None:
    with pytest.raises(InputError, match="split: 'validation'; choose train or test"):
        load("digits", split="validation")


def test_where_named_sets_are_looked_for(
    write_mnist_folder: Write, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist_folder(tmp_path / "debian" / "fashion-mnist", train=5)
    data = load("fashion-mnist")
    assert len(data) == 5
    assert data.domain.nominal_records == 60_000
    assert data.domain.class_names is not None
    assert data.domain.class_names[9] == "Ankle boot"
    write_mnist_folder(own_cache / "fashion-mnist", train=6)
    assert len(load("fashion-mnist")) == 6
    monkeypatch.setenv("UNDERSTUDY_DATA", str(tmp_path / "own"))
    write_mnist_folder(tmp_path / "own" / "fashion_mnist", train=7)
    assert len(load("fashion-mnist")) == 7
    x, y = np.zeros((8, 28, 28), np.uint8), np.zeros(8, np.int64)
    np.savez(tmp_path / "own" / "fashion_mnist.npz", x_train=x, y_train=y)
    assert len(load("fashion-mnist")) == 8
    with pytest.raises(InputError, match="array 'x_test' is missing"):
        load("fashion-mnist", split="test")


def test_without_its_own_variable_the_home_folder_holds_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert catalog.cache_folder() == Path.home() / ".cache" / "understudy"


def test_a_set_of_another_shape_is_refused(own_cache: Path) -> None:
    own_cache.mkdir(parents=True)
    np.savez(own_cache / "mnist.npz", x_train=np.zeros((2, 8, 8), np.uint8), y_train=np.zeros(2, np.int64))
    with pytest.raises(InputError, match=r"images of shape \(8, 8\), but mnist is 28x28"):
        load("mnist")


def test_femnist_by_writer(write_femnist: Write, own_cache: Path) -> None:
    write_femnist(own_cache / "femnist.npz", (25, 12, 3))
    train, test = load("femnist"), load("femnist", split="test")
    assert train.client_ids is not None
    assert test.client_ids is not None
    assert np.bincount(train.client_ids).tolist() == [23, 11, 3]
    assert np.bincount(test.client_ids).tolist() == [2, 1]
    assert train.domain.classes == 62
    assert (train.domain.nominal_records, train.domain.nominal_clients) == (66_128, 710)
    assert test.domain.nominal_records == 6_991
    assert (train.images[:, 0, 0, 0] == 0).all(), "paper is black, as in MNIST"


def test_femnist_filters_writers_with_published_sizes(write_femnist: Write, own_cache: Path) -> None:
    write_femnist(own_cache / "femnist.npz", (25, 12, 3, 100))
    data = load("femnist", options=SourceOptions(min_images=20))
    assert data.client_ids is not None
    assert np.unique(data.client_ids).tolist() == [0, 1]
    assert (data.domain.nominal_records, data.domain.nominal_clients) == (65_521, 652)
    data = load("femnist", options=SourceOptions(min_images=100))
    assert (data.domain.nominal_records, data.domain.nominal_clients) == (55_642, 359)
    with pytest.raises(InputError, match="no published size for 10; use 1, 20 or 100"):
        load("femnist", options=SourceOptions(min_images=10))
    data = load("femnist", records=77, options=SourceOptions(min_images=10, nominal_clients=5))
    assert (data.domain.nominal_records, data.domain.nominal_clients) == (77, 5)
    with pytest.raises(InputError, match="no writer has 200 images"):
        load("femnist", records=77, options=SourceOptions(min_images=200, nominal_clients=5))


def test_femnist_merges_letters_of_either_case(write_femnist: Write, own_cache: Path) -> None:
    write_femnist(own_cache / "femnist.npz", (62,))
    full, merged = load("femnist"), load("femnist", classes=36)
    assert full.labels is not None
    assert merged.labels is not None
    assert merged.domain.classes == 36
    assert full.domain.class_names is not None
    assert merged.domain.class_names is not None
    for one, other in zip(full.labels, merged.labels, strict=True):
        assert full.domain.class_names[one].upper() == merged.domain.class_names[other]
    with pytest.raises(InputError, match="classes: 10, but femnist has 62 classes, or 36"):
        load("femnist", classes=10)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.zeros((2, 28, 28), np.uint8)}, "array 'writer' is missing"),
        ({"x": np.zeros((2, 28, 28)), "y": [0, 0], "writer": [0, 0]}, "array 'x' is float64"),
        ({"x": np.zeros((2, 28, 28), np.uint8), "y": [0], "writer": [0, 0]}, "array 'y' is int64 of shape (1,)"),
        ({"x": np.zeros((2, 28, 28), np.uint8), "y": [0, 1], "writer": [[0, 1]]}, "array 'writer' is int64 of shape"),
        ({"x": np.zeros((2, 28, 28), np.uint8), "y": [0, 62], "writer": [0, 1]}, "labels: found 62"),
    ],
)
def test_bad_femnist_archives(own_cache: Path, arrays: dict[str, object], sentence: str) -> None:
    own_cache.mkdir(parents=True)
    np.savez(own_cache / "femnist.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        load("femnist")
    assert sentence in str(caught.value)


def test_import_of_idx_files(write_mnist_folder: Write, own_cache: Path, tmp_path: Path) -> None:
    source = write_mnist_folder(tmp_path / "download")
    target = import_local("mnist", source)
    assert target == own_cache / "mnist.npz"
    assert [path.name for path in own_cache.iterdir()] == ["mnist.npz"]
    assert load("mnist").fingerprint() == load(source, records=6, classes=10).fingerprint()
    assert len(load("mnist", split="test")) == 3
    assert import_local("mnist", target) == target, "importing an archive works too"


def test_import_of_femnist(write_femnist: Write, own_cache: Path, tmp_path: Path) -> None:
    import_local("femnist", write_femnist(tmp_path / "some.npz"))
    assert len(load("femnist")) == 37


def test_import_of_leaf_files(own_cache: Path, tmp_path: Path) -> None:
    for number, users in enumerate((("f2", "f1"), ("f3",))):
        white = [1.0] * 784
        content = {user: {"x": [white, [0.0, *white[1:]]], "y": [5, 61]} for user in users}
        file = {"users": list(users), "num_samples": [2] * len(users), "user_data": content}
        (tmp_path / f"all_data_{number}.json").write_text(json.dumps(file))
    import_local("femnist", tmp_path)
    data = load("femnist")
    assert data.client_ids is not None
    assert data.labels is not None
    assert data.client_ids.tolist() == [1, 1, 0, 0, 2, 2]
    assert data.labels.tolist() == [5, 61] * 3
    assert data.images[1, 0, 0].tolist() == [255] + [0] * 27


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("not json", "not a FEMNIST file as LEAF writes it"),
        ('{"users": []}', "not a FEMNIST file as LEAF writes it"),
        ('{"user_data": {"a": {"x": [[1, 2]], "y": [0]}}}', "not a FEMNIST file as LEAF writes it"),
        (json.dumps({"user_data": {"a": {"x": [[2.0] * 784], "y": [0]}}}), "images: found 2, but the range 0..1"),
        (json.dumps({"user_data": {"a": {"x": [[0.0] * 784], "y": [62]}}}), "labels: found 62"),
    ],
)
def test_bad_leaf_files_write_nothing(own_cache: Path, tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf" / "all_data_0.json").write_text(content)
    with pytest.raises(InputError) as caught:
        import_local("femnist", tmp_path / "leaf")
    assert sentence in str(caught.value)
    assert not own_cache.exists()


def test_bad_imports(write_mnist_folder: Write, own_cache: Path, tmp_path: Path) -> None:
    folder = write_mnist_folder(tmp_path / "half")
    (folder / "t10k-images-idx3-ubyte.gz").unlink()
    cases = [
        ("mnist", tmp_path / "nowhere", "does not exist; pass the file or folder that holds mnist"),
        ("mnist", folder, "the IDX files of the test split are missing"),
        ("femnist", tmp_path / "half", "no JSON file of LEAF in it"),
        ("digits", tmp_path, "come with scikit-learn; there is nothing to import"),
        ("cifar", tmp_path, "'cifar' is not a known data set; choose one of digits, mnist, fashion-mnist, femnist"),
    ]
    for name, path, sentence in cases:
        with pytest.raises(InputError) as caught:
            import_local(name, path)
        assert sentence in str(caught.value)
    assert not own_cache.exists()


def test_an_import_that_cannot_be_written(
    write_mnist_folder: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written"):
        import_local("mnist", write_mnist_folder(tmp_path / "download"))
