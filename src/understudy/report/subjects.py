"""What a report is about: a run or a release, read from its folder: public files and, if there, evaluation.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from understudy.errors import InputError
from understudy.privacy.certificate import read_json
from understudy.release.folders import find_release
from understudy.release.grid import class_rows
from understudy.release.release import Release, load
from understudy.release.verify import Verification, verify

_MOST_LINES = 100_000


@dataclass(frozen=True)
class Subject:
    """One run or release; what is not there is None or empty."""

    name: str
    release: Release | None = None
    verification: Verification | None = None
    problem: str | None = None
    rows: list[tuple[str | None, NDArray[np.uint8]]] = field(default_factory=list)
    run: Mapping[str, Any] | None = None
    progress: list[dict[str, float]] = field(default_factory=list)
    evaluation: Mapping[str, Any] | None = None


def read_subject(path: Path | str) -> Subject:
    """Everything a report shows of one folder; a run that has released nothing yet is shown as such."""
    folder = Path(path)
    is_run = (folder / "run.json").is_file()
    if is_run and not (folder / "release").is_dir():
        return Subject(_name(folder), run=_object(folder / "run.json", "run"), progress=_progress(folder))
    place = find_release(folder)
    release, problem = _load(place)
    return Subject(
        name=_name(folder),
        release=release,
        verification=verify(place),
        problem=problem,
        rows=[] if release is None else class_rows(release),
        run=_object(folder / "run.json", "run") if is_run else None,
        progress=_progress(folder),
        evaluation=_object(folder / "evaluation.json", "evaluation"),
    )


def _name(folder: Path) -> str:
    place = folder.resolve()
    return f"{place.parent.name}/{place.name}" if place.name in ("run", "release") else place.name


def _load(place: Path) -> tuple[Release | None, str | None]:
    try:
        return load(place), None
    except InputError as error:
        return None, str(error)


def _object(path: Path, what: str) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    raw = read_json(path, what)
    if not isinstance(raw, dict):
        raise InputError(f"{what}: {path} holds a {type(raw).__name__}, but an object is needed; the file is damaged")
    return raw


def _progress(folder: Path) -> list[dict[str, float]]:
    """The public values over time; a line torn by a crash is skipped."""
    path = folder / "progress.jsonl"
    if not path.is_file():
        return []
    points = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for _, line in zip(range(_MOST_LINES), file, strict=False):
            try:
                point = json.loads(line)
            except ValueError:
                continue
            if isinstance(point, dict):
                points.append({str(key): float(value) for key, value in point.items() if _is_number(value)})
    return [point for point in points if "step" in point]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
