"""Run the notebooks of the docs and keep what came out: ``python website/notebooks.py`` after a change to one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

NOTEBOOKS = Path(__file__).resolve().parent.parent / "docs/notebooks"
_HOMES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR")


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook after a run from its first to its last cell, in a folder of its own; a cell that fails raises.

    The kernel is spoken to through files, so that no port is opened; what it counts and keeps goes into a passing home.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as home:
        manager = {"transport": "ipc", "ip": f"{home}/kernel"}
        place = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, timeout=600, resources=place, config=Config({"KernelManager": manager}))
        client.execute(env={**os.environ, **dict.fromkeys(_HOMES, home)})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it was run is nobody's business
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("image/jpeg", None)  # the same picture again
    return notebook


def main() -> None:
    """Run all of them and write each with its outputs."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(path, Path(folder)), path)
        print(f"ran {path.relative_to(NOTEBOOKS.parent.parent)}")


if __name__ == "__main__":
    main()
