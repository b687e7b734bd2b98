"""How fast a folder of pictures is loaded, beside Pillow alone on the same files, and how much memory it takes.

    python benchmarks/image_loading.py

Writes ``benchmarks/results/speed-image-loading-cpu.json`` (or ``--json``). Pillow alone is the plain loop that anybody
would write: open, decode, keep the pixels as an array. Ours checks, converts and stacks, behind a progress bar. Both
take turns, each in a process of its own, and the median of five counts. Memory is the peak of such a process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from record import write_speeds

REPEATS = 5
IMAGES = 20_000
MANY = 100_000  # of 32x32, for memory

_MEASURE = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from PIL import Image
from understudy.data.domain import SourceOptions
from understudy.data.sources import load

kind, folder = sys.argv[1:3]
size = tuple(map(int, sys.argv[3].split("x"))) if len(sys.argv) > 3 else None

def pillow():
    arrays = []
    for path in sorted(Path(folder).iterdir()):
        with Image.open(path) as picture:
            arrays.append(np.asarray(picture.resize(size, Image.Resampling.BILINEAR) if size else picture))
    return arrays

def ours():
    return load(folder, records=20_000, options=SourceOptions(size=size))

started = time.perf_counter()
found = {"pillow": pillow, "ours": ours}[kind]()
seconds = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"images": len(found), "seconds": seconds, "peak_bytes": peak}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        small = write_folder(Path(place) / "small", IMAGES, (32, 32))
        cells = write_folder(Path(place) / "cells", IMAGES, (140, 130))
        rows = [
            speed("20,000 JPEGs of 32x32", small),
            speed("20,000 JPEGs of 140x130, brought to 32x32", cells, "32x32"),
            memory(write_folder(Path(place) / "many", MANY, (32, 32))),
        ]
    write_speeds("image-loading", rows, torch.device("cpu"), options)


def write_folder(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Colour pictures with some structure, each another."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize(size[::-1], Image.Resampling.BICUBIC).save(folder / f"{number:06d}.jpg", quality=90)
    return folder


def speed(what: str, folder: Path, size: str | None = None) -> dict[str, Any]:
    """Images a second, ours and Pillow's in turns."""
    found: dict[str, list[float]] = {"pillow": [], "ours": []}
    for _ in range(REPEATS):
        for kind, times in found.items():
            result = measure(kind, folder, size)
            times.append(result["images"] / result["seconds"])
    ours, rival = (statistics.median(found[kind]) for kind in ("ours", "pillow"))
    print(f"{what:45s} {ours:7.0f} images/s, Pillow alone {rival:7.0f}")
    return {
        "what": f"{what} (rival: Pillow alone)",
        "unit": "images/s",
        "ours": ours,
        "rival": rival,
        "ratio": ours / rival,
    }


def memory(folder: Path) -> dict[str, Any]:
    """The peak of a process that loads many pictures, beside the pixels themselves."""
    ours, rival = measure("ours", folder)["peak_bytes"] / 1e6, MANY * 3 * 32 * 32 / 1e6
    print(f"{MANY:,} JPEGs of 32x32 in memory: {ours:.0f} MB at most, the pixels alone {rival:.0f}")
    what = "100,000 JPEGs of 32x32, peak memory (rival: the pixels alone)"
    return {"what": what, "unit": "MB", "ours": ours, "rival": rival, "ratio": rival / ours}


def measure(kind: str, folder: Path, size: str | None = None) -> dict[str, Any]:
    command = [sys.executable, "-c", _MEASURE, kind, str(folder), *([size] if size else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main()
