"""Audits as plain data: what an attack could show, how sure that is, and on which data it was made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from understudy.configs import Count, Fraction, Natural, NonNegative, Strict
from understudy.privacy.events import Event

_DIGEST = r"^[0-9a-f]{64}$"


class AuditRecord(Strict):
    """One audit: with ``confidence`` the audited thing is not (epsilon, ``delta``)-private below ``epsilon_lower``.

    ``events`` are those of the audited plan, from which ``claimed`` follows; ``corrected_for`` is the number of audits
    that share the confidence. ``threshold`` was chosen on ``held_out`` trials, which the bound does not use. In a
    ``run`` a trial is a canary.

    Privacy: an audit discloses its data, so a certificate takes only what ran on declared-public data, in a run of its
    own.
    """

    kind: Literal["mechanism", "run"]
    access: Literal["white-box", "black-box"]
    method: str
    viewer: Literal["public", "server"] = "public"
    events: Annotated[tuple[Event, ...], Field(min_length=1)]
    delta: Fraction
    claimed: NonNegative
    epsilon_lower: NonNegative
    confidence: Fraction
    corrected_for: Count
    trials: Count
    held_out: Natural
    threshold: float
    wrong: Natural
    data: str
    declared_public: bool
    generator_sha256: Annotated[str, Field(pattern=_DIGEST)] | None = None
    code_sha256: Annotated[str, Field(pattern=_DIGEST)]
    created: str
    attack: str

    @property
    def exceeds(self) -> bool:
        """Whether the attack did better than the claim allows."""
        return self.epsilon_lower > self.claimed

    def in_words(self) -> str:
        """One line for people."""
        share = f"{self.epsilon_lower / self.claimed:.0%} of the claim" if self.claimed else "of a claim of 0"
        verdict = "EXCEEDS the claimed" if self.exceeds else "within the claimed"
        units = {event.unit for event in self.events} - {"record"}
        whose = f" about a {'/'.join(sorted(units))}" if units else ""
        return (
            f"{self.method}: {self.kind}{whose}, {self.access}, against {self.viewer}: epsilon is at least "
            f"{self.epsilon_lower:.4g} at delta {self.delta:g}, {verdict} {self.claimed:.4g} ({share}); confidence "
            f"{self.confidence:.4%} over {self.corrected_for} audits, {self.trials:,} trials and {self.held_out:,} "
            f"held out, threshold {self.threshold:.4g}; {self.attack}"
        )
