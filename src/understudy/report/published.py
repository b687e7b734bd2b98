"""Figures that others have published, to stand beside ours: read from ``published.json``, the one place for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_TOLERANCE = 1.01  # a certificate rounds its epsilon up


@dataclass(frozen=True)
class PublishedRow:
    """One row of somebody's table; ``like`` names our method of the same kind, if there is one.

    An epsilon says against whom it holds (``viewer``) and for what (``unit``), as ours do, or it cannot stand beside
    any; ``adjacency``, ``delta`` and the number of ``units`` are None where the source does not state them.
    """

    dataset: str
    method: str
    like: str | None
    epsilon: float | None  # None: not private, or not comparable
    fid: float | None
    inception_score: float | None
    cnn_accuracy: float | None
    source: str
    viewer: str | None = None
    unit: str | None = None
    adjacency: str | None = None
    delta: float | None = None
    units: int | None = None


def published_note() -> str:
    """What a reader must know about all of these figures."""
    return str(_content()["note"])


def published_rows(dataset: str | None = None) -> list[PublishedRow]:
    """All rows, or those of one data set (by its name, such as ``mnist``)."""
    rows = [PublishedRow(**row) for row in _content()["rows"]]
    return rows if dataset is None else [row for row in rows if row.dataset == dataset]


def published_level(epsilon: float, rows: Sequence[PublishedRow]) -> float | None:
    """The published epsilon to compare with: the smallest that is not below ours; None where all of them are."""
    levels = sorted({row.epsilon for row in rows if row.epsilon is not None})
    return next((level for level in levels if epsilon <= level * _TOLERANCE), None)


def comparable_rows(dataset: str, epsilon: float, viewer: str, unit: str) -> list[PublishedRow]:
    """References without an epsilon, then the rows of the same viewer and unit at the published epsilon beside ours."""
    rows = published_rows(dataset)
    same = [row for row in rows if (row.viewer, row.unit) == (viewer, unit)]
    level = published_level(epsilon, same)
    return [row for row in rows if row.epsilon is None] + [
        row for row in same if row.epsilon is not None and row.epsilon == level
    ]


def _content() -> Any:
    return json.loads(files("understudy.report").joinpath("published.json").read_text(encoding="utf-8"))
