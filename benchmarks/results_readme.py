"""The results in the README: how good, how fast and how true, in a few lines each; all of it from result files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from results_epsilon import is_federated, paragraph, promises, published_promise, require_alike, start_of, unit_of
from results_sections import checks_passed, share, table, value
from results_summary import other_delta, summary_level
from understudy.report.published import PublishedRow, published_rows

Row = dict[str, Any]
FAST = (  # which lines of which speed files a visitor should see
    ("speed-discriminator", "discriminator step, B=512, bf16, Opacus with ghost"),
    ("speed-critic-bank-nvidia-h200", "critic training, bank, bf16, 250 side by side, CUDA graph"),
    ("speed-startup", "understudy --help (rival: import torch)"),
)


def readme_part(results: dict[str, Row], quality: dict[str, Row], datasets: Sequence[str]) -> str:
    """The three sections, each with a way to the whole of it."""
    private = {stem: row for stem, row in quality.items() if row["epsilon"] is not None and not is_federated(row)}
    measured = {row["real_images"]: row["figures"] for row in results.values() if "real_images" in row}
    rows = [line for dataset in datasets for line in headlines(dataset, private, measured.get(dataset, ()))]
    checked = checks_passed({stem: row for stem, row in results.items() if "check" in row})
    return "\n".join([*how_good(rows, checked), *how_fast(results, rows), *how_true(results)])


@dataclass(frozen=True)
class Headline:
    """The best of a data set at one level of epsilon: ours by FID and by accuracy, published, and of real images.

    The best of whatever has a start is one line, the best of what begins at random weights another.
    """

    dataset: str
    level: float
    start: str
    by_fid: Row
    by_accuracy: Row
    published: Sequence[PublishedRow]
    measured: Sequence[Row]  # figures of real images, where others published none

    def cells(self) -> list[str]:
        """One line of the table."""
        theirs = [row for row in self.published if row.epsilon == self.level]
        distances = [row.fid for row in theirs if row.fid is not None]
        accuracies = [row.cnn_accuracy for row in theirs if row.cnn_accuracy is not None]
        return [
            self.dataset,
            f"{self.level:g}",
            self.start,
            f"**{value(self.by_fid['fid'])}** {_of(self.by_fid)}",
            value(min(distances, default=None), absent="-"),
            value(self._real("fid"), absent="-"),
            f"**{share(best_accuracy(self.by_accuracy))}** {_of(self.by_accuracy)}",
            share(max(accuracies, default=None), "-"),
            share(self._real("resnet" if self.by_accuracy.get("resnet_accuracy") else "cnn"), "-"),
        ]

    def _real(self, name: str) -> float | None:
        """What real images score, as it was measured here or published."""
        own = {figure["name"]: figure["value"] for figure in self.measured}
        theirs = next((row for row in self.published if row.method == "real data"), None)
        published = {} if theirs is None else {"fid": theirs.fid, "cnn": theirs.cnn_accuracy}
        return own.get(name, published.get(name))


def best_accuracy(row: Row) -> float:
    """Of the residual network where there is one, as published accuracies in colour are; else of the CNN."""
    return float(row.get("resnet_accuracy") or row["cnn_accuracy"])


def _of(row: Row) -> str:
    return f"`{row['method']}`{other_delta(row)}"


def headlines(dataset: str, private: dict[str, Row], measured: Sequence[Row]) -> list[Headline]:
    """One for each level of epsilon at which both a FID and an accuracy were measured; epsilons are recomputed."""
    published = [row for row in published_rows(dataset) if row.unit != "client"]
    found: dict[tuple[float, str, str], dict[str, Row]] = {}
    for stem, row in sorted(private.items()):
        if row["dataset"] == dataset and None not in (row.get("fid"), row.get("cnn_accuracy")):
            kind = (summary_level(row, published), unit_of(row), start_of(row).split(";")[0])
            found.setdefault(kind, {})[stem] = row
    lines = []
    for (level, unit, start), rows in sorted(found.items(), key=lambda item: _place(*item[0])):
        shown = [min(rows, key=lambda stem: rows[stem]["fid"]), max(rows, key=lambda stem: best_accuracy(rows[stem]))]
        beside = [row for row in published if unit == "record" or row.epsilon is None]
        theirs = [promise for row in beside if row.epsilon == level and (promise := published_promise(row))]
        require_alike([*(promises(stem, rows[stem])[0] for stem in shown), *theirs])
        lines.append(Headline(dataset, level, start, rows[shown[0]], rows[shown[1]], beside, measured))
    return lines


def _place(level: float, unit: str, start: str) -> tuple[bool, float, str, str]:
    """Of a line among those of its data set: records before people, large epsilons first."""
    return unit != "record", -level, unit, start


def how_good(rows: Sequence[Headline], checked: bool) -> list[str]:
    """The best figures beside the best published ones, whatever their method, and those of real images."""
    if not rows:
        return []
    head = ["data", "epsilon", "starts from", "FID, ours", "best published", "real images"]
    head += ["accuracy, ours", "best published", "real images"]
    words = (
        "FID: how far generated images (60,000, or as many as a row's command says) are from real test images; less is "
        "better. Accuracy: of a small network, in colour of a residual one, that was trained on generated images only, "
        "on real test images. The best published figures are of whatever "
        "method has them, as its authors measured them, some accuracies with larger networks. What starts from an "
        "embedding bought a noisy mean of random features first; the published systems, but the best ones, start from "
        "random weights. Epsilon is against "
        "whoever sees the release, for one record, at delta 1e-5 where nothing else is said (the customary one; it is "
        "large for 60,000 records), and was recomputed from the certificates by two accountants. Every method, with "
        "commands, machines, curves and federations: [docs/results.md](docs/results.md)."
    )
    if not checked:
        words = f"**FID is provisional** until the check on real data has been run. {words}"
    return ["## How good\n", table(head, [row.cells() for row in rows]), paragraph(words)]


def how_fast(results: dict[str, Row], rows: Sequence[Headline]) -> list[str]:
    """How long the rows above took, and a few lines beside rivals."""
    timed = [row for line in rows for row in (line.by_fid, line.by_accuracy) if row.get("train_seconds") is not None]
    parts = []
    if timed:
        seconds = sorted(row["train_seconds"] for row in timed)
        devices = " or ".join(sorted({str(row.get("device")) for row in timed}))
        parts.append(
            paragraph(
                f"The generators of that table were trained in {seconds[0]:,.0f} to {seconds[-1]:,.0f} seconds each "
                f"({devices}), most of them beside other runs on the same card. `understudy plan` says for your own "
                "data how long it will take, before anything is read."
            )
        )
    lines = [_speed(results, stem, what) for stem, what in FAST if _line(results, stem, what)]
    parts += [table(("what", "unit", "ours", "rival", "ratio"), lines)] if lines else []
    return ["## How fast\n", *parts] if parts else []


def _line(results: dict[str, Row], stem: str, what: str) -> Row | None:
    return next((line for line in results.get(stem, {}).get("rows", []) if line["what"] == what), None)


def _speed(results: dict[str, Row], stem: str, what: str) -> list[str]:
    line = _line(results, stem, what) or {}
    machine = results[stem].get("device") or results[stem].get("machine") or "machine not recorded"
    return [f"{what} ({machine})", line["unit"], *(value(line[key], absent="") for key in ("ours", "rival", "ratio"))]


def how_true(results: dict[str, Row]) -> list[str]:
    """What was done to find the promise wrong, and what came of it."""
    told: dict[str, Callable[[Row], str]] = {
        "audit-runs": _audits,
        "faults": _faults,
        "killed-processes": _kills,
        "fuzz": _hostile,
    }
    lines = [f"- {write(results[stem])}" for stem, write in told.items() if stem in results]
    lines.append("- Known bugs are planted one by one, and each is caught: [docs/mutations.md](docs/mutations.md).")
    return ["## How true\n", "\n".join(paragraph(line).rstrip("\n").replace("\n", "\n  ") for line in lines) + "\n"]


def _audits(row: Row) -> str:
    """Bounds of all attacks on all runs; and of how many methods an attack sees missing noise."""
    bounds = [
        (run, attack, figure["epsilon_lower"]) for run in row["audit_runs"] for attack, figure in run["attacks"].items()
    ]
    claimed = {
        name: {attack: claim["claimed"] for attack, claim in claims.items()} for name, claims in row["claims"].items()
    }
    honest = [(run["method"], attack, bound) for run, attack, bound in bounds if not run["broken"]]
    above = sum(bound > claimed[method][attack] for method, attack, bound in honest)
    seen = {run["method"] for run, attack, bound in bounds if run["broken"] and bound > claimed[run["method"]][attack]}
    return (
        f"**Attacks.** {row['runs']} whole runs of each of {len(claimed)} methods with {row['canaries']} planted "
        f"images: {above} of {len(honest):,} bounds exceed the claim. With the noise left out on purpose, the same "
        f"attacks see it for {len(seen)} of {len(claimed)} methods ([docs/audit.md](docs/audit.md))."
    )


def _faults(row: Row) -> str:
    return (
        f"**Accidents.** {row['faults']:,} kills, full disks and damaged files, {row['came_too_late']:,} of which came "
        f"too late to hit: {len(row['violations'])} lost recorded spending or left a release that verifies but is "
        "wrong ([docs/threat-model.md](docs/threat-model.md))."
    )


def _kills(row: Row) -> str:
    fewest, most = min(row["processes"], key=int), max(row["processes"], key=int)
    return (
        f"**Several processes.** {row['kills']:,} kills of one of the {fewest} to {most} processes that share a run, "
        f"at any moment: {len(row['violations'])} lost spending, used noise twice, or left a release that claims less "
        "than was spent ([docs/many-machines.md](docs/many-machines.md))."
    )


def _hostile(row: Row) -> str:
    return f"**Hostile files.** {row['cases']:,} forged or broken ones: {len(row['findings'])} got through."
