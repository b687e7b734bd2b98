"""The faults campaign: hundreds of injected faults, and none may lose spending, reuse noise or leave a wrong release.

``make test-faults``, or ``python -m campaigns.faults.campaign [--methods ...] [--json FILE]`` from the project's top.
Exit code 1 where anything happened that must not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.provenance import provenance

from . import mounting
from .catalogue import FINISHED, INTERRUPTED, Fault, faults_of
from .conftest import Launcher
from .trial import Bench, Trial

METHODS = ("dp-merf", "gs-wgan", "dpgan")
AT_LEAST = 200


@dataclass(frozen=True)
class Result:
    """What a fault led to; ``happened`` is None where it came too late to strike."""

    fault: Fault
    happened: str | None
    violation: str | None = None


def main() -> int:
    """Run the campaign; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--every", type=int, default=1, help="only every so many faults, for a quick look")
    parser.add_argument("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    mounts = mounting.enter_own_namespace()
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="understudy-faults-"))
    try:
        results = _campaign(home, options, mounts)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    summary = _summary(results, mounts, time.monotonic() - started)
    print(_table(summary))
    if options.json is not None:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    enough = summary["faults"] >= AT_LEAST or options.every > 1 or options.methods != ",".join(METHODS)
    return 0 if enough and not summary["violations"] else 1


def _campaign(home: Path, options: argparse.Namespace, mounts: bool) -> list[Result]:
    """Every worker has a launcher of its own; faults are handed out as workers become free."""
    launchers: SimpleQueue[Launcher] = SimpleQueue()
    all_launchers = [Launcher() for _ in range(options.workers)]
    for launcher in all_launchers:
        launchers.put(launcher)
    faults: list[Fault] = []
    for method in options.methods.split(","):
        bench = Bench(all_launchers[0], home / method, method)
        faults += list(faults_of(method, bench.prepare(), mounts))[:: options.every]

    def attempt(numbered: tuple[int, Fault]) -> Result:
        number, fault = numbered
        launcher = launchers.get()
        try:
            return _try(fault, Bench(launcher, home / fault.method, fault.method), home / f"trial-{number}")
        finally:
            launchers.put(launcher)

    with ThreadPoolExecutor(options.workers) as workers:
        results = []
        for number, result in enumerate(workers.map(attempt, enumerate(faults)), start=1):
            results.append(result)
            if result.violation:
                print(f"VIOLATION {result.fault.kind} ({result.fault.phase}): {result.violation}", file=sys.stderr)
            elif number % 50 == 0:
                print(f"{number} of {len(faults)} faults", file=sys.stderr, flush=True)
    for launcher in all_launchers:
        launcher.close()
    return results


def _try(fault: Fault, bench: Bench, home: Path) -> Result:
    source = {INTERRUPTED: bench.interrupted, FINISHED: bench.finished}.get(fault.start)
    try:
        result = Result(fault, fault.action(Trial(bench, home, copy_of=source)))
    except Exception as error:  # a violation, or a fault that broke what checks it
        return Result(fault, None, f"{type(error).__name__}: {error} (kept in {home})")
    shutil.rmtree(home, ignore_errors=True)
    return result


def _summary(results: list[Result], mounts: bool, seconds: float) -> dict[str, Any]:
    rows = Counter((r.fault.kind, r.fault.phase, r.happened) for r in results if r.happened)
    return {
        "what": "faults campaign",
        **provenance("campaigns.faults.campaign", sys.argv[1:]),
        "seconds": round(seconds, 1),
        "methods": sorted({result.fault.method for result in results}),
        "real_disks": "tmpfs and read-only mounts" if mounts else "not permitted here: injected errors only",
        "faults": sum(rows.values()),
        "came_too_late": sum(result.happened is None and result.violation is None for result in results),
        "violations": [
            f"{r.fault.kind}, {r.fault.phase}, {r.fault.method}: {r.violation}" for r in results if r.violation
        ],
        "rows": [
            {"fault": kind, "phase": phase, "count": count, "happened": happened}
            for (kind, phase, happened), count in sorted(rows.items())
        ],
    }


def _table(summary: dict[str, Any]) -> str:
    lines = [f"{'fault':36} {'phase':7} {'count':>5}  what happened"]
    lines += [f"{row['fault']:36} {row['phase']:7} {row['count']:5}  {row['happened']}" for row in summary["rows"]]
    lines.append(
        f"{summary['faults']} faults over {', '.join(summary['methods'])} in {summary['seconds']} s, "
        f"{len(summary['violations'])} violations; {summary['came_too_late']} came too late to strike"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
