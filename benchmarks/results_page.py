"""Turn ``benchmarks/results/*.json`` into ``docs/results.md`` and a few lines in the README, published figures beside.

``python benchmarks/results_page.py`` writes both; with ``--check`` it exits 1 when they do not say what the files say.
A file is recognised by what it holds: a certificate (a row of the quality tables), ``check`` (a check on real data),
``classifiers`` (accuracy by classifier), ``points`` (a curve), ``data_bugs`` (faults found by ``inspect``),
``annotation`` (students by number of labels), ``teachers`` (private classifiers), ``namings`` (who calls samples what),
``audit_runs`` (run audits), ``repeats`` (a row that was trained again), ``real_images`` (what real images score),
``rows`` (speed). Anything else is named at the end. A federated figure without viewer, unit and delta, and a column of
figures that promise different things, end both with one sentence (``results_epsilon``).
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from results_epsilon import (
    CUSTOMARY_DELTA,
    Promise,
    columns_in_words,
    delta_remark,
    figure,
    is_federated,
    paragraph,
    promises,
    published_promise,
    require_alike,
    start_of,
    unit_of,
    viewer_columns,
)
from results_readme import readme_part
from results_sections import (
    annotation_section,
    audits_section,
    bugs_section,
    checks_passed,
    checks_section,
    classifiers_section,
    curve_section,
    namings_section,
    origin,
    other_section,
    real_images_section,
    repeats_section,
    share,
    speed_section,
    table,
    teachers_section,
    value,
)
from results_summary import dataset_part
from understudy.report.published import PublishedRow, published_level, published_note, published_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, README = ROOT / "benchmarks/results", ROOT / "docs/results.md", ROOT / "README.md"
START, END = "<!-- results:start -->", "<!-- results:end -->"
Row = dict[str, Any]

HEAD = """# Results

<!-- Written by `python benchmarks/results_page.py` from benchmarks/results; change the files, not this page. -->

