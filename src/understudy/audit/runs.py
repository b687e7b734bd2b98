"""Run audits: train once on public data with canaries, guess which of them took part, and bound epsilon.

T. Steinke, M. Nasr, M. Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023. Every canary takes part
by a fair coin, so one run holds as many trials as there are canaries. The highest scores are guessed to have taken part
and the lowest not to have; how many are guessed, and by which of an attack's scores, is chosen on other canaries, whose
coins are not used for the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from understudy.api import TrainOptions, train
from understudy.audit import sgd
from understudy.audit.attacks import AuditedRun, Witness, black_box_scores, embedding_scores
from understudy.audit.bounds import Numbers, one_run_epsilon
from understudy.audit.canaries import make_canaries, with_canaries
from understudy.audit.mechanisms import CONFIDENCE, code_sha256
from understudy.data.dataset import ImageDataset
from understudy.errors import InputError
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.privacy import accounting
from understudy.privacy.audits import AuditRecord
from understudy.privacy.budget import Budget
from understudy.privacy.events import EMBEDDINGS, Event
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import ProgressListener

ATTACKS = 4  # at most, on one run
_HELD_OUT = 4  # every fourth canary
_DELTA_MARGIN = 20
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the canaries that are guessed on either side


@dataclass(frozen=True)
class RunAuditOptions:
    """What is run and how sure the bounds must be; ``audits`` bounds, those of one run among them, share the risk."""

    canaries: int = 1000
    confidence: float = CONFIDENCE
    audits: int = ATTACKS
    declared_public: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    listener: ProgressListener | None = None

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"confidence: {self.confidence} does not lie in 0..1; pass for example 0.9999")
        if self.audits < ATTACKS:
            raise InputError(f"audits: {self.audits}, but one run makes up to {ATTACKS} bounds; pass that many or more")

    @property
    def risk(self) -> float:
        """The chance that one bound fails."""
        return (1 - self.confidence) / self.audits


def audit_run(
    method: str, data: ImageDataset, budget: Budget, out: Path, settings: RunAuditOptions
) -> list[AuditRecord]:
    """Train ``method`` on ``data`` with canaries in the folder ``out``, and attack what came of it.

    Privacy: the run is one of its own; nothing of it is for release. Its figures disclose the data unless they are
    declared public, and a certificate takes no others.
    """
    implementation = get_method(method)
    if not implementation.private:
        raise InputError(f"audit: {method} is not private, so there is no claim to audit; choose a private method")
    canaries = make_canaries(data.domain, settings.canaries, Randomness().bits)
    audited = with_canaries(data, canaries, as_clients=implementation.federated)
    settled = getattr(configure(implementation, settings.config, settings.preset), "method", None)
    witness = Witness(canaries, getattr(settled, "low_frequencies", ()))
    options = TrainOptions(config=settings.config, preset=settings.preset, listener=settings.listener, witness=witness)
    release = train(method, audited, budget, out, options)
    attacked = AuditedRun(method, data, audited, canaries, release, out)
    return _RunAudit(settings, attacked).records(witness)


@dataclass(frozen=True)
class _RunAudit:
    settings: RunAuditOptions
    run: AuditedRun

    def records(self, witness: Witness) -> list[AuditRecord]:
        """All attacks that can be made on this method, at most ``ATTACKS``.

        The embedding is released before all else, so its own event bounds what can be read from it. So it is for the
        steps, which are made apart. All other values also follow from what was released before them.
        """
        run, events = self.run, self.run.release.certificate.events
        found = [self.record(black_box_scores(run.release, run.canaries), "black-box", events, "nearest samples")]
        slopes, of_embedding = witness.slope_scores(), [event for event in events if event.purpose in EMBEDDINGS]
        if slopes is not None:
            found.append(self.record(slopes, "white-box", events, "sanitized gradients towards each canary"))
        if witness.embedding is not None and of_embedding:
            scores = embedding_scores(run, witness.embedding, of_embedding[0])
            if scores is not None:
                found.append(self.record(scores, "white-box", tuple(of_embedding), "the noisy embedding"))
        if sgd.trains_by_steps(run.implementation):
            found.append(self.record(sgd.step_scores(run), "white-box", events[:1], "noisy sums, step by step"))
        return found

    @property
    def delta(self) -> float:
        """Where epsilon is read: small enough that delta does not explain the guesses of so many canaries.

        The claim is recomputed there; a run is (epsilon, delta)-private at every delta.
        """
        smallest = self.settings.risk / (_DELTA_MARGIN * len(self.run.canaries))
        return min(self.run.release.certificate.headline.delta, smallest)

    def record(self, scores: Numbers, access: str, events: tuple[Event, ...], attack: str) -> AuditRecord:
        """Guess from scores, or from the best of some rows of scores, and bound epsilon."""
        delta, rows = self.delta, np.atleast_2d(scores)
        held_out = np.arange(rows.shape[1]) % _HELD_OUT == 0
        included, risk = self.run.canaries.included, self.settings.risk
        row, share = choose_guesses(rows[:, held_out], included[held_out], delta, risk)
        guesses, correct = guess(rows[row, ~held_out], included[~held_out], share)
        canaries = int((~held_out).sum())
        return AuditRecord.model_validate(
            {
                "kind": "run",
                "access": access,
                "method": self.run.method,
                "events": [event.model_dump() for event in events],
                "delta": delta,
                "claimed": accounting.certified_epsilon(events, delta),
                "epsilon_lower": one_run_epsilon(canaries, guesses, correct, delta, risk),
                "confidence": self.settings.confidence,
                "corrected_for": self.settings.audits,
                "trials": canaries,
                "held_out": int(held_out.sum()),
                "threshold": share,
                "wrong": guesses - correct,
                "data": self.run.data.name,
                "declared_public": self.settings.declared_public,
                "generator_sha256": self.run.release.certificate.generator_sha256,
                "code_sha256": code_sha256(),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "attack": f"{attack}; {correct} of {guesses} guesses correct",
            }
        )


def guess(scores: Numbers, included: np.ndarray, share: float) -> tuple[int, int]:
    """How many canaries are guessed and how many of the guesses are right, at a share guessed on either side."""
    count = int(share * len(scores))
    order = np.argsort(scores, kind="stable")
    correct = int((~included[order[:count]]).sum()) + int(included[order[len(scores) - count :]].sum())
    return 2 * count, correct


def choose_guesses(rows: Numbers, included: np.ndarray, delta: float, risk: float) -> tuple[int, float]:
    """The row of scores and the share that show most on held-out canaries; the most accurate where none does."""

    def shown(choice: tuple[int, float]) -> tuple[float, float]:
        guesses, correct = guess(rows[choice[0]], included, choice[1])
        return one_run_epsilon(rows.shape[1], guesses, correct, delta, risk), correct - guesses / 2

    return max(((row, share) for row in range(len(rows)) for share in _SHARES), key=shown)
