"""Settings of the Bayesian accountant, fixed before a run begins; importing them imports neither numpy nor torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FROZEN = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
_ORDERS = (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), 72, 80, 96, 112, 128, 160, 192, 256)
Probability = Annotated[float, Field(gt=0, lt=1)]
Order = Annotated[int, Field(ge=1, le=512)]


class BayesianSettings(BaseModel):
    """How a run is accounted beside its guarantee; none of it changes the run or its epsilon.

    ``heavy_tails`` says what happens where too few samples carry an estimate: ``charge`` never goes below Student's
    bound of the whole run's samples together, and takes the worst case where even of these too few count; ``warn``
    keeps the estimate of the paper, step by step, and marks the claim as not to be relied on. ``publish`` puts the
    claim into the certificate, which discloses something about the data; without it the claim stays in the private
    folder.
    """

    model_config = _FROZEN
    pairs: Annotated[int, Field(ge=3, le=4096)] = 32  # m
    delta_mu: Probability = 1e-10
    failure_share: Probability = 0.5  # of delta_mu, for the confidence bounds of all steps and orders together
    percentile_delta: Probability = 1e-5  # the delta of the percentile form
    orders: Annotated[tuple[Order, ...], Field(min_length=1)] = _ORDERS  # lambda
    formulas: Literal["tight", "as printed"] = "tight"  # proven improvements of equations 7 and 9, or these
    heavy_tails: Literal["charge", "warn"] = "charge"
    enabled: bool = True
    publish: bool = False

    @model_validator(mode="after")
    def _percentile_exists(self) -> BayesianSettings:
        if self.delta_mu >= self.percentile_delta:
            raise ValueError(f"percentile_delta: {self.percentile_delta:g} must be above delta_mu {self.delta_mu:g}")
        return self

    @property
    def failure(self) -> float:
        """The probability that any confidence bound of a run fails; a part of delta_mu."""
        return self.delta_mu * self.failure_share
