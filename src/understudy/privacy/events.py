"""Events: accesses to private data, as plain data that accountants read and nothing else interprets.

An event is built by the mechanism that executes it (see ``mechanisms``), written to the ledger before its output is
used, and copied into the certificate. A kind of event that no accountant knows is an error, never a guess.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from understudy.configs import Count, Natural, Strict

CLASS_MEANS = "class-wise mean embedding"  # the purpose of the event that also tells noisy class sizes
CLIENT_MEANS = "clients' mean embeddings"  # the same of a federation
EMBEDDINGS = (CLASS_MEANS, CLIENT_MEANS)

Sensitivity = Literal["C", "2C", "sqrt(2)C"]
Unit = Literal["record", "client", "person"]  # a person has several records; clients are those of a federation


class NoSampling(Strict):
    """Every unit takes part."""

    kind: Literal["none"] = "none"


class PoissonSampling(Strict):
    """Each unit takes part independently with probability ``rate``; who did stays secret."""

    kind: Literal["poisson"] = "poisson"
    rate: Annotated[float, Field(gt=0, le=1)]


class RoutedSampling(Strict):
    """Each query goes to one of ``subsets`` disjoint subsets, drawn secretly, independently and uniformly."""

    kind: Literal["routed"] = "routed"
    subsets: Count


class RevealedRouting(Strict):
    """One of ``subsets`` is drawn for ``rows`` queries at a time, and the draw is treated as known to everybody.

    This is the only proven reading of the published GS-WGAN algorithm, where a critic is updated when it is drawn.
    """

    kind: Literal["revealed"] = "revealed"
    subsets: Count
    rows: Count


Sampling = Annotated[NoSampling | PoissonSampling | RoutedSampling | RevealedRouting, Field(discriminator="kind")]


class Event(Strict):
    """``count`` executions of one mechanism on private data.

    ``noise_multiplier`` is the noise's standard deviation over the sensitivity. ``sensitivity`` names the convention
    ("C": add or remove one clipped unit; "2C": replace one clipped answer by another; "sqrt(2)C": replace the one-hot
    votes of one teacher by others): the multiplier already contains it, and routed answers have no other than "2C".
    ``unit`` is whose data one execution may reveal. ``noise_parts`` says that the noise of a sum over clients was added
    in so many equal parts, one by each client before its part of the sum left it; None: all at once. ``count`` is what
    is charged and is never below what was planned or executed.
    """

    mechanism: Literal["gaussian"] = "gaussian"
    noise_multiplier: Annotated[float, Field(gt=0)]
    sensitivity: Sensitivity | None = None
    unit: Unit = "record"
    sampling: Sampling = NoSampling()
    count: Count
    planned: Natural | None = None
    executed: Natural | None = None
    purpose: str | None = None
    noise_parts: Count | None = None

    @model_validator(mode="after")
    def _charged_in_full(self) -> Event:
        spent = max(self.planned or 0, self.executed or 0)
        if self.count < spent:
            raise ValueError(f"count {self.count} is below what was planned or executed ({spent})")
        if self.sensitivity != "2C" and self.sampling.kind in ("routed", "revealed"):
            stated = self.sensitivity or "not stated"
            raise ValueError(f"sensitivity {stated}: {self.sampling.kind} answers are accounted with 2C only")
        if self.noise_parts and (self.unit, self.sensitivity, self.sampling.kind) != ("client", "C", "none"):
            raise ValueError("noise_parts: only an unsampled sum over clients (sensitivity C) has noise in parts")
        rows = getattr(self.sampling, "rows", 1)
        if self.count % rows:
            raise ValueError(f"count {self.count} is not a multiple of the {rows} rows of one draw")
        return self

    def charged(self, *, planned: int, executed: int) -> Event:
        """The same kind of access with its counts set: the charge is the larger of planned and executed."""
        fields = self.model_dump() | {"count": max(planned, executed), "planned": planned, "executed": executed}
        return Event.model_validate(fields)
