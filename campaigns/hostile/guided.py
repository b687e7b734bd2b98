"""Coverage-guided cases from atheris, where it is installed: a process for each target, from the same seeds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from . import seeds
from .targets import TARGETS, Target

if TYPE_CHECKING:
    from .fuzz import Tally

# Readers written in Python, where coverage says something; Pillow and safetensors are compiled.
_CASES = {
    "certificate": 6_000,
    "release-config": 4_000,
    "method-config": 4_000,
    "npz": 4_000,
    "idx": 3_000,
    "ledger": 3_000,
    "federated-answer": 3_000,
    "federated-contract": 3_000,
}


def chosen(names: str) -> list[Target]:
    """The targets to explore; none where atheris is missing."""
    if importlib.util.find_spec("atheris") is None:
        return []
    return [TARGETS[name] for name in _CASES if name in names.split(",")]


def explore(target: Target, share: float) -> Tally:
    """Let atheris look for cases; the first finding ends it."""
    from .fuzz import Tally

    tally, started = Tally(target.name, "atheris"), time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        corpus, counts = Path(home) / "corpus", Path(home) / "counts.json"
        corpus.mkdir()
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        runs = max(1, int(_CASES[target.name] * share))
        command = [sys.executable, "-m", "campaigns.hostile.guided_worker", target.name, str(counts)]
        flags = [f"-runs={runs}", "-seed=1", "-max_len=20000", f"-artifact_prefix={home}/", "-timeout=60", str(corpus)]
        ended = subprocess.run([*command, str(seeds.run_folder()), *flags], capture_output=True, text=True)
        tally.verdicts.update(json.loads(counts.read_text()) if counts.exists() else {})
    if ended.returncode != 0:
        said = ended.stdout + ended.stderr
        problem = next((line for line in said.splitlines() if "FINDING" in line), said[-400:])
        tally.verdicts["finding"] += 1
        tally.findings.append(f"atheris: {problem}")
    tally.seconds = time.monotonic() - started
    return tally
