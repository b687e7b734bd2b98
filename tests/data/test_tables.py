"""CSV, parquet and Hugging Face data sets: columns are found or declared, and what is wrong is named with its row."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from understudy.data.dataset import ImageDataset
from understudy.data.domain import SourceOptions, source_options
from understudy.data.sources import from_hugging_face, load
from understudy.errors import InputError
from understudy.release.export import export

Write = Callable[..., Path]


def png(value: int, size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = BytesIO()
    Image.new("L", size[::-1], value).save(buffer, format="PNG")
    return buffer.getvalue()


def opened(path: Path, **declared: object) -> ImageDataset:
    classes = declared.pop("classes", None)
    split = declared.pop("split", "train")
    return load(path, split=split, records=9, classes=classes, options=source_options(**declared))  # type: ignore[arg-type]


def refused(path: Path, **declared: object) -> str:
    with pytest.raises(InputError) as caught:
        opened(path, **declared)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def column(values: np.ndarray | None) -> list[int]:
    assert values is not None
    return values.tolist()


# CSV


@pytest.fixture
def table(tmp_path: Path, write_image: Write) -> Path:
    """Three images of two people in two classes."""
    for number, name in enumerate(("a.png", "b.png", "sub/c.jpg")):
        write_image(tmp_path / "pictures" / name, value=50 * number)
    rows = ["path,label,patient", "pictures/a.png,cat,7", "pictures/b.png,dog,7", "pictures/sub/c.jpg,cat,12"]
    (tmp_path / "table.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "table.csv"


def test_a_csv_with_paths_labels_and_people(table: Path) -> None:
    data = opened(table, class_names=("dog", "cat"), person="column:patient", nominal_people=5)
    assert column(data.labels) == [1, 0, 1]
    assert column(data.people) == [1, 1, 0], "numbered in the sorted order of what they are called"
    assert data.domain.nominal_people == 5
    assert data.images[:, 0, 0, 0].tolist() == [0, 50, 100]
    assert data.client_ids is None


def test_the_order_of_names_that_nobody_declared_is_told_and_not_published(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = opened(table, classes=2)
    assert column(data.labels) == [0, 1, 0]
    assert data.domain.class_names is None
    said = capsys.readouterr().err
    assert "labels: 0 = cat, 1 = dog (in the sorted order of the names, which are not published" in said
    assert "--declare class_names=cat,dog" in said
    opened(table, class_names=("cat", "dog"))
    assert capsys.readouterr().err == "", "what was declared need not be told"


def test_semicolons_tabs_and_byte_order_marks(table: Path) -> None:
    text = table.read_text()
    for delimiter in (";", "\t"):
        table.write_text(text.replace(",", delimiter), encoding="utf-8-sig")
        assert column(opened(table, classes=2).labels) == [0, 1, 0]


def test_people_from_names_and_folders_of_a_table(table: Path) -> None:
    data = opened(table, classes=2, person="name:^(.)", nominal_people=5)
    assert column(data.people) == [0, 1, 2]
    data = opened(table, unlabelled=True, person="folder:1", nominal_people=5)
    assert column(data.people) == [0, 0, 0]
    declared = {"unlabelled": True, "nominal_people": 5}
    assert "pictures/a.png: person=name:^x finds nothing in its name" in refused(table, person="name:^x", **declared)
    assert "person=folder:2, but it lies in 1 folders" in refused(table, person="folder:2", **declared)


@pytest.mark.parametrize("path", ["/pictures/a.png", "pictures/sub/../a.png"])
def test_a_path_that_does_not_say_its_folders_says_nobody(table: Path, path: str) -> None:
    """Everybody would be one person under the root, and one of two people under two names."""
    with table.open("a") as rows:
        rows.write(f"{path},cat,7\n")
    declared = {"class_names": ("cat", "dog"), "nominal_people": 5}
    assert "does not say its folders below the table" in refused(table, **declared, person="folder:1")
    if not path.startswith("/"):
        assert len(opened(table, **declared, person="column:patient")) == 4, "the path is fine for opening"


def test_blanks_around_a_path_make_no_other_person(table: Path) -> None:
    table.write_text("path,label,patient\n pictures/a.png ,cat,7\npictures/b.png,dog,7\n")
    data = opened(table, class_names=("cat", "dog"), person="folder:1", nominal_people=5)
    assert column(data.people) == [0, 0]


@pytest.mark.parametrize("row", ['pictures/b.png,dog,"7', 'pictures/b.png,dog,"7\n8"', '"pictures/b.png,dog,7'])
def test_a_quote_that_is_not_closed_swallows_nobody(table: Path, row: str) -> None:
    """However broken a row is, it never takes the rows after it along; no number of skipped rows allows it."""
    table.write_text(f"path,label,patient\npictures/a.png,cat,7\n{row}\npictures/a.png,cat,9\n")
    for skipped in (0, 5):
        said = refused(table, class_names=("cat", "dog"), skip_broken=skipped)
        assert "several lines" in said or "cannot be read" in said


def test_numbers_in_a_csv_are_their_own_labels(table: Path) -> None:
    table.write_text("file,target\npictures/a.png,10\npictures/b.png,2\n")
    assert column(opened(table, classes=11).labels) == [10, 2]
    assert "found class 10, but classes=10 was declared; pass classes=11" in refused(table, classes=10)


def test_other_names_of_columns_are_declared(table: Path) -> None:
    table.write_text(table.read_text().replace("path,label", "scan,diagnosis"))
    assert "no column of images or of their paths; it has scan, diagnosis, patient" in refused(table, classes=2)
    sentence = refused(table, classes=2, image="column:scan")
    assert "classes were declared, but no column says them; it has scan, diagnosis, patient" in sentence
    data = opened(table, classes=2, image="column:scan", label="column:diagnosis")
    assert column(data.labels) == [0, 1, 0]
    assert "no column 'scna' for image=column:scna; pass one that it has: scan" in refused(table, image="column:scna")


def test_rows_that_are_broken_are_named(table: Path) -> None:
    rows = table.read_text().splitlines()
    cases = {
        "pictures/none.png,cat,7": "none.png: there is no such file; put it there, or remove its row",
        ",cat,7": "row 4 has nothing for an image in column 'path'",
        "pictures/a.png,,7": "row 4 has no label in column 'label'; fill it in, or remove the row",
        "pictures/a.png,cat,": "row 4 has no person in column 'patient'",
        "pictures/a.png": "row 4 has no label",
    }
    for row, sentence in cases.items():
        table.write_text("\n".join([*rows, row]) + "\n")
        declared = {"classes": 2, "person": "column:patient", "nominal_people": 5}
        assert sentence in refused(table, **declared)
        assert len(opened(table, skip_broken=1, **declared)) == 3
    table.write_bytes(b"path,label\n\xff\xfe,cat\n")
    assert "not UTF-8 text" in refused(table, classes=2)


# Parquet


def test_what_export_wrote_can_be_read_again(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (7, 8, 9, 3), dtype=np.uint8), np.arange(7) % 3
    export(images, labels, tmp_path / "out.parquet")
    data = opened(tmp_path / "out.parquet", classes=3)
    assert np.array_equal(data.images, images.transpose(0, 3, 1, 2))
    assert column(data.labels) == labels.tolist()
    for name in ("out.npz", "out"):
        export(images, labels, tmp_path / name)
        assert sorted(column(opened(tmp_path / name, classes=3).labels)) == sorted(labels.tolist())


def test_parquet_of_bytes_paths_or_both(tmp_path: Path, write_image: Write) -> None:
    write_image(tmp_path / "x" / "a.png", value=9)
    structs = [{"bytes": png(3), "path": "p1_a.png"}, {"bytes": None, "path": "x/a.png"}]
    parquet.write_table(pyarrow.table({"image": structs, "label": ["u", "v"], "p": [3, 4]}), tmp_path / "a.parquet")
    data = opened(tmp_path / "a.parquet", classes=2, person="column:p", nominal_people=2)
    assert data.images[:, 0, 0, 0].tolist() == [3, 9]
    assert (column(data.labels), column(data.people)) == ([0, 1], [0, 1])
    parquet.write_table(pyarrow.table({"path": ["x/a.png"], "label": [1.0]}), tmp_path / "b.parquet")
    assert column(opened(tmp_path / "b.parquet", classes=2).labels) == [1]


def test_a_folder_of_parquet_files_is_no_class(tmp_path: Path) -> None:
    """As repositories of Hugging Face lie on disk."""
    (tmp_path / "data").mkdir()
    for split, value in (("train", 1), ("test", 2)):
        for part in (0, 1):
            content = pyarrow.table({"image": [png(value)], "label": [part]})
            parquet.write_table(content, tmp_path / "data" / f"{split}-0000{part}-of-00002.parquet")
    assert opened(tmp_path, classes=2).images[:, 0, 0, 0].tolist() == [1, 1]
    assert opened(tmp_path, classes=2, split="test").images[:, 0, 0, 0].tolist() == [2, 2]
    (tmp_path / "data" / "x.tar").write_bytes(b"")
    assert "parquet and tar files side by side" in refused(tmp_path, classes=2)


def test_a_file_beside_those_of_splits_is_not_passed_over(tmp_path: Path) -> None:
    """One file more, whatever it is called, never takes others out of the data."""
    for name in ("anna", "bob", "trainor"):
        parquet.write_table(pyarrow.table({"image": [png(1)]}), tmp_path / f"{name}.parquet")
    assert len(opened(tmp_path)) == 3
    (tmp_path / "anna.parquet").rename(tmp_path / "train-0.parquet")
    assert "bob.parquet belongs to no split, but train-0.parquet does" in refused(tmp_path)


def test_damaged_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not much more")
    assert "a.parquet: not a readable parquet file" in refused(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"image": [[1, 2]]}), tmp_path / "b.parquet")
    assert "column 'image' is list<" in refused(tmp_path / "b.parquet")
    parquet.write_table(pyarrow.table({"image": [png(1), b"junk"]}), tmp_path / "c.parquet")
    assert "c.parquet: row 2: corrupt or not a PNG or JPEG image" in refused(tmp_path / "c.parquet")
    assert len(opened(tmp_path / "c.parquet", skip_broken=1)) == 1


def test_columns_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    """A column of names could be damaged beyond reading, and nobody would notice."""
    path = tmp_path / "a.parquet"
    content = pyarrow.table({"image": [png(1)], "name": ["Erika Mustermann"]})
    parquet.write_table(content, path, compression="none", use_dictionary=False, write_statistics=False)
    raw = path.read_bytes()
    at = raw.index(b"Erika")
    path.write_bytes(raw[: at - 30] + b"\xff" * 30 + raw[at:])
    with pytest.raises(OSError, match=r"(?s)."):
        parquet.read_table(path, columns=["name"])
    assert len(opened(path)) == 1


# Hugging Face


@pytest.fixture(scope="module")
def datasets() -> object:
    with warnings.catch_warnings():  # what other libraries warn of when they are imported is not ours
        warnings.simplefilter("ignore")
        module = pytest.importorskip("datasets")
    module.disable_progress_bars()
    return module


def three_images(datasets: object) -> object:
    features = datasets.Features(  # type: ignore[attr-defined]
        {
            "img": datasets.Image(),  # type: ignore[attr-defined]
            "label": datasets.ClassLabel(names=["cat", "dog"]),  # type: ignore[attr-defined]
            "patient": datasets.Value("string"),  # type: ignore[attr-defined]
        }
    )
    rows = {
        "img": [{"bytes": png(value), "path": None} for value in (1, 2, 3)],
        "label": [0, 1, 1],
        "patient": ["zoe", "ann", "zoe"],
    }
    return datasets.Dataset.from_dict(rows, features=features)  # type: ignore[attr-defined]


def test_a_data_set_in_memory(datasets: object) -> None:
    rows = three_images(datasets)
    options = SourceOptions(person="column:patient", nominal_people=4, class_names=("dog", "cat"))
    data = from_hugging_face(rows, records=9, options=options)  # type: ignore[arg-type]
    assert data.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert column(data.labels) == [1, 0, 0], "names of the data set are brought into the declared order"
    assert column(data.people) == [1, 0, 1]
    part = rows.select([2, 0])  # type: ignore[attr-defined]
    assert column(from_hugging_face(part, records=9, classes=2).labels) == [1, 0]
    with pytest.raises(InputError, match="pass one split, a datasets"):
        from_hugging_face({"train": rows}, records=9, classes=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="records: the number of records was not declared"):
        from_hugging_face(rows, classes=2)  # type: ignore[arg-type]


def test_a_data_set_on_disk_is_no_folder_of_classes(datasets: object, tmp_path: Path) -> None:
    rows = three_images(datasets)
    rows.save_to_disk(tmp_path / "one")  # type: ignore[attr-defined]
    assert column(opened(tmp_path / "one", classes=2).labels) == [0, 1, 1]
    assert "holds one set only" in refused(tmp_path / "one", classes=2, split="test")
    both = datasets.DatasetDict({"train": rows, "test": rows.select([0])})  # type: ignore[attr-defined]
    both.save_to_disk(tmp_path / "both")
    assert len(opened(tmp_path / "both", classes=2)) == 3
    assert len(opened(tmp_path / "both", classes=2, split="test")) == 1
    next((tmp_path / "one").glob("*.arrow")).write_bytes(b"damaged")
    assert "not a readable data set of Hugging Face" in refused(tmp_path / "one", classes=2)
