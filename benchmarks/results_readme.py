"""The results in the README: for each data set one table, a row for each method, ours beside the published figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from results_sections import share, table, value
from understudy.report.published import PublishedRow, published_level, published_rows

Row = dict[str, Any]
Level = float | None


def dataset_part(dataset: str, quality: dict[str, Row]) -> str:
    """Title, table and the samples of the best row of one data set."""
    private = {stem: row for stem, row in quality.items() if row["dataset"] == dataset and row["epsilon"] is not None}
    best = best_rows(private)
    second = "CNN accuracy" if any(has_accuracy(row) for row in private.values()) else "Inception score"
    levels = sorted({level for _, level in best}, reverse=True)
    head = ["method"]
    for level in levels:
        largest = max(best[key]["epsilon"] for key in best if key[1] == level)
        head += [f"epsilon {math.ceil(largest - 0.01)}", "as published"]
    lines = []
    for method in sorted({method for method, _ in best}):
        cells = [f"`{method}`"]
        for level in levels:
            row = best.get((method, level))
            cells += ["-", "-"] if row is None else [pair(row), rival(row, published_rows(dataset))]
        lines.append(cells)
    shown = min(private, key=lambda stem: fid(private[stem]), default="")
    picture = f"\n![Samples of {shown}](benchmarks/results/{shown}.png)\n" if shown else ""
    return f"### {dataset}: FID / {second}\n\n{table(head, lines)}{picture}"


def best_rows(private: dict[str, Row]) -> dict[tuple[str, float], Row]:
    """For each method and level of epsilon the row of the least FID, or (without accuracy) of the largest score."""
    best: dict[tuple[str, float], Row] = {}
    for row in sorted(private.values(), key=rank):
        level = published_level(row["epsilon"], published_rows(row["dataset"])) or row["epsilon"]
        best.setdefault((row["method"], level), row)
    return best


def rank(row: Row) -> tuple[float, float]:
    """Where a row stands among those of its method."""
    return (fid(row), 0.0) if has_accuracy(row) else (-(row.get("inception_score") or 0.0), fid(row))


def has_accuracy(row: Row) -> bool:
    """Whether a classifier was trained on its images."""
    return row.get("cnn_accuracy") is not None


def fid(row: Row) -> float:
    """The FID of a row; a row without one comes last."""
    return math.inf if row.get("fid") is None else float(row["fid"])


def pair(row: Row) -> str:
    """FID and accuracy, or FID and Inception score."""
    second = share(row["cnn_accuracy"]) if has_accuracy(row) else value(row.get("inception_score"), 2)
    return f"{value(row.get('fid'))} / {second}"


def rival(row: Row, published: Sequence[PublishedRow]) -> str:
    """The best published figures of the same method on the same data at the same level of epsilon."""
    level = published_level(row["epsilon"], published)
    same = [other for other in published if other.like == row["method"] and other.epsilon == level]
    if level is None or not same:
        return "-"
    best = max(same, key=lambda other: other.cnn_accuracy or 0.0)
    apart = f" at epsilon {level:,g}" if level > 2 * row["epsilon"] else ""
    second = share(best.cnn_accuracy, "-") if has_accuracy(row) else value(best.inception_score, 2, absent="-")
    return f"{value(best.fid, absent='-')} / {second}{apart}"
