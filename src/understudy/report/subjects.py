"""What a report is about: a run or a release, read from its folder: public files and, unless left out, private ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.files import read_object
from understudy.privacy.claims.statements import DataDependentClaim, kept_claims
from understudy.release.folders import find_release
from understudy.release.model_card import class_rows
from understudy.release.release import Release, load
from understudy.release.verify import Verification, verify
from understudy.report.neighbours import NeighbourCheck
from understudy.runs.folder import RunFolder

_MOST_LINES = 100_000
_MOST_POINTS = 2000  # of a line in a chart
_COLUMNS = 8  # samples of a class, large enough to be seen


@dataclass(frozen=True)
class Subject:
    """One run or release; what is not there, or was left out, is None or empty."""

    name: str
    release: Release | None = None
    verification: Verification | None = None
    problem: str | None = None
    rows: list[tuple[str | None, NDArray[np.uint8]]] = field(default_factory=list)
    run: Mapping[str, Any] | None = None
    progress: list[dict[str, float]] = field(default_factory=list)
    evaluation: Mapping[str, Any] | None = None  # computed with private data
    diagnostics: list[dict[str, float]] = field(default_factory=list)  # private
    seconds: float | None = None  # private: how long the run had worked at its last report
    kept_claims: tuple[DataDependentClaim, ...] = ()  # private
    neighbours: NeighbourCheck | None = None  # private
    real_rows: list[tuple[str | None, NDArray[np.uint8]]] = field(default_factory=list)  # private: records by class

    @property
    def method(self) -> str | None:
        """The name of the method."""
        if self.release is not None:
            return self.release.method
        return str(self.run["method"]) if self.run and "method" in self.run else None

    @property
    def domain(self) -> Domain | None:
        """The declared domain, as far as it is known."""
        if self.release is not None:
            return self.release.domain
        try:
            return Domain.model_validate((self.run or {})["domain"])
        except (KeyError, ValidationError):
            return None

    @property
    def data(self) -> str | None:
        """The name of the data of a run."""
        name = (self.run or {}).get("data")
        return name if isinstance(name, str) else None


def read_subject(path: Path | str, public: bool = False, keys: Path | None = None) -> Subject:
    """Everything a report shows of one folder; a run that has released nothing yet is shown as such.

    ``keys`` are those that a release must be signed with, as for ``verify``.

    Privacy: with ``public`` nothing is read that was computed with private data and not sanitized.
    """
    folder = Path(path)
    files = RunFolder(folder)
    if files.begun and not files.released:
        return Subject(
            name=name_of(folder),
            run=_object(files.description, "run"),
            progress=_public_points(files),
            diagnostics=[] if public else read_points(files.diagnostics),
            seconds=None if public else _seconds(files),
        )
    place = find_release(folder)
    release, problem = _load(place)
    return Subject(
        name=name_of(folder),
        release=release,
        verification=verify(place, keys),
        problem=problem,
        rows=[] if release is None else class_rows(release, _COLUMNS),
        run=_object(files.description, "run") if files.begun else None,
        progress=_public_points(files) if files.begun else [],
        evaluation=_object(files.evaluation, "evaluation") if files.begun and not public else None,
        diagnostics=read_points(files.diagnostics) if files.begun and not public else [],
        seconds=_seconds(files) if files.begun and not public else None,
        kept_claims=kept_claims(files.claims) if files.begun and not public else (),
    )


def name_of(folder: Path) -> str:
    """The name under which a folder is shown."""
    place = folder.resolve()
    return f"{place.parent.name}/{place.name}" if place.name in ("run", "release") else place.name


def read_points(path: Path) -> list[dict[str, float]]:
    """Values over the steps of a run; a line torn by a crash is skipped, and of very many lines a part is kept."""
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
    points = [point for point in points if "step" in point]
    return points[:: max(1, len(points) // _MOST_POINTS)] + points[-1:]


def _public_points(files: RunFolder) -> list[dict[str, float]]:
    """Public values over the steps of a run, without the times that earlier versions wrote beside them."""
    points = read_points(files.progress)
    return [{name: value for name, value in point.items() if name != "seconds"} for point in points]


def _seconds(files: RunFolder) -> float | None:
    return next(reversed(files.seconds()), None)


def _load(place: Path) -> tuple[Release | None, str | None]:
    try:
        return load(place), None
    except InputError as error:
        return None, str(error)


def _object(path: Path, what: str) -> Mapping[str, Any] | None:
    return read_object(path, what) if path.is_file() else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
