"""Speed of a simulated federation: client messages a second, with small critics, and what the accounting costs.

    python benchmarks/federated_speed.py --clients 500

Writes ``benchmarks/results/speed-federated.json``. A message is one round of one client: its critic trains once on the
pool, looks at all its slots, and its answers are clipped, noised and rounded as on the wire.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from record import command_line, current_commit, device_name
from understudy.data.arrays import from_arrays
from understudy.data.domain import source_options
from understudy.devices import choose_device
from understudy.engines.critics.panel import Home
from understudy.federated.fleet import Round, SimulatedFleet
from understudy.federated.gs_wgan import FederatedConfig, GsWganFederated
from understudy.federated.messages import Images
from understudy.federated.routing import RoutingDesk
from understudy.methods.config import build_config
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianAnswers
from understudy.privacy.randomness.streams import Randomness


def main() -> None:
    options = parse()
    device = choose_device(options.device)
    rounds, wall, processor = run(options, device)
    messages = rounds * options.clients
    rows = [
        {"what": "client messages", "unit": "messages/s", "ours": round(messages / wall, 1)},
        {"what": "client messages", "unit": "messages per processor second", "ours": round(messages / processor, 1)},
    ]
    result = {
        "device": device_name(device),
        "command": command_line(leave_out=("--results",)),
        "commit": current_commit(),
        "clients": options.clients,
        "image_side": options.side,
        "critic_width": options.width,
        "load_average": [round(load, 1) for load in os.getloadavg()],  # a busy machine has fewer seconds for us
        "rows": [{**row, "rival": None, "ratio": None} for row in rows],
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "speed-federated.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def run(options: argparse.Namespace, device: torch.device) -> tuple[int, float, float]:
    """Rounds, seconds on the clock and seconds of the processor."""
    random, side, clients = np.random.default_rng(0), options.side, options.clients
    pixels = random.integers(0, 256, (10 * clients, side, side), dtype=np.uint8)
    declared = source_options(nominal_clients=clients)
    owners = np.arange(10 * clients) % clients
    labels = random.integers(0, 10, 10 * clients)
    data = from_arrays(pixels, labels, client_ids=owners, records=10 * clients, classes=10, options=declared)
    critics = {"batch": options.batch, "width": options.width, "rounds": 1, "per_step": 100}
    privacy = {"queries": 12 * clients * 1000, "queries_per_round": 12 * clients, "noise_multiplier": 10.0}
    method = GsWganFederated()
    config = build_config(FederatedConfig, {"privacy": privacy, "method": {"critics": critics, "pool": 32}})
    plan = method.plan(config, data.domain, Budget(10, 1e-5))
    contract = method.contract(plan)
    fleet = SimulatedFleet(data, contract, Home(Randomness(), device))
    desk = RoutingDesk(contract.limits, os.urandom)

    def asked(number: int) -> Round:
        def images(count: int) -> Images:
            return Images(
                random.integers(0, 256, (count, 1, side, side), dtype=np.uint8), random.integers(0, 10, count)
            )

        return Round(number, images(contract.pool), images(contract.limits.queries), desk.route())

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(Path(folder) / "ledger.jsonl")
        answering = GaussianAnswers(ledger, Randomness(), clip=contract.clip, event=plan.events[0])
        fleet.answers(asked(0), answering)
        wall, processor, rounds = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - wall < options.seconds:
            rounds += 1
            fleet.answers(asked(rounds), answering)
        return rounds, time.perf_counter() - wall, time.process_time() - processor


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--side", type=int, default=8)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
