"""Run audits: train once on public data with canaries, guess which of them took part, and bound epsilon.

T. Steinke, M. Nasr, M. Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023. Every canary takes part
by a fair coin, so one run holds as many trials as there are canaries. The highest scores are guessed to have taken part
and the lowest not to have; how many are guessed is chosen on other canaries, whose coins are not used for the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from understudy.audit import sgd
from understudy.audit.attacks import EMBEDDING, Witness, black_box_scores
from understudy.audit.bounds import Numbers, one_run_epsilon
from understudy.audit.canaries import Canaries, make_canaries, with_canaries
from understudy.audit.mechanisms import CONFIDENCE, code_sha256
from understudy.data.dataset import ImageDataset
from understudy.errors import InputError
from understudy.methods.registry import get_method
from understudy.privacy import accounting
from understudy.privacy.audits import AuditRecord
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.randomness import Randomness
from understudy.release.release import Release
from understudy.training.run import ProgressListener
from understudy.workflow import TrainOptions, train

_HELD_OUT = 4  # every fourth canary
_DELTA_MARGIN = 20
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)  # of the canaries that are guessed on either side


@dataclass(frozen=True)
class RunAuditSettings:
    """What is run and how sure the bound must be; ``audits`` share the confidence between them."""

    canaries: int = 1000
    confidence: float = CONFIDENCE
    audits: int = 1
    declared_public: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    listener: ProgressListener | None = None

    @property
    def risk(self) -> float:
        """The chance that one bound fails."""
        return (1 - self.confidence) / self.audits


def audit_run(
    method: str, data: ImageDataset, budget: Budget, out: Path, settings: RunAuditSettings
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
    witness = Witness(canaries)
    options = TrainOptions(config=settings.config, preset=settings.preset, listener=settings.listener, witness=witness)
    release = train(method, audited, budget, out, options)
    audit = _RunAudit(method, data.name, canaries, settings, release)
    events = release.certificate.events
    records = [audit.record(black_box_scores(release, canaries), "black-box", events, "nearest samples")]
    noise = [event.noise_multiplier for event in events if event.purpose == EMBEDDING]
    seen = witness.scores(out / "private", release.method_config["method"], sum(noise))
    if seen is not None:
        records.append(audit.record(seen, "white-box", events, "all sanitized values of the run"))
    if sgd.trains_by_steps(method):
        stepped = sgd.step_scores(method, audited, canaries, release, out / "steps")
        records.append(audit.record(stepped, "white-box", events[:1], "sums of gradients along each canary's own"))
    return records


@dataclass(frozen=True)
class _RunAudit:
    method: str
    data: str
    canaries: Canaries
    settings: RunAuditSettings
    release: Release

    @property
    def delta(self) -> float:
        """Where epsilon is read: small enough that delta does not explain the guesses of so many canaries.

        The claim is recomputed there; a run is (epsilon, delta)-private at every delta.
        """
        return min(self.release.certificate.headline.delta, self.settings.risk / (_DELTA_MARGIN * len(self.canaries)))

    def record(self, scores: Numbers, access: str, events: tuple[Event, ...], attack: str) -> AuditRecord:
        """Guess from scores and bound epsilon."""
        delta = self.delta
        held_out = np.arange(len(scores)) % _HELD_OUT == 0
        included, risk = self.canaries.included, self.settings.risk
        share = choose_share(scores[held_out], included[held_out], delta, risk)
        guesses, correct = guess(scores[~held_out], included[~held_out], share)
        canaries = int((~held_out).sum())
        return AuditRecord.model_validate(
            {
                "kind": "run",
                "access": access,
                "method": self.method,
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
                "data": self.data,
                "declared_public": self.settings.declared_public,
                "generator_sha256": self.release.certificate.generator_sha256,
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


def choose_share(scores: Numbers, included: np.ndarray, delta: float, risk: float) -> float:
    """The share that shows most on held-out canaries; the most accurate one where none of them shows anything."""

    def shown(share: float) -> tuple[float, float]:
        guesses, correct = guess(scores, included, share)
        return one_run_epsilon(len(scores), guesses, correct, delta, risk), correct - guesses / 2

    return max(_SHARES, key=shown)
