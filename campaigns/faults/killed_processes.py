"""Kills of the processes of one run: whichever dies and whenever, nothing spent is lost and no release claims less.

``python -m campaigns.faults.killed_processes [--kills 100] [--seed 0] [--json FILE]`` from the project's top. Runs of
three methods are started in two to four processes each. One of these, the leader or a follower, is killed (SIGKILL) at
a random moment: while they find each other, before the first step, during steps and checkpoints, or while the release
is written. The run is then carried on in another number of processes, over and over, and checked after every kill
(``trial.py``): what the leader handed out is written down by itself, so that what is on record can be held against it.
Runs that came to their end are verified. Exit code 1 where anything happened that must not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.helpers.cases import case_of
from tests.helpers.data import tiny_data
from tests.provenance import provenance

from .conftest import Launcher, Outcome
from .trial import Bench, Trial, Violation

STEPS = {"dpgan": 300, "dp-diffusion": 150, "gs-wgan": 150}
PROCESSES = (2, 3, 4)
_EARLY = 0.25  # share of the kills that come before anything was spent in this life of the run
_PATIENCE = 120.0  # seconds that others may take to notice


class SharedBench(Bench):
    """As ``Bench``, for runs of so many steps that there is time to kill in."""

    def prepare(self) -> float:
        """Make data and config, and train once in two processes; the seconds from the first value to the end."""
        self.home.mkdir(parents=True)
        data = tiny_data()
        np.savez(self.home / "data.npz", images=data.images[:, 0], labels=data.labels)
        config = case_of(self.method).config(runtime={"checkpoint_seconds": 0.05})
        rows = config["method"].get("queries_per_step", 1)
        planned = {"queries" if "queries" in config["privacy"] else "steps": STEPS[self.method] * rows}
        config["privacy"] |= {**planned, "noise_multiplier": 40.0}
        if "generator" in config["method"]:  # which hardly learns, so that it does not collapse
            config["method"]["generator"] = {"width": 16, "latent": 8, "learning_rate": 1e-9}
        (self.home / "config.json").write_text(json.dumps(config))
        whole = Life(Trial(self, self.finished), 2, "files")
        whole.wait_for_first_value()
        started = time.monotonic()
        whole.end_of(whole.leader)
        whole.trial.expect(whole.outcome(), 0)
        whole.trial.check()
        return time.monotonic() - started


class Life:
    """One start of a run, new or carried on, in several processes."""

    def __init__(self, trial: Trial, processes: int, files: str) -> None:
        self.trial, self.processes, self._files = trial, processes, files
        self.resumed = (trial.folder / "run.json").exists()
        command = trial.resume_command() if self.resumed else trial.bench.command(trial.folder)
        self.leader = trial.start([*command, "--processes", str(processes), "--yes"], files)

    @property
    def followers(self) -> list[int]:
        """The processes that the leader has started."""
        try:
            words = Path(f"/proc/{self.leader}/task/{self.leader}/children").read_text().split()
        except OSError:
            return []
        return [int(word) for word in words]

    def wait_for_first_value(self) -> None:
        """Until a mechanism handed something out in this life, or it is over."""
        used = self.trial.home / self._files / "used"
        ends = time.monotonic() + _PATIENCE
        while not (used.exists() and used.stat().st_size) and lives(self.leader):
            if time.monotonic() > ends:
                raise Violation("the run does not begin")
            time.sleep(0.01)

    def end_of(self, process: int) -> None:
        """Wait until a process has ended; one that goes on as if nothing had happened is ended, and told."""
        ends = time.monotonic() + _PATIENCE
        while lives(process):
            if time.monotonic() > ends:
                os.kill(process, signal.SIGKILL)
                raise Violation(f"process {process} lives on {_PATIENCE:.0f} seconds after another was killed")
            time.sleep(0.02)

    def outcome(self) -> Outcome:
        """How the leader ended; it has."""
        return self.trial.wait(self.leader, self._files)


def lives(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Tally:
    """What happened in all kills."""

    victims: Counter[str] = field(default_factory=Counter)
    methods: Counter[str] = field(default_factory=Counter)
    processes: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """How many processes were killed."""
        return sum(self.victims.values())

    def summary(self) -> dict[str, Any]:
        """As it is written down."""
        counted = {name: dict(sorted(getattr(self, name).items())) for name in ("victims", "methods", "processes")}
        told = {name: dict(sorted(getattr(self, name).items())) for name in ("moments", "endings")}
        return {"kills": self.kills, **counted, **told, "violations": self.violations}


class Campaign:
    """Kills of the runs of one method, each of which is carried on until it comes to its end."""

    def __init__(self, bench: SharedBench, chance: random.Random, tally: Tally) -> None:
        self.bench, self.chance, self.tally = bench, chance, tally
        self.seconds = bench.prepare()
        self._runs, self._lives, self._spent = 0, 0, 0
        self.trial = self._new()

    def _new(self) -> Trial:
        self._runs, self._spent = self._runs + 1, 0
        return Trial(self.bench, self.bench.home / f"run-{self._runs}")

    def _begin(self) -> Life:
        self._lives += 1
        return Life(self.trial, self.chance.choice(PROCESSES), f"life-{self._lives}")

    def kill(self) -> None:
        """One life of a run, and the death of one of its processes, unless it comes to its end before."""
        life = self._begin()
        try:
            self._let_live(life)
            followers = life.followers
            victim = life.leader if self.chance.random() < 0.5 or not followers else self.chance.choice(followers)
            if lives(life.leader):
                self._note(life, "leader" if victim == life.leader else "follower")
                os.kill(victim, signal.SIGKILL)
            for process in (life.leader, *followers):
                life.end_of(process)
            self._judge(life, victim)
        except (Violation, AssertionError) as error:
            self.tally.violations.append(f"{self.bench.method}, {life.processes} processes: {error}")
            self.trial = self._new()

    def _let_live(self, life: Life) -> None:
        """Wait for a moment: an early one, or one after the first value."""
        if self.chance.random() < _EARLY:
            self._sleep(life, self.chance.uniform(0, 6))
        else:
            life.wait_for_first_value()
            self._sleep(life, self.chance.uniform(0, 1.1 * self.seconds))

    @staticmethod
    def _sleep(life: Life, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while lives(life.leader) and time.monotonic() < ends:
            time.sleep(0.005)

    def _note(self, life: Life, victim: str) -> None:
        folder, used = self.trial.folder, self.trial.home / f"life-{self._lives}" / "used"
        moment = "during steps"
        if (folder / "release").exists():
            moment = "after the release"
        elif not (folder / "run.json").exists():
            moment = "before the run was on disk"
        elif not used.exists():
            moment = "before anything was spent in this life"
        for counter, name in ((self.tally.victims, victim), (self.tally.moments, moment)):
            counter[name] += 1
        self.tally.methods[self.bench.method] += 1
        self.tally.processes[str(life.processes)] += 1

    def _judge(self, life: Life, victim: int) -> None:
        """What must hold after a kill; and what comes next: the same run, or a new one where it came to its end."""
        outcome = life.outcome()
        self.trial.check()
        spent = self.trial.spent() or 0
        if spent < self._spent:
            raise Violation(f"{spent} executions on record after {self._spent}")
        self._spent = spent
        if outcome.code == 0:
            if not (self.trial.folder / "release").is_dir():
                raise Violation("the run finished without a release")
            self.tally.endings["the run had come to its end"] += 1
            self.trial = self._new()
        elif outcome.code == -signal.SIGKILL and victim == life.leader:
            self.tally.endings["the leader was gone, and all others with it"] += 1
        elif outcome.code in (2, 130) and "processes" in outcome.stderr.splitlines()[-1]:
            self.tally.endings["the leader said so in a sentence"] += 1
        else:
            raise Violation(f"exit code {outcome.code}: {outcome.stderr[-800:]}")

    def close(self) -> None:
        """The last run comes to its end, or is released as it stands; either way it is verified."""
        try:
            early = self.chance.random() < 0.5 and self.trial.checkpoints()
            if early:
                self.trial.expect(self.trial.run(["release", str(self.trial.folder)]), 0)
                self.trial.check()
            else:
                life = self._begin()
                self._sleep(life, 10 * self.seconds + _PATIENCE)
                life.end_of(life.leader)
                self.trial.expect(life.outcome(), 0)
                self.trial.check()
            self.tally.endings["released early and verified" if early else "carried on to the end and verified"] += 1
        except (Violation, AssertionError) as error:
            self.tally.violations.append(f"{self.bench.method}, at the end: {error}")


def main() -> int:
    """Run the campaign; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result there")
    options = parser.parse_args()
    started, home = time.monotonic(), Path(tempfile.mkdtemp(prefix="understudy-kills-"))
    tally, launcher = Tally(), Launcher()
    try:
        campaign(home, launcher, options.kills, random.Random(options.seed), tally)
    finally:
        launcher.close()
    result = {
        "what": "kills of the processes of one run",
        **provenance("campaigns.faults.killed_processes", sys.argv[1:]),
        "seconds": round(time.monotonic() - started, 1),
        **tally.summary(),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if not tally.violations:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if tally.violations or tally.kills < options.kills else 0


def campaign(home: Path, launcher: Launcher, kills: int, chance: random.Random, tally: Tally) -> None:
    """So many kills, dealt out to the methods in turn."""
    runs = [Campaign(SharedBench(launcher, home / method, method), chance, tally) for method in STEPS]
    attempts = 0
    while tally.kills < kills and attempts < 3 * kills:
        before = tally.kills
        runs[attempts % len(runs)].kill()
        attempts += 1
        if tally.kills > before and tally.kills % 5 == 0:
            print(f"{tally.kills} kills, {len(tally.violations)} violations", file=sys.stderr, flush=True)
    for each in runs:
        each.close()


if __name__ == "__main__":
    sys.exit(main())
