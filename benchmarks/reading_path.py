"""How many of our files a reader must open to follow a command, and how often the way changes rooms.

    python benchmarks/reading_path.py                      # `train dpgan` on the digits, and `verify` of it
    python benchmarks/reading_path.py --most 55,30         # exit code 1 if one of them touches more files
    python benchmarks/reading_path.py --source OTHER/src   # of another checkout

A file is touched if one of its functions runs; what runs only because a module is imported does not count. Files are
listed in the order in which they are first touched. Writes ``benchmarks/results/reading-path.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from record import command_line, current_commit


class Way:
    """The files of one package in the order in which their functions are first called."""

    def __init__(self, source: Path) -> None:
        self._root = f"{source.resolve() / 'understudy'}{os.sep}"
        self.files: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """What ``sys.setprofile`` calls."""
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(self._root):
            return
        file = name[len(self._root) :]
        if file not in self.files and not self._importing(frame):
            self.files.append(file)

    def _importing(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(self._root):
                return True
            frame = frame.f_back
        return False

    def changes_of_room(self) -> int:
        """How often the next file lies in another room than the one before."""
        rooms = [str(Path(file).parent) for file in self.files]
        return sum(before != after for before, after in pairwise(rooms))


def follow(arguments: list[str], source: Path) -> dict[str, Any]:
    """Run a command in this process and record the way it takes."""
    from understudy.cli.main import run

    path = Way(source)
    sys.setprofile(path)
    try:
        run(arguments)
    finally:
        sys.setprofile(None)
    return {"files": len(path.files), "changes_of_room": path.changes_of_room(), "touched": path.files}


def main() -> int:
    options = parse()
    sys.path.insert(0, str(options.source))
    with tempfile.TemporaryDirectory(prefix="understudy-path-") as folder:
        os.environ["XDG_STATE_HOME"] = folder
        settings = ["--data", "digits", "--epsilon", "10", "--delta", "1e-5", "--set", "privacy.steps=4"]
        rows = {
            "train dpgan": follow(["train", "dpgan", *settings, "--out", f"{folder}/run"], options.source),
            "verify": follow(["verify", f"{folder}/run"], options.source),
        }
    for what, row in rows.items():
        print(f"{what}: {row['files']} files, {row['changes_of_room']} changes of room")
        print("   " + " ".join(row["touched"]))
    if options.json:
        body = {"command": command_line(("--json", "--commit")), "commit": options.commit or current_commit(), **rows}
        options.json.write_text(json.dumps(body, indent=1) + "\n")
    most = [int(number) for number in options.most.split(",")] if options.most else [sys.maxsize] * 2
    return int(any(row["files"] > limit for row, limit in zip(rows.values(), most, strict=True)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parent
    parser.add_argument("--source", type=Path, default=here.parent / "src", help="the folder that holds the package")
    parser.add_argument("--most", help="files that the two ways may touch, such as 55,30")
    parser.add_argument("--json", type=Path, default=here / "results" / "reading-path.json")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
