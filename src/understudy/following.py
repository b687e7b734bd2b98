"""The life of a process that follows: it opens the data, confirms that they are the leader's, and helps with the steps.

Run as a program it is what ``--processes`` starts; under a launcher ``train`` calls ``follow`` itself.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.data.dataset import ImageDataset
from understudy.data.domain import Domain
from understudy.data.sources import DataOptions
from understudy.distributed import Team, TeamEnded, meeting
from understudy.errors import InputError, UnderstudyError
from understudy.methods.annotation import Annotation
from understudy.methods.base import Method
from understudy.methods.config import build_config
from understudy.methods.registry import ANNOTATED, get_method
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.plan import Plan
from understudy.processes import end_with_parent

if TYPE_CHECKING:
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.privacy.randomness.streams import Randomness
    from understudy.runs.run import Run

PROGRAM = __name__
_ENTROPY_BYTES = 32


def lead(run: Run, source: Mapping[str, Any] | None, seed: int | None) -> None:
    """Tell the followers of a run what to help with, and confirm that all hold the same data and no one's chance.

    Privacy: what is told is the plan and the seed, where there is one; checks come before anything is spent.
    """
    if run.team.size == 1:
        return
    plan = run.plan
    run.team.tell(
        {
            "method": plan.method,
            "config": plan.config.model_dump(mode="json"),
            "domain": plan.domain.model_dump(mode="json"),
            "events": [event.model_dump(mode="json") for event in plan.events],
            "source": source,
            "seed": seed,
        }
    )
    confirm_same_data(run.team, run.data)
    confirm_own_entropy(run.team, run.randomness)


def confirm_same_data(team: Team, data: ImageDataset) -> None:
    """Refuse processes that hold other data than the leader: numbers of units would mean other units.

    Privacy: two processes that number units differently could both own one, whose coin would then be drawn twice. The
    fingerprint is private and stays among the processes of the owner.
    """
    found = team.compare(bytes.fromhex(data.fingerprint()))
    others = [rank for rank, fingerprint in enumerate(found) if fingerprint != found[0]]
    if others:
        raise InputError(
            f"processes: number {others[0]} holds other data than number 0; give all of them the same --data"
        )


def confirm_own_entropy(team: Team, randomness: Randomness) -> None:
    """Refuse two processes that draw the same numbers.

    Privacy: equal streams would give units of two processes one coin, and amplification by sampling, which needs
    independent ones, would be gone. Everybody shows a digest of fresh bytes, which are then used for nothing.
    """
    found = team.compare(hashlib.sha256(randomness.bits(_ENTROPY_BYTES)).digest())
    if len(set(found)) < len(found):
        raise InputError(
            "processes: two of them draw the same random numbers, so their draws are not independent; do not start "
            "them from one snapshot of a machine, or with one seed"
        )


def follow(team: Team, source: DataOptions) -> None:
    """Help the leader until it has no step any more; nothing is written, spent or released here.

    Privacy: private rows of the units that this process owns go into clipped sums, and these to the leader.
    """
    from understudy.devices import explained_memory_errors

    told = team.hear()
    if told is None:
        return
    with tempfile.TemporaryDirectory(prefix="understudy-") as folder:
        run = _run(team, source, told, Path(folder))
        confirm_same_data(team, run.data)
        confirm_own_entropy(team, run.randomness)
        with explained_memory_errors(run.device):
            work = team.hear()
            while work is not None:
                work = _assistance(run, work).help()


def _assistance(run: Run, told: Mapping[str, Any]) -> Assistance:
    """What the leader begins with, as this process helps with it: work of the method, or of what goes beside many."""
    from understudy.engines.embedding.means import EMBEDDED, assist_embedding
    from understudy.engines.teacher.training import TAUGHT, assist_teacher

    beside = {EMBEDDED: assist_embedding, TAUGHT: assist_teacher}
    return beside.get(told["work"], _method(run.plan.method).assist)(run, told)


def _method(name: str) -> Method:
    """The method that a leader names; an annotation is helped with without the release that it annotates."""
    return Annotation(None) if name == ANNOTATED else get_method(name)


def _run(team: Team, source: DataOptions, told: Mapping[str, Any], folder: Path) -> Run:
    from understudy.devices import choose_device
    from understudy.privacy.ledger import NoLedger
    from understudy.privacy.randomness.streams import Randomness, own_seed
    from understudy.runs.run import Run

    domain = Domain.model_validate(told["domain"])
    config = build_config(_method(told["method"]).config_type, told["config"])
    events = tuple(Event.model_validate(event) for event in told["events"])
    plan = Plan(told["method"], config, domain, Budget(1.0, 1e-6), events, 0.0, 1, 0, 0.0, 0.0)
    data = source.completed_by(told["source"]).completed_from(domain).open()
    device = choose_device(config.runtime.device)
    randomness = Randomness(own_seed(told["seed"], team.rank))
    return Run(folder, plan, data, NoLedger(), randomness, device, team=team)


def main() -> int:
    """Follow as the one that started this process says on stdin."""
    task = json.loads(sys.stdin.read())
    end_with_parent()
    try:
        with meeting(task) as team:
            follow(team, DataOptions(**task["source"]))
    except TeamEnded:
        return TeamEnded.exit_code  # the leader says it
    except UnderstudyError as error:
        print(f"understudy: process {task['rank']}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
