from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from understudy.cli.data import app
from understudy.errors import InputError

RUNNER = CliRunner()


def test_list(own_cache: Path, write_mnist_folder: Callable[..., Path]) -> None:
    write_mnist_folder(own_cache / "mnist")
    answer = RUNNER.invoke(app, ["list", "--json"])
    rows = {row["name"]: row for row in json.loads(answer.stdout)["datasets"]}
    assert list(rows) == ["digits", "mnist", "fashion-mnist", "femnist"]
    assert [row["available"] for row in rows.values()] == [True, True, False, False]
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
