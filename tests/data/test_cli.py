from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from understudy.cli.data import app
from understudy.cli.options import parse_labels
from understudy.data.check import refuse_undeclared
from understudy.data.sources import DataOptions
from understudy.errors import InputError

RUNNER = CliRunner()


def test_list(own_cache: Path, write_mnist_folder: Callable[..., Path]) -> None:
    write_mnist_folder(own_cache / "mnist")
    answer = RUNNER.invoke(app, ["list", "--json"])
    rows = {row["name"]: row for row in json.loads(answer.stdout)["datasets"]}
    names = ["digits", "mnist", "fashion-mnist", "femnist", "mnist-writers", "cifar-10", "malaria-cells"]
    assert list(rows) == names
    assert [name for name, row in rows.items() if row["available"]] == ["digits", "mnist"]
    assert rows["mnist"]["path"] == str(own_cache / "mnist")
    assert rows["mnist"]["records"] == 60_000
    table = RUNNER.invoke(app, ["list"])
    assert table.exit_code == 0
    assert "fashion-mnist" in table.stdout


def test_import(own_cache: Path, tmp_path: Path, write_mnist_folder: Callable[..., Path]) -> None:
    folder = write_mnist_folder(tmp_path / "download")
    answer = RUNNER.invoke(app, ["import", "mnist", str(folder), "--json"])
    assert json.loads(answer.stdout) == {"name": "mnist", "path": str(own_cache / "mnist.npz")}
    assert "imported to" in RUNNER.invoke(app, ["import", "mnist", str(folder)]).stdout


def test_fetch() -> None:
    assert json.loads(RUNNER.invoke(app, ["fetch", "digits", "--json"]).stdout) == {"name": "digits", "files": []}
    assert "bundled, nothing to download" in RUNNER.invoke(app, ["fetch", "digits"]).stdout


def test_errors_are_left_to_the_main_program(tmp_path: Path) -> None:
    for arguments in (["fetch", "cifar"], ["fetch", "femnist", "--json"], ["import", "mnist", str(tmp_path / "no")]):
        answer = RUNNER.invoke(app, arguments)
        assert isinstance(answer.exception, InputError)
        assert answer.stdout == ""


def test_importing_the_room_is_light() -> None:
    code = "import sys, understudy.data, understudy.cli.data; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "sklearn", "scipy", "PIL", "matplotlib"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Data of your own


def test_check_lists_every_broken_file_and_says_what_there_is(tmp_path: Path, write_image: Callable[..., Path]) -> None:
    for name in ("ill/P1_1.png", "ill/P1_2.png", "well/P2_1.png"):
        write_image(tmp_path / name, size=(16, 16))
    write_image(tmp_path / "well" / "P2_2.png", size=(300, 200), mode="RGB")
    for name in ("ill/b1.png", "well/b2.jpg", "well/b3.bmp"):
        (tmp_path / name).write_text("no image")
    answer = RUNNER.invoke(app, ["check", str(tmp_path), "--json", "--declare", "person=name:^(P[0-9])"])
    assert answer.exit_code == 1
    found = json.loads(answer.stdout)
    assert found["readable"] == 4
    assert [sentence.partition(":")[0].removeprefix(f"{tmp_path}/") for sentence in found["broken"]] == [
        "ill/b1.png",
        "well/b2.jpg",
        "well/b3.bmp",
    ]
    assert found["sizes"] == {"16x16 grey": 3, "300x200 RGB": 1}
    assert found["people"] == {"people": 2, "fewest": 2, "most": 2}
    assert found["stamp"].startswith("private")
    named = RUNNER.invoke(app, ["check", str(tmp_path), "--declare", "class_names=well,ill"])
    assert "labels: well (2), ill (2)" in named.stdout
    assert named.stdout.count("\nbroken: ") == 3