FID compares 60,000 generated images, or as many as a row's command says, with the test images (10,000; of malaria cells
3,850; Inception network of 2015). CNN: two convolutions, trained on generated images only, scored on the real test
images. The data sets are public, so these figures may be published. Hyper-parameters were chosen on these same public
data sets. Every epsilon of ours whose certificate is in benchmarks/results was recomputed from its events by two
accountants when this page was written, against each viewer that it is stated for. Where a table does not say otherwise,
epsilon is against the public (whoever sees the release), for one record more or less, at delta 1e-5. Seconds are of
training; most rows shared their card with up to seven other runs, so alone they take a fraction of that. How many runs
a row of `dp-diffusion` was chosen from is in [diffusion.md](diffusion.md#what-was-measured); that of `dp-merf` by
writer, those of other methods with a teacher, teachers alone and random starts are single ones.
"""
SHORT_HEAD = """\
Where a method has several rows at one epsilon, this is the one of the least FID (without accuracy: of the largest
Inception score); all rows, with their commands, are below. Many methods can buy a noisy mean embedding first, as that
of `dp-merf`, and start from there, which the published systems do not; rows of theirs that begin at random weights
stand by themselves, and so do those whose samples are named by a [teacher](teacher.md), within the same epsilon.
Without a teacher no row of a method that only starts from an embedding is more than about one point more accurate than
`dp-merf` alone (`dp-merf-ae` is, and `dp-hp` is below it; both are embeddings of their own). A row from random weights
is a single run of its settings, but for those that were trained again.
"""
PROVISIONAL = """
The check of FID on real data (training against test images of MNIST should score 1.02, `benchmarks/fid_check.py`) has
not been run to its end yet, so read FID figures as provisional.
"""


def main() -> int:
    """Write or compare both pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    results = read_results(RESULTS)
    wanted = {PAGE: page(results), README: readme(README.read_text(encoding="utf-8"), results)}
    if check:
        stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python benchmarks/results_page.py")
        return 1 if stale else 0
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def read_results(folder: Path) -> dict[str, Row]:
    """Every result file under its name without ending."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def kind_of(row: Row) -> str:
    """Which section a file belongs to."""
    kinds = {"certificate": "quality", "check": "check", "classifiers": "classifiers", "points": "curve"}
    kinds |= {"data_bugs": "bugs", "annotation": "annotation", "audit_runs": "audits", "teachers": "teachers"}
    kinds |= {"namings": "namings", "repeats": "repeats", "real_images": "real"}
    found = next((kind for key, kind in kinds.items() if key in row), None)
    return found or ("speed" if is_speed(row) else "other")


def is_speed(row: Row) -> bool:
    rows = row.get("rows")
    return isinstance(rows, list) and all({"what", "unit", "ours", "rival", "ratio"} <= set(line) for line in rows)


def page(results: dict[str, Row]) -> str:
    """``docs/results.md``: first in short, then everything."""
    checks = {stem: row for stem, row in results.items() if kind_of(row) == "check"}
    head = HEAD if checks_passed(checks) else HEAD + PROVISIONAL
    return "\n".join([head, *remark(quality_rows(results)), in_short(results), details(results)])


def in_short(results: dict[str, Row]) -> str:
    """For each data set the best row of every method, beside what was published for it."""
    quality = quality_rows(results)
    if not quality:
        return ""
    return "\n".join(["## In short\n", SHORT_HEAD, *(dataset_part(name, quality) for name in datasets(quality))])


def details(results: dict[str, Row]) -> str:
    """Every file in its section, with the command of each."""
    of = {kind: {stem: row for stem, row in results.items() if kind_of(row) == kind} for kind in KINDS}
    parts = []
    for dataset in datasets(of["quality"]):
        parts += [f"## {dataset}\n", quality_section(dataset, of["quality"])]
    sections = (
        ("Rows that were trained again", of["repeats"], partial(repeats_section, printed=of["quality"])),
        ("Real images in the place of generated ones", of["real"], real_images_section),
        ("Classifiers", of["classifiers"], classifiers_section),
        ("Curves and comparisons", of["curve"], curve_section),
        ("Checks on real data", of["check"], checks_section),
        ("Faults found in private samples", of["bugs"], bugs_section),
        ("Annotation", of["annotation"], annotation_section),
        ("Private teachers", of["teachers"], teachers_section),
        ("Who names samples", of["namings"], namings_section),
        ("Run audits", of["audits"], audits_section),
        ("Speed", of["speed"], speed_section),
        ("Other measurements", of["other"], other_section),
    )
    for title, files, section in sections:
        if files:
            parts += [f"## {title}\n", section(files)]
    return "\n".join(parts)


def quality_rows(results: dict[str, Row]) -> dict[str, Row]:
    """The rows with a certificate."""
    return {stem: row for stem, row in results.items() if kind_of(row) == "quality"}


def remark(quality: dict[str, Row]) -> list[str]:
    """What is to be said once about the deltas of all tables."""
    found: dict[str, list[Promise]] = {dataset: [] for dataset in datasets(quality)}
    for stem, row in quality.items():
        found[row["dataset"]] += promises(stem, row)
    text = delta_remark(found)
    return [text] if text else []


KINDS = (
    *("quality", "classifiers", "curve", "check", "bugs", "annotation", "teachers", "namings", "audits", "speed"),
    *("repeats", "real", "other"),
)


def datasets(quality: dict[str, Row]) -> list[str]:
    """The data sets in the order of the published table, then the others by name."""
    known = list(dict.fromkeys(row.dataset for row in published_rows()))
    found = {row["dataset"] for row in quality.values()}
    return [name for name in known if name in found] + sorted(found - set(known))


def quality_section(dataset: str, quality: dict[str, Row]) -> str:
    """Records, then federations, each ours in bold beside the published ones; then the command of each row of ours."""
    ours = {stem: row for stem, row in sorted(quality.items()) if row["dataset"] == dataset}
    federated = {stem: row for stem, row in ours.items() if is_federated(row)}
    people = {stem: row for stem, row in ours.items() if stem not in federated and unit_of(row) == "person"}
    of_records = {stem: row for stem, row in ours.items() if stem not in federated and stem not in people}
    published = {row: published_promise(row) for row in published_rows(dataset)}
    theirs = {row: promise for row, promise in published.items() if promise and promise.unit == "client"}
    others = {row: promise for row, promise in published.items() if row not in theirs}
    parts = [records_table(of_records, others)] if of_records or others else []
    parts += [paragraph("Protected is one person with all their images:"), records_table(people, {})] if people else []
    parts += [federated_tables(federated, theirs)] if federated or theirs else []
    commands = [f"- `{stem}`: {origin(row)}" for stem, row in ours.items()]
    parts += ["Our rows, with the command of each:\n", "\n".join(commands) + "\n"]
    return "\n".join(parts + ([published_note() + "\n"] if others else []))


def records_table(ours: dict[str, Row], published: dict[PublishedRow, Promise | None]) -> str:
    """One table, by epsilon, which is against the public for the same unit throughout."""
    private = {stem: row for stem, row in ours.items() if row["epsilon"] is not None}
    promised = [promise for stem, row in ours.items() for promise in promises(stem, row)]
    require_alike([*promised, *(promise for promise in published.values() if promise)])
    level = {stem: published_level(row["epsilon"], list(published)) or row["epsilon"] for stem, row in private.items()}
    levels = sorted({*level.values(), *(row.epsilon for row in published if row.epsilon is not None)}, reverse=True)
    lines = [
        own_cells(stem, row, start_of(row), "none, not private") for stem, row in ours.items() if stem not in private
    ]
    lines += [published_cells(row, "-", "-") for row in published if row.epsilon is None]
    for each in levels:
        same = {stem: row for stem, row in private.items() if level[stem] == each}
        lines += [own_cells(stem, row, start_of(row), epsilon_cell(stem, row)) for stem, row in same.items()]
        lines += [published_cells(row, "-", figure(row.epsilon)) for row in published if row.epsilon == each]
    return table(("method", "starts from", "epsilon", *FIGURES), lines)


FIGURES = ("FID", "Inception score", "CNN accuracy", "where it comes from")


def epsilon_cell(stem: str, row: Row) -> str:
    """The claim of the row's certificate, which both numerical accountants confirm from its events."""
    claim = promises(stem, row)[0]
    return f"{figure(claim.epsilon)}, recomputed" + (
        "" if claim.delta == CUSTOMARY_DELTA else f", delta {claim.delta:g}"
    )


def federated_tables(ours: dict[str, Row], published: dict[PublishedRow, Promise]) -> str:
    """A table for each delta: ours and theirs, with a column for each viewer that an epsilon is against."""
    lines = [(promises(stem, row), own_cells(stem, row)) for stem, row in ours.items()]
    lines += [((promise,), published_cells(row)) for row, promise in published.items()]
    private = [(found, cells) for found, cells in lines if found]
    parts = []
    for delta in sorted({found[0].delta for found, _ in private}, reverse=True):
        rows = [(found, cells) for found, cells in private if found[0].delta == delta]
        heads, epsilons = viewer_columns([found for found, _ in rows])
        together = [(cells[0], *own, *cells[1:]) for (_, cells), own in zip(rows, epsilons, strict=True)]
        parts += [columns_in_words([found for found, _ in rows], ""), table(("method", *heads, *FIGURES), together)]
    return "\n".join(parts)


def own_cells(stem: str, row: Row, *promised: str) -> tuple[str, ...]:
    seconds = row.get("train_seconds")
    time = "" if seconds is None else f", {seconds:,.0f} s"
    return (
        f"**{row['method']}**" + (f" ([samples](../benchmarks/results/{stem}.png))" if row.get("grid", True) else ""),
        *promised,
        value(row.get("fid")),
        value(row.get("inception_score"), 2),
        accuracy(row),
        f"`{stem}`: {row.get('device', 'machine not recorded')}{time}",
    )


def accuracy(row: Row) -> str:
    """Of the CNN and, in colour, of the residual network with its size."""
    cnn, resnet = share(row.get("cnn_accuracy")), row.get("resnet_accuracy")
    if resnet is None:
        return cnn
    millions = row["networks"]["resnet"]["parameters"] / 1e6
    return f"{cnn}; {share(resnet)} by a residual network of {millions:.1f} million parameters"


def published_cells(row: PublishedRow, *promised: str) -> tuple[str, ...]:
    figures = (value(row.fid, absent="-"), value(row.inception_score, 2, absent="-"), share(row.cnn_accuracy, "-"))
    return (row.method, *promised, *figures, row.source)


def readme(text: str, results: dict[str, Row]) -> str:
    """The README with what a visitor should know of the results between its two marks."""
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    quality = quality_rows(results)
    return f"{before}\n{readme_part(results, quality, datasets(quality))}{after}"


if __name__ == "__main__":
    sys.exit(main())
