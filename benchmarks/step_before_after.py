"""The private discriminator step of two checkouts side by side, in turns, on one machine.

    git worktree add /tmp/before e25aeaa
    python benchmarks/step_before_after.py --before /tmp/before                        # graphics card
    python benchmarks/step_before_after.py --before /tmp/before --device cpu --batches 64,256

Each checkout runs in a process of its own and builds its step as its own ``discriminator_speed.py`` does. The two take
turns of a fraction of a second, so that whatever else happens on the machine meets both. Writes
``benchmarks/results/speed-step-before-after[-cpu].json``: medians over the turns, their quartiles, and the ratio of
the medians with the quartiles of the ratio of neighbouring turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from record import command_line, current_commit, device_name

HERE = Path(__file__).resolve().parent
Row = dict[str, Any]


class Checkout:
    """One checkout in a process of its own, which measures when it is told to."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(root)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: Any) -> Any:
        """Put one question; the answer is one line of JSON."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise SystemExit("a checkout ended before it answered; see its messages above")

    def end(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(root: Path) -> None:
    """Answer questions on stdin with the code of one checkout."""
    import time

    sys.path[:0] = [str(root / "src"), str(root / "benchmarks")]
    import discriminator_speed as of_checkout

    assert Path(of_checkout.__file__).is_relative_to(root), of_checkout.__file__
    data, step, device = of_checkout.random_data(), None, torch.device("cpu")
    for line in sys.stdin:
        question = json.loads(line)
        if "build" in question:
            options = argparse.Namespace(device=question["device"], micro_batch=2500)
            device, step = torch.device(question["device"]), None
            of_checkout.free_memory(device)
            step = of_checkout.ours_step(question["build"], question["batch"], data, options)
            for _ in range(3):
                step()
            answer: Any = True
        else:
            assert step is not None
            of_checkout.synchronize(device)
            start = time.perf_counter()
            for _ in range(question["steps"]):
                step()
            of_checkout.synchronize(device)
            answer = (time.perf_counter() - start) / question["steps"]
        print("answer " + json.dumps(answer), flush=True)


def compare(before: Checkout, after: Checkout, precision: str, batch: int, options: argparse.Namespace) -> Row:
    """Milliseconds a step of both checkouts, in turns; who begins a pair of turns alternates."""
    for each in (before, after):
        each.ask(build=precision, batch=batch, device=options.device)
    steps = max(1, round(options.turn_seconds / before.ask(steps=3)))
    times = np.array([_pair(before, after, steps, turn) for turn in range(options.turns)]) * 1000
    ratios, quartiles = times[:, 0] / times[:, 1], (25, 75)
    old, new = np.median(times, axis=0)
    row = {
        "what": f"discriminator step, B={batch}, {precision}, {options.turns} turns of {steps} steps each",
        "unit": "ms",
        "ours": new,
        "rival": old,
        "ratio": old / new,
        "ours_quartiles": np.percentile(times[:, 1], quartiles).tolist(),
        "rival_quartiles": np.percentile(times[:, 0], quartiles).tolist(),
        "ratio_quartiles": np.percentile(ratios, quartiles).tolist(),
    }
    low, high = row["ratio_quartiles"]
    print(f"{row['what']}: {old:.3f} -> {new:.3f} ms, ratio {row['ratio']:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return row


def _pair(before: Checkout, after: Checkout, steps: int, turn: int) -> tuple[float, float]:
    if turn % 2:
        second = after.ask(steps=steps)
        return before.ask(steps=steps), second
    return before.ask(steps=steps), after.ask(steps=steps)


def main() -> None:
    options = parse()
    if options.serve is not None:
        serve(options.serve.resolve())
        return
    before, after = Checkout(options.before.resolve()), Checkout(options.after.resolve())
    rows = [
        compare(before, after, precision, int(batch), options)
        for batch in options.batches.split(",")
        for precision in options.precisions.split(",")
    ]
    before.end()
    after.end()
    device = torch.device(options.device)
    path = options.json or HERE / "results" / f"speed-step-before-after{'' if device.type == 'cuda' else '-cpu'}.json"
    body = {
        "device": device_name(device),
        "command": command_line(("--json", "--commit", "--before", "--after")),
        "commit": options.commit or current_commit(),
        "before": options.before_commit,
        "torch": torch.__version__,
        "rows": rows,
    }
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"wrote {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--before", type=Path, help="the checkout to compare with")
    parser.add_argument("--before-commit", default="e25aeaa", help="its commit, recorded in the result")
    parser.add_argument("--after", type=Path, default=HERE.parent)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--batches", default="128,512,2048" if cuda else "64,256")
    parser.add_argument("--precisions", default="bf16,tf32" if cuda else "fp32")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--turn-seconds", type=float, default=0.3 if cuda else 3.0)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--commit", help="recorded in the result; asked of git where not given")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
