"""Run audits of every private method: 20 whole runs with canaries each, none of which may show more than its claim.

    OMP_NUM_THREADS=1 python benchmarks/audit_runs.py
    python benchmarks/audit_runs.py --methods dpgan,dp-merf --runs 2 --controls 1 --results /tmp/audits

Each run trains once on a hundred of the bundled digits, with few steps and high sampling rates, among 600 canaries that
took part by a fair coin each; ``understudy audit run`` does the same for one run (docs/audit.md). The confidence of
99.99 % holds for the bounds of all methods, runs and attacks together.

A bound below the claim means little where an attack sees nothing. So every method is also audited broken: the same plan
and the same claim, but its mechanisms leave out the noise (the controls). At least one attack must then exceed the
claim, and the result says which ones do.

Writes ``audit-runs.json`` after every run. Killed and started again, it goes on where it was. The exit code is 1 if a
run exceeded its claim or a control did not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import understudy as us
from record import command_line, current_commit, device_name
from understudy.audit.runs import ATTACKS, RunAuditOptions, audit_run
from understudy.data.dataset import with_clients
from understudy.data.domain import Domain
from understudy.files import make_folder, write_text
from understudy.methods.registry import get_method, method_names
from understudy.privacy.audits import AuditRecord
from understudy.privacy.mechanisms import GaussianMechanism

Row = dict[str, Any]
Config = Mapping[str, Mapping[str, Any]]

STEM = "audit-runs"
BUDGET, CONFIDENCE = us.Budget(epsilon=1.0, delta=1e-5), 0.9999
RECORDS, CLIENTS, CANARIES, RATE = 100, 20, 600, 0.8
STEPS = {"batch": int(RATE * (RECORDS + CANARIES // 2)), "steps": 4}
FIT = {"frequencies": 500, "steps": 20, "batch": 50}
GENERATOR = {"width": 4, "latent": 4}
CRITICS = {"batch": 16, "width": 8, "rounds": 1}
GAN = {"width": 8, "latent": 4, "head_start": 1, "discriminator_steps": 1, "embedding": FIT}
VOTES = {"teachers": 30, "queries": 40, "embedding_share": 0.4}
TEACHING = {
    "queries_per_step": 10,
    "teachers": {"batch": 16, "width": 8, "warm_iterations": 20, "per_step": 10},
    "generator": GENERATOR,
    "embedding": FIT,
}
# Few steps, so that hundreds of runs fit into an hour of one core. What is left out is decided by the method.
SETTINGS: Mapping[str, Config] = {
    "bdp-gan": {"privacy": {**STEPS, "steps": 8}, "method": {**GAN, "bayesian": {"pairs": 4, "orders": [1, 2, 8]}}},
    "datalens": {"privacy": VOTES, "method": TEACHING},
    "dp-cgan": {"privacy": STEPS, "method": {"width": 8, "latent": 4}},
    "dp-diffusion": {
        "privacy": STEPS,
        "method": {
            "widths": [8],
            "blocks": 1,
            "draws": 2,
            "embedding": FIT,
            "warm_up": {"images": 500, "steps": 20, "batch": 50},
            "sampler": {"steps": 5, "churn": 1.0},
        },
    },
    "dp-hp": {"method": {"steps": 20, "batch": 50, "latent": 4, "width": 16}},
    "dp-merf": {"method": {**FIT, "latent": 4, "width": 16}},
    "dp-merf-ae": {"privacy": STEPS, "method": {"embedding": FIT}},
    "dp-sinkhorn": {"privacy": STEPS, "method": {"generator": GENERATOR, "embedding": FIT}},
    "dpgan": {"privacy": STEPS, "method": GAN},
    "fedavg-gan": {
        "privacy": {"rounds": 6, "clients_per_round": RATE * (CLIENTS + CANARIES)},
        "method": {"generator_steps": 1, "batch": 16, "critics": CRITICS, "generator": GENERATOR},
    },
    "g-pate": {"privacy": {**VOTES, "projections": 10}, "method": TEACHING},
    "gs-wgan": {
        "privacy": {"subsets": 200, "queries": 12_000},
        "method": {
            "queries_per_step": 4000,
            "critics": {**CRITICS, "batch": 8, "warm_iterations": 100},
            "generator": GENERATOR,
            "embedding": FIT,
        },
    },
    "gs-wgan-federated": {
        "privacy": {"queries": 400, "queries_per_round": 200},
        "method": {
            "steps_per_round": 2,
            "critics": {**CRITICS, "warm_iterations": 4},
            "generator": GENERATOR,
            "embedding": FIT,
        },
    },
    "pate-gan": {"privacy": VOTES, "method": TEACHING},
}


def main() -> int:
    options = parse()
    path = options.results / f"{STEM}.json"
    result = started(path, options)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs + options.controls):
            for method in options.methods:
                key = {"method": method, "number": number, "broken": number >= options.runs}
                if not any(key.items() <= row.items() for row in result["audit_runs"]):
                    audit(result, key, Path(folder) / f"{method}-{number}")
                    make_folder(options.results, "results")
                    write_text(path, as_text(result))
    return 1 if failures(result) else 0


def parse() -> argparse.Namespace:
    private = [name for name in method_names() if get_method(name).private]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=private, help="all by default")
    parser.add_argument("--runs", type=int, default=20, help="of each method")
    parser.add_argument("--controls", type=int, default=3, help="broken runs of each method")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--commit", help="where there is no git")
    return parser.parse_args()


def started(path: Path, options: argparse.Namespace) -> Row:
    """The result as it stands on disk, or an empty one; one that was begun with other settings is not gone on with."""
    shared = {
        "dataset": f"{RECORDS} of the bundled digits",
        "epsilon": BUDGET.epsilon,
        "delta": BUDGET.delta,
        "confidence": CONFIDENCE,
        "corrected_for": len(options.methods) * options.runs * ATTACKS,
        "methods": options.methods,
        "runs": options.runs,
        "controls": options.controls,
        "records": RECORDS,
        "clients": CLIENTS,
        "canaries": CANARIES,
        "settings": {method: SETTINGS[method] for method in options.methods},
    }
    if not path.exists():
        origin = {
            "device": device_name(torch.device("cpu")),
            "command": command_line(leave_out=("--results", "--commit")),
            "commit": options.commit or current_commit(),
        }
        return {**shared, **origin, "claims": {}, "audit_runs": []}
    result: Row = json.loads(path.read_text(encoding="utf-8"))
    changed = [name for name, value in shared.items() if result.get(name) != value]
    if changed:
        raise SystemExit(f"{path} was begun with other {', '.join(changed)}; move it away to start anew")
    return result


def audit(result: Row, key: Row, out: Path) -> None:
    """One run and all attacks on it, added to ``result``."""
    method, begun = key["method"], time.perf_counter()
    config = {"runtime": {"device": "cpu"}, **result["settings"][method]}
    settings = RunAuditOptions(CANARIES, CONFIDENCE, result["corrected_for"], declared_public=True, config=config)
    with noise_left_out() if key["broken"] else nullcontext():
        found = audit_run(method, public_data(get_method(method).federated), BUDGET, out, settings)
    row = {**key, "seconds": round(time.perf_counter() - begun, 1), "created": found[0].created}
    row |= {"code_sha256": found[0].code_sha256, "attacks": {name_of(each): figures(each) for each in found}}
    for each in found:
        claims = result["claims"].setdefault(method, {})
        claim = claim_of(each)
        if claims.setdefault(name_of(each), claim) != claim:
            raise SystemExit(f"{method}: its claim is not that of the runs before; move the result away to start anew")
    result["audit_runs"].append(row)
    told = ", ".join(f"{name_of(each)} {each.epsilon_lower:.2f} of {each.claimed:.2f}" for each in found)
    print(f"{method} {key['number']}{' broken' if key['broken'] else ''}: {told}", flush=True)


def public_data(as_clients: bool) -> us.ImageDataset:
    """The first of the bundled digits, dealt out to clients for a federation."""
    digits = us.load("digits")
    assert digits.labels is not None, "digits are labelled"
    domain = Domain.model_validate(digits.domain.model_dump() | {"nominal_records": RECORDS})
    some = us.ImageDataset(digits.name, domain, digits.images[:RECORDS], digits.labels[:RECORDS])
    return with_clients(some, CLIENTS) if as_clients else some


@contextmanager
def noise_left_out() -> Iterator[None]:
    """The bug that controls have: every mechanism spends, records and claims as ever, and adds no noise."""
    genuine = GaussianMechanism._noisy

    def noiseless(self: GaussianMechanism, exact: Tensor, deviation: float) -> Tensor:
        return genuine(self, exact, 0.0)

    GaussianMechanism._noisy = noiseless  # type: ignore[method-assign]
    try:
        yield
    finally:
        GaussianMechanism._noisy = genuine  # type: ignore[method-assign]


def name_of(audit: AuditRecord) -> str:
    """The attack alone."""
    return f"{audit.access}: {audit.attack.split(';')[0]}"


def claim_of(audit: AuditRecord) -> Row:
    """What an attack is held against; the same in all runs of a method."""
    events = [event.model_dump(mode="json", exclude_none=True) for event in audit.events]
    trials = {"trials": audit.trials, "held_out": audit.held_out}
    return {"claimed": audit.claimed, "delta": audit.delta, **trials, "events": events}


def figures(audit: AuditRecord) -> Row:
    """What an attack showed."""
    guesses = 2 * int(audit.threshold * audit.trials)
    return {
        "epsilon_lower": round(audit.epsilon_lower, 4),
        "threshold": audit.threshold,
        "guesses": guesses,
        "correct": guesses - audit.wrong,
        "exceeds": audit.exceeds,
    }


def failures(result: Row) -> list[str]:
    """Runs that exceeded their claim and controls in which no attack did."""
    found = [
        f"{row['method']} {row['number']}"
        for row in result["audit_runs"]
        if any(figure["exceeds"] for figure in row["attacks"].values()) != row["broken"]
    ]
    for name in found:
        print(f"{name}: NOT AS EXPECTED", flush=True)
    return found


def as_text(result: Row) -> str:
    """JSON with one line for each run."""
    rows = ",\n  ".join(json.dumps(row) for row in result["audit_runs"])
    head = json.dumps({**result, "audit_runs": []}, indent=1)
    return head.replace('"audit_runs": []', f'"audit_runs": [\n  {rows}\n ]') + "\n"


if __name__ == "__main__":
    sys.exit(main())
