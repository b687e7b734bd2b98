"""Rows of the results, trained again: how far does a figure move from one run to the next, and where is its mean?

    python benchmarks/repeat.py dp-merf-mnist-eps10 dp-merf-mnist-eps10-teacher --times 3 --at-once 3

A row of ``headline.py`` is named like its file, which holds its command; each run is that command in a process of its
own. Writes ``benchmarks/results/repeats-<row>.json`` after every run. What is in that file already stays, so the same
words add to it, unless the row was made in another way since.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from record import at_once, write_json

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ("fid", "cnn_accuracy", "resnet_accuracy", "inception_score", "classifier_accuracy")
TOLD = ("epsilon", *FIGURES, "train_seconds", "device", "commit", "torch")


def main() -> int:
    options = parse()
    results = options.results.resolve()
    commands = {name: json.loads((results / f"{name}.json").read_text())["command"] for name in options.rows}
    os.chdir(ROOT)  # where the commands of all rows begin
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        own = ["--results", folder, *(["--commit", options.commit] if options.commit else [])]
        wanted = [shlex.split(command)[1:] + own for _ in range(options.times) for command in commands.values()]
        for found in at_once(wanted, options.at_once, math.inf, {}):
            name = next(
                name for name, command in commands.items() if shlex.split(command) == shlex.split(found["command"])
            )
            add(results / f"repeats-{name}.json", name, found)
            done += 1
    return int(done < len(wanted))


def add(path: Path, name: str, found: dict[str, Any]) -> None:
    """One run more in the file of this row."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    runs = kept["repeats"] if kept.get("command") == found["command"] else []
    figures = {key: found[key] for key in TOLD if found.get(key) is not None}
    write_json(path, {"row": name, "command": found["command"], "repeats": [*runs, figures]})
    print(name, {key: figures[key] for key in FIGURES if key in figures}, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", help="named like their files, without .json")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1, help="processes that share the machine")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
