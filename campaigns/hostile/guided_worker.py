"""A process in which atheris explores one target: ``guided_worker TARGET COUNTS RUN FLAGS...``.

Everything of ours is imported under its instrumentation, so this module imports nothing of it before.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["understudy"]):
    from . import seeds
    from .judging import judge
    from .targets import TARGETS


def main() -> None:
    """Explore until atheris has made its number of runs; a finding is raised."""
    name, counts, run = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    seeds.use_run_folder(run)
    target, verdicts = TARGETS[name], {"accepted": 0, "refused": 0}

    def one(content: bytes) -> None:
        verdict, problem = judge(target, content)
        if problem:
            counts.write_text(json.dumps(verdicts))
            raise AssertionError(f"FINDING {problem} {content[:200]!r}")
        verdicts[verdict] += 1
        if sum(verdicts.values()) % 100 == 0:
            counts.write_text(json.dumps(verdicts))

    def mutate(content: bytes, longest: int, seed: int) -> bytes:
        """Our own mutations, which keep most of the structure, or those of atheris."""
        chance = random.Random(seed)
        if chance.random() < 0.6:
            try:
                return chance.choice(target.mutators)(content, chance)[:longest]
            except Exception:  # no JSON and no archive any more
                pass
        return atheris.Mutate(content, longest)

    atheris.Setup([sys.argv[0], *sys.argv[4:]], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
