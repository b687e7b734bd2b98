"""Turn ``benchmarks/results/*.json`` into ``docs/results.md`` and the results in the README, published figures beside.

``python benchmarks/results_page.py`` writes both; with ``--check`` it exits 1 when they do not say what the files say.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from understudy.privacy import accounting
from understudy.privacy.certificate import parse_certificate

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PUBLISHED, PAGE = ROOT / "benchmarks/results", ROOT / "benchmarks/published.json", ROOT / "docs/results.md"
README, START, END = ROOT / "README.md", "<!-- results:start -->", "<!-- results:end -->"
Row = dict[str, Any]

HEAD = """# Results

<!-- Written by `python benchmarks/results_page.py` from benchmarks/results; change the files, not this page. -->

FID compares 60,000 generated images with the 10,000 test images (Inception network of 2015, weights rounded to half
precision, products in TF32). The check of this FID on real data (training against test images of MNIST should score
1.02, `benchmarks/fid_check.py`) has not been run to its end yet, so read FID figures as provisional. CNN: two
convolutions, trained on generated images only, scored on the real test images. The data sets are public, so these
figures may be published. Hyper-parameters were chosen on these same public data sets.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    results = read_results()
    wanted = {PAGE: page(results), README: readme(results)}
    if parser.parse_args().check:
        stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text("utf-8") != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python benchmarks/results_page.py")
        return 1 if stale else 0
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def read_results() -> dict[str, Row]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def page(results: dict[str, Row]) -> str:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    quality = {stem: results[stem] for stem in quality_rows(results)}
    speed = {stem: row for stem, row in results.items() if "rows" in row}
    parts = [HEAD]
    for dataset in sorted({row["dataset"] for row in quality.values()}, reverse=True):
        parts += [f"## {dataset}\n", quality_table(dataset, quality, published["rows"]), published["note"] + "\n"]
    if speed:
        parts.append("## Speed\n\nEach table is one run on one machine; a ratio above 1 means ours is better.\n")
        parts += [speed_table(row) for row in speed.values()]
    return "\n".join(parts)


def quality_rows(results: dict[str, Row]) -> list[str]:
    """The results that carry a certificate."""
    return [stem for stem, row in results.items() if "certificate" in row]


def readme(results: dict[str, Row]) -> str:
    """The README with our rows and the published ones of the same methods between its two marks."""
    text = README.read_text(encoding="utf-8")
    before, after = text[: text.index(START) + len(START)], text[text.index(END) :]
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))["rows"]
    lines = [
        "## Results",
        "",
        "| data | method | epsilon | FID | CNN accuracy | published, same method: FID / accuracy |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for stem in quality_rows(results):
        row = results[stem]
        beside = rival(row, published)
        own = cells(row["method"], verified_epsilon(stem, row), row["fid"], row["cnn_accuracy"], beside)
        lines.append(f"| {row['dataset']} {own}")
    lines += ["", "FID figures are provisional until the check on real data has been run (docs/results.md)."]
    lines += ["", "Commands, commits, machines and the speed of the critic bank: [docs/results.md](docs/results.md)."]
    lines += ["", *(f"![Samples of {stem}](benchmarks/results/{stem}.png)" for stem in quality_rows(results)[:1])]
    return before + "\n" + "\n".join(lines) + "\n" + after


def rival(row: Row, published: list[Row]) -> str:
    """The published figures of the same method on the same data at the same rounded epsilon."""
    for other in published:
        same = other["method"].lower().startswith(row["method"]) and other["dataset"] == row["dataset"]
        if same and other["epsilon"] == round(row["epsilon"]):
            return f"{other['fid']} / {100 * other['cnn_accuracy']:.1f} %"
    return "-"


def quality_table(dataset: str, quality: dict[str, Row], published: list[Row]) -> str:
    lines = ["| method | epsilon | FID | CNN accuracy | where it comes from |", "| --- | --- | --- | --- | --- |"]
    for stem, row in quality.items():
        if row["dataset"] == dataset:
            origin = f"`{row['command']}`, commit {row['commit'][:7]}, {row['device']}, {row['train_seconds']:.0f} s"
            name = f"**{row['method']}** ([samples](../benchmarks/results/{stem}.png))"
            lines.append(cells(name, verified_epsilon(stem, row), row["fid"], row["cnn_accuracy"], origin))
    for row in published:
        if row["dataset"] == dataset:
            epsilon = "-" if row["epsilon"] is None else f"{row['epsilon']:g}"
            lines.append(cells(row["method"], epsilon, row["fid"], row["cnn_accuracy"], row["source"]))
    return "\n".join(lines) + "\n"


def verified_epsilon(stem: str, row: Row) -> str:
    """The claim of the row's certificate, after both numerical accountants have confirmed it from the events."""
    certificate = parse_certificate(row["certificate"])
    claim = certificate.headline
    for accountant in ("pld", "fourier"):
        found = accounting.epsilon(certificate.events, claim.accounted_delta, accountant)
        if found > claim.epsilon:
            raise SystemExit(f"{stem}: {accountant} gives epsilon {found}, above the claimed {claim.epsilon}")
    return f"{claim.epsilon:g}, verified"


def cells(method: str, epsilon: str, fid: float | None, accuracy: float | None, origin: str) -> str:
    shown_fid = "not measured" if fid is None else f"{fid:.1f}"
    shown_accuracy = "not measured" if accuracy is None else f"{100 * accuracy:.1f} %"
    return f"| {method} | {epsilon} | {shown_fid} | {shown_accuracy} | {origin} |"


def speed_table(result: Row) -> str:
    lines = [
        f"`{result['command']}`, commit {result['commit']}, {result['device']}\n",
        "| what | unit | ours | rival | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        numbers = ["" if row[key] is None else f"{row[key]:,.1f}" for key in ("ours", "rival", "ratio")]
        lines.append(f"| {row['what']} | {row['unit']} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
