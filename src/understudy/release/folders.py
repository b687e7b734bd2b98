"""Folders of a release: which files it may hold, where it lies, and how a folder appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.errors import InputError
from understudy.files import aside, sync_folder
from understudy.runs.folder import RunFolder

WEIGHTS = "generator.safetensors"
CONFIG = "config.json"
CERTIFICATE = "certificate.json"
MODEL_CARD = "README.md"
SAMPLES = "samples.png"
SIGNATURE = "model.sig"  # only where somebody signed
ALLOWED_FILES = (WEIGHTS, CONFIG, CERTIFICATE, MODEL_CARD, SAMPLES)
LARGEST_BYTES = 2 * 2**30  # of any of them: a file of many terabytes may take no disk at all, but hours to read


def find_release(path: Path | str) -> Path:
    """The release folder that ``path`` means: itself, or the ``release`` folder of a run."""
    folder = Path(path)
    if not folder.exists():
        raise InputError(f"release: {folder} does not exist; pass the folder of a release or of a run")
    if not folder.is_dir():
        raise InputError(f"release: {folder} is a file; pass the folder of a release or of a run")
    run = RunFolder(folder)
    if run.begun and not (folder / CERTIFICATE).exists():
        if not run.released:
            raise InputError(
                f"release: the run in {folder} has not released anything yet; continue it with "
                "`understudy train ... --resume`, or release it as it stands with `understudy release`"
            )
        return run.release
    return folder


def holds_only_a_release(folder: Path) -> bool:
    """Whether a folder holds a release and nothing else, so that a newer release may take its place."""
    names = {entry.name for entry in folder.iterdir()}
    plain = all(entry.is_file() and not entry.is_symlink() for entry in folder.iterdir())
    return plain and CERTIFICATE in names and names <= {*ALLOWED_FILES, SIGNATURE}


@contextmanager
def new_folder(target: Path | str, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """An empty folder to write into; it takes the place of ``target`` at the end, or vanishes if anything fails.

    A ``target`` that holds something is replaced only if ``replaceable`` says so.
    """
    place = Path(os.path.abspath(target))
    _refuse_occupied(place, replaceable)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with aside(place, folder=True) as temporary:
            yield temporary
            _take_place(temporary, place)
    except OSError as error:
        raise InputError(
            f"output: {place} could not be written ({error.strerror or error}); free the disk or choose another folder"
        ) from None


def _refuse_occupied(place: Path, replaceable: Callable[[Path], bool]) -> None:
    if not place.name:
        raise InputError(f"output: {place} cannot be replaced; choose a folder of its own")
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise InputError(f"output: {place} exists and is not a folder; choose another one")
    if place.is_dir() and any(place.iterdir()) and not replaceable(place):
        raise InputError(f"output: {place} holds other files already; choose another folder or empty it")


def _take_place(temporary: Path, place: Path) -> None:
    """Rename the finished folder; an older one is moved aside first and comes back if that fails."""
    old = place.with_name(f".{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    try:
        temporary.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(place.parent)
