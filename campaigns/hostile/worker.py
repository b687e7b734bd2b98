"""A process that tries the cases of one target and reports each on stdout: ``worker TARGET BEGIN END RUN``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from . import seeds
from .judging import judge
from .targets import TARGETS


def main() -> None:
    """Try the cases from BEGIN to END - 1; every case is announced first, so that a death can be told from an end."""
    name, begin, end, run = sys.argv[1:]
    seeds.use_run_folder(Path(run))
    for number in range(int(begin), int(end)):
        print(json.dumps({"case": number}), flush=True)
        verdict, problem = judge(TARGETS[name], TARGETS[name].case(number))
        print(json.dumps({"case": number, "verdict": verdict, "problem": problem}), flush=True)


if __name__ == "__main__":
    main()
