"""The fuzzing campaign: 100,000 hostile files and arguments, none of which may crash, hang or show a traceback.

``make fuzz``, or ``python -m campaigns.hostile.fuzz [--targets ...] [--share 0.01] [--json FILE]`` from the top of the
project. Cases come from an own mutation fuzzer that knows JSON, archives and array headers, and, where atheris is
installed, from its coverage-guided one. A finding is kept in ``--keep`` (a folder) and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.provenance import provenance

from . import guided, seeds
from .targets import TARGETS, Target, digest

CORPUS = Path(__file__).with_name("corpus")
_SHOWN = 5


@dataclass
class Tally:
    """What became of the cases of one target."""

    target: str
    engine: str
    verdicts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """As plain data."""
        counts = {name: self.verdicts[name] for name in ("accepted", "refused", "finding")}
        total = sum(self.verdicts.values())
        return {
            "target": self.target,
            "engine": self.engine,
            "cases": total,
            **counts,
            "seconds": round(self.seconds, 1),
        }


def main() -> int:
    """Run the campaign; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--share", type=float, default=1.0, help="of the cases of a full campaign")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--keep", type=Path, help="write the cases that were findings there")
    parser.add_argument("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    seeds.run_folder()  # one for all
    started = time.monotonic()
    jobs = [(TARGETS[name], int(TARGETS[name].cases * options.share)) for name in options.targets.split(",")]
    with ThreadPoolExecutor(options.workers) as workers:
        tallies = list(workers.map(lambda job: in_child(*job, options.keep), jobs))
        tallies += workers.map(lambda target: guided.explore(target, options.share), guided.chosen(options.targets))
    summary = _summary(tallies, time.monotonic() - started)
    print(_table(summary))
    if options.json is not None:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if not summary["findings"] else 1


def in_child(target: Target, cases: int, keep: Path | None) -> Tally:
    """Try the cases in processes of their own: one that is killed by a case is a finding, and the next goes on."""
    tally, begin, started = Tally(target.name, "mutations"), 0, time.monotonic()
    while begin < cases:
        command = [sys.executable, "-m", "campaigns.hostile.worker", target.name, str(begin), str(cases)]
        current = begin
        with subprocess.Popen([*command, str(seeds.run_folder())], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                report = json.loads(line)
                current = report["case"]
                if "verdict" in report:
                    _count(tally, target, report, keep)
        if process.returncode:
            problem = f"process died ({process.returncode})"
            _count(tally, target, {"case": current, "verdict": "finding", "problem": problem}, keep)
        begin = current + 1
    tally.seconds = time.monotonic() - started
    return tally


def _count(tally: Tally, target: Target, report: dict[str, Any], keep: Path | None) -> None:
    tally.verdicts[report["verdict"]] += 1
    if report["problem"]:
        tally.findings.append(f"case {report['case']}: {report['problem']}")
        if keep is not None:
            content = target.case(report["case"])
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{target.name}--{digest(content)}").write_bytes(content)


def _summary(tallies: list[Tally], seconds: float) -> dict[str, Any]:
    rows = [tally.row() for tally in tallies]
    return {
        "what": "fuzzing campaign",
        **provenance("campaigns.hostile.fuzz", sys.argv[1:]),
        "seconds": round(seconds, 1),
        "engines": sorted({row["engine"] for row in rows}),
        "cases": sum(row["cases"] for row in rows),
        "findings": [f"{tally.target}: {finding}" for tally in tallies for finding in tally.findings],
        "rows": rows,
    }


def _table(summary: dict[str, Any]) -> str:
    lines = [f"{'target':20} {'engine':22} {'cases':>7} {'accepted':>8} {'refused':>8} {'findings':>8} {'seconds':>8}"]
    for row in summary["rows"]:
        numbers = f"{row['cases']:7} {row['accepted']:8} {row['refused']:8} {row['finding']:8} {row['seconds']:8}"
        lines.append(f"{row['target']:20} {row['engine']:22} {numbers}")
    lines.append(f"{summary['cases']} cases in {summary['seconds']} s, {len(summary['findings'])} findings")
    shown: Counter[str] = Counter()
    for finding in summary["findings"]:
        name = finding.split(":")[0]
        shown[name] += 1
        if shown[name] <= _SHOWN:
            lines.append(f"  {finding}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
