"""Kills of the processes of one run: whichever dies and whenever, nothing spent is lost and no release claims less.

``python -m campaigns.faults.killed_processes [--kills 100] [--seed 0] [--json FILE]`` from the project's top. A run is
started in several processes, one of them is killed (SIGKILL) at a random moment, and the run is resumed in another
number of processes, over and over; at last it is finished and verified. Exit code 1 where anything happened that must
not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.provenance import provenance

from understudy.privacy.ledger import Ledger
from understudy.release.verify import verify

STEPS = 100_000  # more than all attempts together take
LONGEST = 4.0  # seconds after the first checkpoint
PLAN = (
    "--epsilon", "10", "--delta", "1e-5", "--device", "cpu", "--set", "privacy.embedding_share=0",
    "--set", "privacy.batch=20", "--set", f"privacy.steps={STEPS}", "--set", "privacy.noise_multiplier=40",
    "--set", "runtime.checkpoint_seconds=0.3",
)  # fmt: skip


def main() -> int:
    """Run the campaign; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="understudy-kills-"))
    try:
        found = campaign(home, options.kills, random.Random(options.seed))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(json.dumps(found))
    if options.json:
        options.json.write_text(json.dumps({**found, **provenance()}, indent=1) + "\n")
    return 1 if found["violations"] else 0


def campaign(home: Path, kills: int, chance: random.Random) -> dict[str, object]:
    """All kills of one run, one after the other."""
    out, spent, violations = home / "run", 0, list[str]()
    told = {"leader": 0, "follower": 0}
    for number in range(kills):
        processes = chance.choice((2, 3))
        running = start(out, processes, resume=(out / "run.json").exists())
        try:
            wait_until_busy(out, running)
            time.sleep(chance.uniform(0, LONGEST))
            victim = chance.choice([running.pid, *children_of(running.pid)])
        except BaseException:
            running.kill()  # the others end with it
            raise
        told["leader" if victim == running.pid else "follower"] += 1
        os.kill(victim, signal.SIGKILL)
        sentence = running.communicate(timeout=120)[1].strip().splitlines()[-1:]
        if victim != running.pid and (running.returncode != 130 or "processes of this run ended" not in sentence[0]):
            violations.append(f"kill {number}: exit code {running.returncode}, {sentence}")
        now = reserved(out)
        if not spent <= now <= STEPS:
            violations.append(f"kill {number}: {now} steps on record after {spent}")
        spent = now
        print(
            f"kill {number + 1}: {'the leader' if victim == running.pid else 'a follower'}, {spent} on record",
            flush=True,
        )
    early = subprocess.run(
        [sys.executable, "-m", "understudy", "release", str(out)], env=environment(out), capture_output=True, text=True
    )
    certificate = json.loads((out / "release" / "certificate.json").read_text()) if early.returncode == 0 else {}
    if not certificate or not verify(out / "release").passed or certificate["events"][0]["executed"] < spent:
        violations.append(f"the release claims less than was spent, or there is none: {early.stderr}")
    return {"kills": kills, "of": told, "steps_on_record": spent, "violations": violations}


def environment(out: Path) -> dict[str, str]:
    """One thread each, and a state folder of their own."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(out.parent / "state")}


def start(out: Path, processes: int, resume: bool) -> subprocess.Popen[str]:
    """The run, begun or continued."""
    settings = ("--resume",) if resume else PLAN
    command = [sys.executable, "-m", "understudy", "train", "dpgan", "--data", "digits", "--processes", str(processes)]
    words = [*command, "--yes", "--out", str(out), *settings]
    return subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment(out))


def wait_until_busy(out: Path, running: subprocess.Popen[str]) -> None:
    """Until the run has written a checkpoint that was not there before."""
    before = {path.name for path in (out / "private").glob("checkpoint-*")} if out.exists() else set()
    ends = time.monotonic() + 300
    while running.poll() is None and time.monotonic() < ends:
        if out.exists() and {path.name for path in (out / "private").glob("checkpoint-*")} - before:
            return
        time.sleep(0.05)
    raise RuntimeError(f"the run did not begin: {running.communicate()[1]}")


def children_of(process: int) -> list[int]:
    """The processes that it started."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def reserved(out: Path) -> int:
    """Steps on record; a ledger that cannot be read ends the campaign."""
    return sum(event.executed or 0 for event in Ledger.open(out / "ledger.jsonl").events())


if __name__ == "__main__":
    sys.exit(main())