def test_check_needs_no_declaration_and_says_what_could_be_declared(
    tmp_path: Path, write_image: Callable[..., Path]
) -> None:
    for name in ("p1/1.png", "p2/1.png"):
        write_image(tmp_path / name, size=(99, 99))
    answer = RUNNER.invoke(app, ["check", str(tmp_path)])
    assert answer.exit_code == 0
    for words in (
        "2 images can be read, 0 broken (private",
        "99x99 grey (2)",
        "--shape 3x32x32",
        "sub-folders: 2 (p1, p2)",
    ):
        assert words in answer.stdout


def test_check_of_archives_and_tables(tmp_path: Path, write_image: Callable[..., Path]) -> None:
    images = np.zeros((3, 8, 8), np.uint8)
    np.savez(tmp_path / "a.npz", x=images, y=np.array([[1], [0], [1]]), who=np.array([4, 4, 5]))
    found = json.loads(
        RUNNER.invoke(app, ["check", str(tmp_path / "a.npz"), "--declare", "person=column:who", "--json"]).stdout
    )
    assert (found["readable"], found["labels"]) == (3, {"0": 1, "1": 2})
    assert found["people"] == {"people": 2, "fewest": 1, "most": 2}
    (tmp_path / "b.npz").write_bytes(b"damaged")
    assert "broken: " in RUNNER.invoke(app, ["check", str(tmp_path / "b.npz")]).stdout
    write_image(tmp_path / "1.png")
    (tmp_path / "c.csv").write_text("path,label\n1.png,cat\n2.png,dog\n1.png,\n")
    answer = RUNNER.invoke(app, ["check", str(tmp_path / "c.csv")])
    assert answer.exit_code == 1
    assert answer.stdout.count("\nbroken: ") == 2
    assert "labels: cat (1)" in answer.stdout


def test_check_of_folders_that_are_no_tree_of_pictures(
    tmp_path: Path, write_image: Callable[..., Path], write_mnist_folder: Callable[..., Path]
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    picture = write_image(tmp_path / "1.png").read_bytes()
    repository = tmp_path / "repository"
    (repository / "data").mkdir(parents=True)
    parquet.write_table(
        pyarrow.table({"image": [picture] * 2, "label": [1, 1]}), repository / "data" / "train-0.parquet"
    )
    for source, labels in ((repository, {"1": 2}), (write_mnist_folder(tmp_path / "idx", train=2), {"0": 1, "1": 1})):
        found = json.loads(RUNNER.invoke(app, ["check", str(source), "--json"]).stdout)
        assert (found["readable"], found["labels"], found["folders"]) == (2, labels, [])
    refuse_undeclared(DataOptions(str(repository), records=9))  # data/ is no class


def test_check_of_a_set_that_is_known_by_name() -> None:
    found = json.loads(RUNNER.invoke(app, ["check", "digits", "--split", "test", "--json"]).stdout)
    assert (found["path"], found["readable"], found["sizes"]) == ("digits", 360, {"8x8 grey": 360})
    assert sum(found["labels"].values()) == 360


def test_folders_of_which_nobody_said_what_they_are_may_be_people(
    tmp_path: Path, write_image: Callable[..., Path]
) -> None:
    for name in ("ann/1.png", "bob/1.png"):
        write_image(tmp_path / name)
    with pytest.raises(InputError, match=r"--declare person=folder:1 --declare nominal_people=N if its folders are pe"):
        refuse_undeclared(DataOptions(str(tmp_path), records=9))


def test_labels_may_be_named() -> None:
    names = ("Parasitized", "not, at all")
    assert parse_labels("Parasitized", names) == [0]
    assert parse_labels("1,Parasitized", names) == [1, 0]
    assert parse_labels("not, at all", names) == [1]
    with pytest.raises(InputError, match="'ill' is no class; choose among Parasitized"):
        parse_labels("ill", names)
    with pytest.raises(InputError, match="this release does not publish the names of its classes"):
        parse_labels("ill", None)
