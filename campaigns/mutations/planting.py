"""Planted bugs: what a bug is, and how it is put into a copy of the package."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Patch:
    """One replacement in one file of the package; the old text must be there exactly once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """A bug by name, the patches that plant it, and the tests of which at least one must fail."""

    name: str
    patches: tuple[Patch, ...]
    catcher: str
    by_audit: bool = False


def bug(name: str, path: str, old: str, new: str, catcher: str, *, by_audit: bool = False) -> Bug:
    """A bug that one replacement plants."""
    return Bug(name, (Patch(path, old, new),), catcher, by_audit)


class PatchDoesNotApply(Exception):
    """The source changed: write the bug anew, so that it is still tried."""


def planted(source: str, patch: Patch) -> str:
    """The text of a file with the bug in it."""
    found = source.count(patch.old)
    if found != 1:
        raise PatchDoesNotApply(f"{patch.path}: the text to replace occurs {found} times: {patch.old.strip()[:100]!r}")
    changed = source.replace(patch.old, patch.new)
    compile(changed, patch.path, "exec")
    return changed


def plant(bug: Bug, folder: Path, source: Path = SOURCE) -> Path:
    """A copy of the package in ``folder`` with the bug in it; returns what to put on PYTHONPATH."""
    copy = folder / "src"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for patch in bug.patches:
        path = copy / "understudy" / patch.path
        path.write_text(planted(path.read_text(encoding="utf-8"), patch), encoding="utf-8")
    return copy
