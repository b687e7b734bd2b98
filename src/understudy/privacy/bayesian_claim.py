"""The claim of kind ``bayesian-dp`` in a certificate: a figure about typical units, under its own names.

It is never an epsilon of differential privacy: it stands in a list of its own beside the guarantees, says what it
assumes, and depends on the data, so that showing it discloses something.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
Share = Annotated[float, Field(ge=0, le=1)]

WARNING = (
    "epsilon_mu was computed from the data without noise: publishing it discloses something about them that no "
    "guarantee covers; leave it out of what you hand on if that matters"
)
ASSUMPTIONS = (
    "the unit in question is one more draw from the distribution that the data come from; outliers have the worst-case "
    "guarantee only",
    "the cost at the weights that this run went through stands for its cost at all others",
    "Student's t covers the mean over units of exp(steps * cost): gradients longer than those sampled are rare enough",
)
_DIGITS = 1e-9


class Percentile(BaseModel):
    """For all but a share of ``1 - share`` of the units the loss exceeds epsilon_mu with probability delta only.

    By Markov's inequality (equation 12): the mean over units of that probability is at most delta_mu.
    """

    model_config = _STRICT
    delta: Annotated[float, Field(gt=0, lt=1)]
    share: Share


class BayesianClaim(BaseModel):
    """(epsilon_mu, delta_mu)-Bayesian differential privacy of one run, with all that it rests on.

    ``delta_mu`` contains ``failure``, the probability that the confidence bound fails somewhere in the run.
    ``estimated_steps`` of the ``steps`` were estimated; the others, and ``charged_in_full`` of these at the order that
    gave the figure, cost what they cost in the worst case. ``heavy_tailed`` is the share of estimated steps, at that
    order, where the samples show that the bound is not to be trusted.
    """

    model_config = _STRICT
    kind: Literal["bayesian-dp"] = "bayesian-dp"
    epsilon_mu: Annotated[float, Field(ge=0)]
    delta_mu: Annotated[float, Field(gt=0, lt=1)]
    failure: Annotated[float, Field(gt=0, lt=1)]
    confidence: Share
    percentile: Percentile
    order: Annotated[int, Field(ge=1)]
    pairs: Annotated[int, Field(ge=3)]
    steps: Annotated[int, Field(ge=1)]
    estimated_steps: Annotated[int, Field(ge=0)]
    charged_in_full: Annotated[int, Field(ge=0)] = 0
    heavy_tailed: Share = 0.0
    directions: Literal["tight", "as printed"] = "tight"
    unit: Literal["record"] = "record"
    assumptions: Annotated[tuple[str, ...], Field(min_length=1)] = ASSUMPTIONS
    warning: Annotated[str, Field(min_length=1)] = WARNING

    @model_validator(mode="after")
    def _adds_up(self) -> BayesianClaim:
        if self.failure >= self.delta_mu:
            raise ValueError(f"failure {self.failure:g} is not below delta_mu {self.delta_mu:g}, which contains it")
        if self.confidence > 1 - self.failure * (1 - _DIGITS):
            raise ValueError(f"confidence {self.confidence} is above 1 - failure")
        if self.percentile.share > markov_share(self.delta_mu, self.percentile.delta) + _DIGITS:
            raise ValueError(f"percentile: share {self.percentile.share} does not follow from delta_mu")
        if not self.charged_in_full <= self.estimated_steps <= self.steps:
            raise ValueError(f"{self.estimated_steps} estimated of {self.steps} steps")
        return self

    @property
    def trusted(self) -> bool:
        """Whether the samples gave no sign that the confidence bound fails."""
        return self.heavy_tailed == 0 or self.charged_in_full == round(self.heavy_tailed * self.estimated_steps)


def markov_share(delta_mu: float, delta: float) -> float:
    """The share of units for which (epsilon_mu, delta) holds, by Markov's inequality."""
    return max(0.0, 1 - delta_mu / delta)


def claim_in_words(claim: BayesianClaim) -> list[str]:
    """The claim as sentences, under its own name, with its warning last."""
    rest = 1 - claim.percentile.share
    sentences = [
        f"Bayesian DP (kind bayesian-dp, not an epsilon of differential privacy): epsilon_mu "
        f"{rounded(claim.epsilon_mu)}, delta_mu {claim.delta_mu:g}, for a record drawn from the same distribution "
        "as the data.",
        f"So, by Markov's inequality, for all but a share of {rest:.1g} of such records the privacy loss exceeds "
        f"epsilon_mu with a probability of at most {claim.percentile.delta:g}; statistical confidence "
        f"1 - {claim.failure:.1g}. Outliers have the worst-case guarantee only.",
    ]
    if not claim.trusted:
        sentences.append(
            f"Do not rely on it: in {claim.heavy_tailed:.1%} of the steps the sampled gradients show tails for which "
            "the confidence bound is known to fail."
        )
    return [*sentences, f"Warning: {claim.warning}."]


def rounded(figure: float) -> str:
    """A figure as text, rounded up to four decimals."""
    return f"{math.ceil(figure * 1e4 - 1e-6) / 1e4:g}"
