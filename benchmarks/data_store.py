"""Training from a data store of a million colour images: how soon the first step comes, and how much memory it takes.

    python benchmarks/data_store.py [--images 1000000] [--folder FOLDER]

Makes up a store in FOLDER (3 GB, removed at the end) and a small one of the same declared size, trains a few steps from
both in processes of their own with one thread, and writes ``benchmarks/results/data-store.json`` (or ``--json``). Time
is counted from the last import; memory is the peak of the process, less that on the small store, which is the model's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

SIDE, CLASSES, PEOPLE = 32, 10, 100_000
AT_ONCE = 5000
FEW = {"images_per_person": 2}  # a step is not what is measured
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dpgan": ("dpgan", {"privacy": {"embedding_share": 0, "batch": 32, "steps": 3, **FEW}, "method": {"width": 32}}),
    "dp-diffusion": (
        "dp-diffusion",
        {
            "privacy": {"start": "none", "batch": 8, "steps": 3, **FEW},
            "method": {"draws": 2, "widths": [16, 32], "blocks": 1},
        },
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "data-store.json")
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(train(*options.child)))
        return
    measure(options)


def measure(options: argparse.Namespace) -> None:
    """Both stores, and every case on both."""
    from record import command_line, current_commit

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        started = time.perf_counter()
        make_store(large, options.images, options.images)
        writing = time.perf_counter() - started
        make_store(small, 1000, options.images)
        rows = []
        for what in CASES:
            found, beside = child(what, large), child(what, small)
            rows.append({"what": what, **found, "memory_gb_beyond_the_model": found["peak_gb"] - beside["peak_gb"]})
            print(rows[-1])
        body = {
            "device": "1 CPU thread",
            "command": command_line(("--json", "--commit", "--folder")),
            "commit": options.commit or current_commit(),
            "images": options.images,
            "store_gb": sum(path.stat().st_size for path in large.iterdir()) / 1e9,
            "seconds_to_write": round(writing, 1),
            "rows": rows,
        }
    options.json.write_text(json.dumps(body, indent=1) + "\n")


def make_store(path: Path, images: int, nominal: int) -> None:
    """Random images with classes and people."""
    from understudy.data.arrays import from_arrays
    from understudy.data.domain import source_options
    from understudy.data.store import new_store

    random = np.random.default_rng(0)
    with new_store(path, "made up") as writer:
        for _ in range(0, images, AT_ONCE):
            for image in random.integers(0, 256, (min(AT_ONCE, images), 3, SIDE, SIDE), dtype=np.uint8):
                writer.put("made up", image)
        labels, people = random.integers(0, CLASSES, images), random.integers(0, images // 10, images)
        options = source_options(nominal_people=PEOPLE, name="made-up")
        writer.finish(
            from_arrays(writer.images, labels, people=people, records=nominal, classes=CLASSES, options=options)
        )


def child(what: str, store: Path) -> dict[str, float]:
    """One training in a process of its own."""
    from understudy.processes import worker_environment

    command = [sys.executable, __file__, "--child", what, str(store)]
    environment = {**worker_environment(1), "XDG_STATE_HOME": str(store.parent / "state")}
    ran = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def train(what: str, store: str) -> dict[str, float]:
    """Seconds to the first step, and the peak of memory."""
    import torch._dynamo  # noqa: F401  (torch's own optimisers import it)

    import understudy.methods.adversarial.learner
    import understudy.methods.diffusion.learner
    import understudy.privacy.accounting.pld
    import understudy.release.release  # noqa: F401
    from understudy.api import TrainOptions, start_run
    from understudy.data.sources import DataOptions
    from understudy.privacy.budget import Budget
    from understudy.progress import Audience

    method, config = CASES[what]
    first, clocks = list[float](), (time.perf_counter, time.process_time)
    started = [clock() for clock in clocks]

    def listener(progress: Any) -> None:
        if progress.step and not first:
            first.extend(round(clock() - begun, 2) for clock, begun in zip(clocks, started, strict=True))

    watch = Audience(watch=lambda: nullcontext((listener, lambda: False))).watch
    with tempfile.TemporaryDirectory(dir=Path(store).parent) as folder:
        settings = TrainOptions(config={**config, "runtime": {"device": "cpu", **config.get("runtime", {})}})
        start_run(method, DataOptions(store), Budget(10, 1e-6), Path(folder, "run"), settings, watch)
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "seconds_to_first_step": first[0],
        "processor_seconds_to_first_step": first[1],
        "peak_gb": round(peak * 1024 / 1e9, 3),
    }


if __name__ == "__main__":
    main()
