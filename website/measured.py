"""What was measured of one method, as a section of its page: the rows of the results page that are its own."""

from __future__ import annotations

from functools import cache

import results_page
from results_epsilon import is_federated
from understudy.methods.registry import get_method


def measured_section(name: str) -> str:
    """The rows of a method on public data, and samples of the one with the least FID on each data set."""
    rows = {stem: row for stem, row in _quality().items() if row["method"] == name}
    if not rows:
        return "## Measured\n\nNo run of it on MNIST or larger data is among the [results](../results.md) yet.\n"
    parts = ["## Measured\n", "On public data; commands, machines and published figures: [results](../results.md).\n"]
    for dataset in results_page.datasets(rows):
        found = {stem: row for stem, row in sorted(rows.items()) if row["dataset"] == dataset}
        federated = get_method(name).federated or any(is_federated(row) for row in found.values())
        table = results_page.federated_tables(found, {}) if federated else results_page.records_table(found, {})
        best = min(found, key=lambda stem: found[stem].get("fid") or float("inf"))
        picture = f"![Samples of {best}](../benchmarks/results/{best}.png)\n"
        parts += [f"### {dataset}\n", table, picture]
    text = "\n".join(parts)
    return text.replace("](federated.md", "](../federated.md").replace("](../benchmarks", "](../../benchmarks")


@cache
def _quality() -> dict[str, results_page.Row]:
    found = results_page.read_results(results_page.RESULTS)
    return {stem: row for stem, row in found.items() if results_page.kind_of(row) == "quality"}
