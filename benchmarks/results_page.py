"""Turn ``benchmarks/results/*.json`` into ``docs/results.md``, with the published figures beside ours.

python benchmarks/results_page.py           # writes docs/results.md
python benchmarks/results_page.py --check   # exits 1 when the page does not say what the files say
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
Row = dict[str, Any]

HEAD = """# Results

<!-- Written by `python benchmarks/results_page.py` from benchmarks/results; change the files, not this page. -->

FID compares 60,000 generated images with the 10,000 test images (Inception network of 2015, weights rounded to half
precision). CNN: two convolutions, trained on generated images only, scored on the real test images. The data sets are
public, so these figures may be published. Hyper-parameters were chosen on these same public data sets.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = page(read_results())
    if parser.parse_args().check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        print(
            "docs/results.md is up to date"
            if same
            else "docs/results.md is out of date: run benchmarks/results_page.py"
        )
        return 0 if same else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def read_results() -> dict[str, Row]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def page(results: dict[str, Row]) -> str:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    quality = {stem: row for stem, row in results.items() if "certificate" in row}
    speed = {stem: row for stem, row in results.items() if "rows" in row}
    parts = [HEAD]
    for dataset in sorted({row["dataset"] for row in quality.values()}, reverse=True):
        parts += [f"## {dataset}\n", quality_table(dataset, quality, published["rows"]), published["note"] + "\n"]
    if speed:
        parts.append("## Speed\n\nEach table is one run on one machine; a ratio above 1 means ours is better.\n")
        parts += [speed_table(row) for row in speed.values()]
    return "\n".join(parts)


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
