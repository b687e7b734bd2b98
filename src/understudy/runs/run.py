"""A run: one training in one folder, with its data, ledger, checkpoints and what may be shown while it goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.data.dataset import ImageDataset
from understudy.distributed import ALONE, Team
from understudy.errors import InputError, InterruptedRun
from understudy.files import open_private
from understudy.privacy import accounting
from understudy.privacy.events import Event
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.runs.folder import RunFolder
from understudy.runs.loop import Checkpoint, Checkpoints

if TYPE_CHECKING:
    import torch

    from understudy.privacy.randomness.streams import Randomness

_LEDGER_MARK = "ledger_mark"
_REPORTS = 100


@dataclass(frozen=True)
class Progress:
    """What the owner is shown of a run in progress; all but its time is public."""

    step: int
    steps: int
    values: dict[str, float]  # public: losses on generated images, spending
    seconds: float  # private: kept in the private folder
    part: str | None = None  # what is prepared before the first step; its value is the share that is done


ProgressListener = Callable[[Progress], None]


@dataclass
class Run:
    """Everything a method needs to train. Only ``data`` and the private folder hold private values."""

    folder: Path
    plan: Plan
    data: ImageDataset
    ledger: Ledger
    randomness: Randomness
    device: torch.device
    listener: ProgressListener | None = None
    stop_requested: Callable[[], bool] = lambda: False
    transport: Any = None  # how to reach the clients of a federation (``federated.fleet.Transport``)
    team: Team = ALONE  # the processes that share its private steps
    lost_steps: int = 0  # planned, but lost with a process that was killed; they are charged all the same
    started: float = field(default_factory=time.monotonic)  # earlier for a resumed run, by the time it has worked
    _last_checkpoint: float = field(default_factory=time.monotonic)
    _spent: dict[tuple[Event, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = RunFolder(self.folder)
        self.files.make_private("run")
        self.files.separate_timings()
        self.started -= (self.files.seconds() or [0.0])[-1]
        self.checkpoints = Checkpoints(self.private)

    @property
    def private(self) -> Path:
        """The folder for what must not be released."""
        return self.files.private

    def report_due(self, step: int) -> bool:
        """Whether to report after this step: about a hundred times in a run, and at its end."""
        return step % max(1, self.plan.steps // _REPORTS) == 0 or step == self.plan.steps

    def report(self, step: int, **values: float) -> None:
        """Show and record progress: public values in the public file, the time they took in a private one.

        Privacy: ``values`` must be public: computed from generated images or sanitized values, never from private ones.
        A time is not: it follows the secret sizes of batches and the true number of records.
        """
        if self.plan.private:  # a method without privacy has no spending to show
            values = {**values, "epsilon_spent": self.epsilon_spent()}
        progress = Progress(step, self.plan.steps, values, time.monotonic() - self.started)
        with open_private(self.files.timings, "a") as file:
            file.write(json.dumps({"step": step, "seconds": round(progress.seconds, 3)}) + "\n")
        line = {"step": step, **values}
        with self.files.progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self.listener is not None:
            self.listener(progress)

    def prepare(self, **values: float) -> None:
        """Show what goes on before the first step, and stop there if asked to; public values only, as in ``report``.

        The first value is the share that is done of what it names.
        """
        if self.listener is not None:
            self.listener(
                Progress(0, self.plan.steps, values, time.monotonic() - self.started, next(iter(values), None))
            )
        self.stop_if_requested(0)

    def epsilon_spent(self) -> float:
        """Epsilon of what is on record so far, counted in tenths of the plan and rounded up, so never too low."""
        charged = []
        for event in self.ledger.events():
            assert event.planned is not None, "the ledger sets it"
            assert event.executed is not None, "the ledger sets it"
            rows = getattr(event.sampling, "rows", 1)
            tenth = max(1, -(-event.planned // (10 * rows))) * rows
            tenths = -(-event.executed // tenth)
            if tenths:
                charged.append(
                    event.charged(planned=0, executed=min(tenths * tenth, max(event.planned, event.executed)))
                )
        key = tuple(charged)
        if key not in self._spent:
            self._spent[key] = accounting.certified_epsilon(charged, self.plan.budget.delta) if charged else 0.0
        return self._spent[key]

    def diagnose(self, step: int, **values_private: Any) -> None:
        """Record private diagnostics (gradient norms, say) in the private folder, and nowhere else."""
        with open_private(self.files.diagnostics, "a") as file:
            file.write(json.dumps({"step": step, **values_private}) + "\n")

    def checkpoint_due(self) -> bool:
        """Whether a checkpoint should be written now: when it is time, or when the run was asked to stop."""
        late = time.monotonic() - self._last_checkpoint > self.plan.config.runtime.checkpoint_seconds
        return late or self.stop_requested()

    def restore(self) -> Checkpoint | None:
        """The newest checkpoint that can be read; None at the start of a run."""
        return latest_checkpoint(self.checkpoints, self.ledger)

    def checkpoint(self, step: int, tensors: dict[str, torch.Tensor], **state: Any) -> None:
        """Write a checkpoint; a run that was asked to stop ends here, ready to be resumed."""
        self.checkpoints.save(step, tensors, {**state, _LEDGER_MARK: self.ledger.mark})
        self._last_checkpoint = time.monotonic()
        self.stop_if_requested(step)

    @property
    def reason(self) -> str:
        """Why a run that came to its end stopped there; a certificate states it."""
        if not self.lost_steps:
            return "finished as planned"
        return f"finished without {self.lost_steps} of its steps, which were lost when it was killed and stay charged"

    def stop_if_requested(self, step: int) -> None:
        """End a run that was asked to stop; what it did since its last checkpoint is done again when it is resumed."""
        if self.stop_requested():
            self.ledger.note(f"interrupted after step {step}")
            raise InterruptedRun(
                f"run: interrupted after step {step} of {self.plan.steps}; continue with --resume, the spending so "
                f"far is on record in {self.files.ledger}"
            )


def latest_checkpoint(checkpoints: Checkpoints, ledger: Ledger) -> Checkpoint | None:
    """The newest checkpoint that can be read; None where there is none.

    Privacy: a ledger that does not hold what it held when the checkpoint was written has lost spending: refused.
    """
    checkpoint = checkpoints.load_latest()
    if checkpoint is not None and not ledger.has_passed(checkpoint.state[_LEDGER_MARK]):
        raise InputError(
            f"ledger: {ledger.path} does not hold what it held when step {checkpoint.step} was saved; its spending is "
            "unknown, so the run cannot go on"
        )
    return checkpoint
