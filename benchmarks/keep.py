"""Keep what ``understudy curve`` or ``understudy compare`` found on public data, or rows of another noise each.

    understudy curve dp-merf --data digits --over epsilon=1,10 --delta 1e-5 --out runs/curve
    python benchmarks/keep.py runs/curve dp-merf-digits-over-epsilon
    understudy compare --data digits --epsilon 10 --methods dp-merf,dp-hp --out runs/all
    python benchmarks/keep.py runs/all digits-eps10 \
        --command "understudy compare --data digits --epsilon 10 --methods dp-merf,dp-hp"
    python benchmarks/federated.py quality --set privacy.noise_multiplier=3 --epsilon 1e9 --results runs/noise
    python benchmarks/keep.py runs/noise femnist

Writes ``benchmarks/results/curve-<name>.json`` and ``.png``, or ``comparison-<name>.json``, or, of a folder with rows
of other benchmarks, ``noise-<name>.json`` and their samples: one point for each row, with the noise that its
certificate names. Commit and machine stand beside all of them. The data must be known by name, and so be public.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from record import current_commit, device_name
from understudy.data.catalog import is_known
from understudy.devices import choose_device
from understudy.errors import InputError, UnderstudyError
from understudy.report.sweeps import is_sweep, picture_files, read_curve


def main() -> None:
    options = parse()
    options.results.mkdir(parents=True, exist_ok=True)
    if is_sweep(options.folder):
        target = options.results / f"curve-{options.name}.json"
        content = curve(options.folder, target)
    elif (options.folder / "compare.json").exists():
        target = options.results / f"comparison-{options.name}.json"
        content = comparison(options.folder, options.command)
    else:
        target = options.results / f"noise-{options.name}.json"
        content = rows_by_noise(options.folder, options.results)
        content["command"] = f"python benchmarks/keep.py {options.folder.name} {options.name}"
    content = {"commit": options.commit or current_commit()} | content
    target.write_text(json.dumps(content, indent=1) + "\n")
    print(f"kept {target}")


def curve(folder: Path, target: Path) -> dict[str, Any]:
    """The points of a curve, and its picture beside the target."""
    found = read_curve(folder)
    check_public(total.data for total in found.totals)
    picture = next(name for name in picture_files(found) if name.endswith(".png"))
    shutil.copy(folder / picture, target.with_suffix(".png"))
    points = [{**point, "stamp": None, "norms": []} for point in found.as_dict()["points"]]
    return {**found.as_dict(), "points": points, "stamp": None, "picture": target.with_suffix(".png").name}


def comparison(folder: Path, command: str | None) -> dict[str, Any]:
    """One point for each method of a comparison."""
    if command is None:
        raise InputError("command: a comparison does not hold its own; pass --command")
    found = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    check_public(total["data"] for total in found["totals"])
    points = [
        {
            "method": row["method"],
            "values": {"seconds": round(row["seconds"])},
            "epsilon": row["epsilon"],
            "figures": row["figures"],
        }
        for row in found["rows"]
    ]
    return {"points": points, "command": command, "device": device_name(choose_device())}


def rows_by_noise(folder: Path, results: Path) -> dict[str, Any]:
    """One point for each row in the folder, by method and noise; its samples are copied beside the target."""
    rows = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    check_public(row["dataset"] for row in rows.values())
    points = []
    for path, row in rows.items():
        shutil.copy(path.with_suffix(".png"), results)
        figures = {"fid": row["fid"], "is": row["inception_score"], "cnn": row["cnn_accuracy"]}
        points.append(
            {
                "method": row["method"],
                "values": {"noise multiplier": row["certificate"]["events"][0]["noise_multiplier"]},
                "epsilon": row["epsilon"],
                "figures": {name: figure for name, figure in figures.items() if figure is not None},
                "samples": path.with_suffix(".png").name,
                "command": row["command"],
                "certificate": row["certificate"],
            }
        )
    points.sort(key=lambda point: (point["method"], point["values"]["noise multiplier"]))
    last = next(reversed(rows.values()))
    return {"points": points, "commit": last["commit"], "device": last["device"]}


def check_public(names: Iterable[str]) -> None:
    """Refuse figures of data that nobody has declared public."""
    known = list(names)
    private = [name for name in known if not is_known(name)]
    if private or not known:
        raise InputError(f"data: {private or 'nothing'} is not known to be public, so its figures are not kept")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what --out was")
    parser.add_argument("name", help="of the files")
    parser.add_argument("--command", help="what was run, for a comparison")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except UnderstudyError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
