"""Plants every bug, one at a time, in a copy of the package and runs the test or the audit that must catch it.

    python -m campaigns.mutations.run [--only TEXT] [--jobs 2] [--write docs/mutations.md]

First all catchers must pass on an unchanged copy. Then a bug is caught if its catcher fails, as a test and not by an
error on the way to it. Exit code 1 if a bug escapes, or if a patch does not apply any more.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .bugs import BUGS
from .planting import SOURCE, Bug, PatchDoesNotApply, plant

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1  # exit codes of pytest
_NO_VERDICT = 70
LIMIT = 1800  # seconds for one trial
HEAVY = ("dp_accounting.pld", "matplotlib", "numpy", "pydantic", "scipy.stats", "torch")  # imported once for all


@dataclass(frozen=True)
class Outcome:
    """What became of a bug."""

    bug: Bug
    caught: bool
    how: str


def start(catchers: Sequence[str], package: Path, said: Path) -> int:
    """Run catchers with the package from ``package`` in a process of its own; returns its id.

    It is a copy of this process, which has imported what takes long; the package itself it imports anew.
    """
    process = os.fork()
    if process:
        return process
    code = _NO_VERDICT
    try:
        signal.alarm(LIMIT)
        code = _run_pytest(catchers, package, said)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # nothing of the parent is cleaned up by its copy


def _run_pytest(catchers: Sequence[str], package: Path, said: Path) -> int:
    descriptor = os.open(said, os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(package)
    sys.path.insert(0, str(package))
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *catchers]))


def wait_for(process: int) -> int:
    """The exit code of a process, negative where a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def try_bugs(bugs: Sequence[Bug], jobs: int, folder: Path) -> Iterator[Outcome]:
    """Plant bugs and see whether their catchers fail, some at a time, in order."""
    waiting: list[tuple[Bug, int | str, Path]] = []
    for number, bug in enumerate(bugs):
        place = folder / f"bug-{number}"
        try:
            package = plant(bug, place)
        except PatchDoesNotApply as error:
            waiting.append((bug, f"the patch does not apply: {error}", place))
            continue
        waiting.append((bug, start([bug.catcher], package, place / "said"), place))
        if len(waiting) >= jobs:
            yield _judged(*waiting.pop(0))
    for each in waiting:
        yield _judged(*each)


def _judged(bug: Bug, process: int | str, place: Path) -> Outcome:
    if isinstance(process, str):
        return Outcome(bug, False, process)
    code = wait_for(process)
    if code == FAILED:
        return Outcome(bug, True, "caught")
    said = "\n".join((place / "said").read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    return Outcome(bug, False, "escaped" if code == PASSED else f"no verdict (exit code {code}):\n{said}")


def trouble_without_bugs(bugs: Sequence[Bug], folder: Path) -> str:
    """What catchers say that do not pass on the package as it is; their failures would prove nothing."""
    package = plant(Bug("none", (), ""), folder / "none")
    code = wait_for(start(sorted({bug.catcher for bug in bugs}), package, folder / "said"))
    said = (folder / "said").read_text(encoding="utf-8", errors="replace")
    return "" if code == PASSED else f"{said}\n(exit code {code})"


def table(outcomes: Sequence[Outcome]) -> str:
    """The table bug, catcher, outcome as Markdown."""
    rows = ["| bug | caught by | outcome |", "| --- | --- | --- |"]
    for outcome in outcomes:
        kind = "audit: " if outcome.bug.by_audit else ""
        where = outcome.bug.catcher.removeprefix("tests/").replace("|", "\\|")
        rows.append(f"| {outcome.bug.name} | {kind}`{where}` | {outcome.how.splitlines()[0]} |")
    return "\n".join(rows)


def page(outcomes: Sequence[Outcome]) -> str:
    """The page that documents a run."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    caught = sum(outcome.caught for outcome in outcomes)
    return (
        "# Bugs on purpose\n\n"
        "Each of these bugs was planted in a copy of the package, alone, and the named test or audit was run on it.\n"
        "On the package as it is all of them pass. Written by `make test-mutations`; see `campaigns/mutations/`.\n\n"
        f"{caught} of {len(outcomes)} caught, {datetime.now(UTC):%Y-%m-%d}, commit "
        f"{os.environ.get('UNDERSTUDY_COMMIT') or commit.stdout.strip() or 'unknown'}.\n\n{table(outcomes)}\n"
    )


def main() -> int:
    """Try all bugs (or some) and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="bugs whose name holds this text")
    parser.add_argument("--jobs", type=int, default=2, help="bugs tried side by side")
    parser.add_argument("--write", type=Path, help="write the page to this file")
    chosen = parser.parse_args()
    bugs = [bug for bug in BUGS if chosen.only in bug.name]
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in HEAVY:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="understudy-bugs-") as name:
        trouble = trouble_without_bugs(bugs, Path(name))
        if trouble:
            print(f"catchers fail without any bug (package in {SOURCE}):\n{trouble}")
            return 1
        outcomes = []
        for outcome in try_bugs(bugs, chosen.jobs, Path(name)):
            print(f"{outcome.how.splitlines()[0]:>8}  {outcome.bug.name}", flush=True)
            outcomes.append(outcome)
    print(table(outcomes))
    for outcome in outcomes:
        if not outcome.caught:
            print(f"\n{outcome.bug.name}: {outcome.how}")
    if chosen.write is not None:
        chosen.write.write_text(page(outcomes), encoding="utf-8")
    return 0 if all(outcome.caught for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
