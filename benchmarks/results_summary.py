"""The results in short: for each data set one table, a row for each method, ours beside the published figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from results_epsilon import (
    CUSTOMARY_DELTA,
    Promise,
    columns_in_words,
    from_random_weights,
    has_teacher,
    is_federated,
    paragraph,
    promises,
    published_promise,
    require_alike,
    unit_of,
    viewer_columns,
)
from results_sections import share, table, value
from understudy.report.published import PublishedRow, published_level, published_rows

Row = dict[str, Any]
Level = float | None
UNITS = ("record", "person")  # of central methods


def dataset_part(dataset: str, quality: dict[str, Row]) -> str:
    """Title, tables and the samples of the best row of one data set."""
    private = {stem: row for stem, row in quality.items() if row["dataset"] == dataset and row["epsilon"] is not None}
    federated = {stem: row for stem, row in private.items() if is_federated(row)}
    records = {stem: row for stem, row in private.items() if stem not in federated}
    tables = [part for unit in UNITS if (part := unit_table(dataset, unit, records))]
    tables += [federated_tables(dataset, federated)] if federated else []
    shown = min(private, key=lambda stem: fid(private[stem]), default="")
    picture = f"\n![Samples of {shown}](../benchmarks/results/{shown}.png)\n" if shown else ""
    return f"### {dataset}: {quality_of(records or federated)}\n\n" + "\n".join(tables) + picture


def quality_of(rows: dict[str, Row]) -> str:
    """The two figures that a table of these rows shows."""
    return "FID / " + ("CNN accuracy" if any(has_accuracy(row) for row in rows.values()) else "Inception score")


def unit_table(dataset: str, unit: str, rows: dict[str, Row]) -> str:
    """The table of the rows that protect this unit, under a line that says so where it is not a record."""
    same = {stem: row for stem, row in rows.items() if unit_of(row) == unit}
    if not same:
        return ""
    words = paragraph(f"Protected is one {unit} with all their images.") + "\n" if unit != "record" else ""
    return words + records_table(dataset, same, unit)


def records_table(dataset: str, records: dict[str, Row], unit: str) -> str:
    """A row for each method, one more with a teacher; for each level of epsilon ours and what was published for it."""
    published = [row for row in published_rows(dataset) if row.unit != "client" and unit == "record"]
    best = best_rows(records, published)
    levels = sorted({level for _, level in best}, reverse=True)
    head = ["method"]
    for level in levels:
        largest = max(row["epsilon"] for (_, each), (_, row) in best.items() if each == level)
        head += [f"epsilon {math.ceil(largest - 0.01)}", "as published"]
    lines = []
    for method in sorted({method for method, _ in best}):
        cells = [method]
        for level in levels:
            stem, row = best.get((method, level), ("", None))
            cells += ["-", "-"] if row is None else [pair(row) + other_delta(row), rival(stem, row, published)]
        lines.append(cells)
    return table(head, lines)


def federated_tables(dataset: str, federated: dict[str, Row]) -> str:
    """Ours above what was published for the method, with a column for each viewer; a table for each delta."""
    published = {row: promise for row in published_rows(dataset) if (promise := published_promise(row))}
    theirs = {row: promise for row, promise in published.items() if promise.unit == "client"}
    second = any(has_accuracy(row) for row in federated.values())
    lines: list[tuple[str, int, Sequence[Promise], list[str]]] = [
        (row["method"], 0, promises(stem, row), [method, pair(row)])
        for (method, _), (stem, row) in best_rows(federated, []).items()
    ]
    for row, promise in theirs.items():
        name = f"{row.method} ({row.source})"
        lines.append((row.like or "", 1, (promise,), [name, published_pair(row, second)]))
    parts = []
    for delta in sorted({found[0].delta for _, _, found, _ in lines}, reverse=True):
        rows = sorted((line for line in lines if line[2][0].delta == delta), key=lambda line: line[:2])
        heads, epsilons = viewer_columns([found for _, _, found, _ in rows])
        together = [(*cells, *own) for (*_, cells), own in zip(rows, epsilons, strict=True)]
        parts += [
            columns_in_words([found for _, _, found, _ in rows], ""),
            table(("method", quality_of(federated), *heads), together),
        ]
    return "\n".join(parts)


def best_rows(private: dict[str, Row], published: Sequence[PublishedRow]) -> dict[tuple[str, float], tuple[str, Row]]:
    """For each method, with and without a teacher and a start, and level of epsilon the row of the least FID.

    Without accuracy that of the largest Inception score.
    """
    helped = {row["method"] for row in private.values() if not from_random_weights(row)}
    best: dict[tuple[str, float], tuple[str, Row]] = {}
    for stem, row in sorted(private.items(), key=lambda item: rank(item[1])):
        best.setdefault((in_words(row, row["method"] in helped), summary_level(row, published)), (stem, row))
    return best


def in_words(row: Row, helped: bool) -> str:
    """Its method; that it begins at random weights where other rows do not; whether a teacher names its samples."""
    alone = " from random weights" if helped and from_random_weights(row) else ""
    return f"`{row['method']}`" + alone + (" with a teacher" if has_teacher(row) else "")


def summary_level(row: Row, published: Sequence[PublishedRow]) -> float:
    """At which epsilon a row stands: a published one that is not below its own, else its own, rounded up."""
    return published_level(row["epsilon"], published) or math.ceil(row["epsilon"] - 0.01)


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
    if row.get("resnet_accuracy") is not None:
        second += f" ({share(row['resnet_accuracy'])} by a residual network)"
    return f"{value(row.get('fid'))} / {second}"


def other_delta(row: Row) -> str:
    """Where a row has not the unit or the delta of all the others."""
    unit = "" if unit_of(row) == "record" else f" for one {unit_of(row)}"
    return unit + ("" if row["delta"] == CUSTOMARY_DELTA else f" at delta {row['delta']:g}")


def rival(stem: str, row: Row, published: Sequence[PublishedRow]) -> str:
    """The best published figures of the same method on the same data at the same level of epsilon."""
    level = published_level(row["epsilon"], published)
    same = [other for other in published if other.like == row["method"] and other.epsilon == level]
    if level is None or not same:
        return "-"
    best = max(same, key=lambda other: other.cnn_accuracy or 0.0)
    promised = published_promise(best)
    require_alike([promises(stem, row)[0], *([promised] if promised else [])])
    apart = f" at epsilon {level:,g}" if level > 2 * row["epsilon"] else ""
    return published_pair(best, has_accuracy(row)) + apart


def published_pair(row: PublishedRow, accuracy: bool) -> str:
    """FID and accuracy, or FID and Inception score, of a published row."""
    second = share(row.cnn_accuracy, "-") if accuracy else value(row.inception_score, 2, absent="-")
    return f"{value(row.fid, absent='-')} / {second}"
