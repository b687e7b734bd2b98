"""Keep a curve that ``understudy curve`` drew on public data: its figures and its picture, with commit and machine.

    understudy curve dp-merf --data digits --over epsilon=1,10 --delta 1e-5 --out runs/curve
    python benchmarks/keep_curve.py runs/curve dp-merf-digits-over-epsilon

Writes ``benchmarks/results/curve-<name>.json`` and ``.png``. The data must be known by name, and so be public.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from record import current_commit
from understudy.data.catalog import is_known
from understudy.errors import InputError, UnderstudyError
from understudy.report.sweeps import picture_files, read_curve


def main() -> None:
    options = parse()
    curve = read_curve(options.folder)
    private = [total.data for total in curve.totals if not is_known(total.data)]
    if private or not curve.totals:
        raise InputError(f"curve: {private or 'nothing'} is not known to be public, so its figures are not kept")
    options.results.mkdir(parents=True, exist_ok=True)
    picture = next(name for name in picture_files(curve) if name.endswith(".png"))
    target = options.results / f"curve-{options.name}.png"
    shutil.copy(options.folder / picture, target)
    points = [{**point, "stamp": None, "norms": []} for point in curve.as_dict()["points"]]
    content = {**curve.as_dict(), "points": points, "stamp": None, "picture": target.name}
    content |= {"commit": options.commit or current_commit()}
    target.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"kept {target.with_suffix('.json')}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what --out was")
    parser.add_argument("name", help="of the files")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except UnderstudyError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
