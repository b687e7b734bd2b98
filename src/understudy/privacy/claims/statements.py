"""Claims that depend on the data, as they are stated and kept: figures of other kinds, beside the guarantees of a run.

Neither kind is an epsilon of differential privacy. ``bayesian-dp`` is a figure about typical units; a certificate may
hold it, in a list of its own, where the owner asked for that before the run began. ``data-dependent-votes`` is a bound
on what votes cost where teachers agree; no certificate holds it. Both have names of their own, say what they assume,
and stand in the private folder of their run.

Privacy: a claim is computed from the data without noise, so it is private and showing it discloses something. No numpy
and no torch here: who computes them is ``bayesian`` and ``votes``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from understudy.configs import Config, Count, Fraction, Natural, NonNegative, Strict
from understudy.errors import InputError
from understudy.files import read_json, write_text

if TYPE_CHECKING:
    from understudy.privacy.certificate import Guarantee

# Bayesian differential privacy

_ORDERS = (*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), 72, 80, 96, 112, 128, 160, 192, 256)
Order = Annotated[int, Field(ge=1, le=512)]


class BayesianConfig(Config):
    """How a run is accounted beside its guarantee; none of it changes the run or its epsilon.

    ``heavy_tails`` says what happens where too few samples carry an estimate: ``charge`` never goes below Student's
    bound of the whole run's samples together, and takes the worst case where even of these too few count; ``warn``
    keeps the estimate of the paper, step by step, and marks the claim as not to be relied on. ``publish`` puts the
    claim into the certificate, which discloses something about the data; without it the claim stays in the private
    folder.
    """

    pairs: Annotated[int, Field(ge=3, le=4096)] = 32  # m
    delta_mu: Fraction = 1e-10
    failure_share: Fraction = 0.5  # of delta_mu, for the confidence bounds of all steps and orders together
    percentile_delta: Fraction = 1e-5  # the delta of the percentile form
    orders: Annotated[tuple[Order, ...], Field(min_length=1)] = _ORDERS  # lambda
    formulas: Literal["tight", "as printed"] = "tight"  # proven improvements of equations 7 and 9, or these
    heavy_tails: Literal["charge", "warn"] = "charge"
    enabled: bool = True
    publish: bool = False

    @model_validator(mode="after")
    def _percentile_exists(self) -> BayesianConfig:
        if self.delta_mu >= self.percentile_delta:
            raise ValueError(f"percentile_delta: {self.percentile_delta:g} must be above delta_mu {self.delta_mu:g}")
        return self

    @property
    def failure(self) -> float:
        """The probability that any confidence bound of a run fails; a part of delta_mu."""
        return self.delta_mu * self.failure_share


Portion = Annotated[float, Field(ge=0, le=1)]

WARNING = (
    "epsilon_mu, epsilon_mu_distribution_free, order, estimated_steps, effective_samples and trusted were computed "
    "from the data without noise: publishing any of them discloses something about the data that no guarantee covers"
)
NOT_COVERED = "the data-dependent figures in this certificate"
ASSUMPTIONS = (
    "the unit in question is one more draw from the distribution that the data come from; outliers have the worst-case "
    "guarantee only",
    "the cost at the weights that this run went through stands for its cost at all others",
    "Student's t covers the mean over units of exp(steps * cost): gradients longer than those sampled are rare enough",
    "members stand for newcomers: the samples are members of these data, drawn with replacement, so the figure is that "
    "of a random member, and a record that was not among them is taken to be distributed like them",
)
FEWEST_EFFECTIVE = 100
"""Where fewer samples carry a mean, Student's t is not trusted with it."""
_DIGITS = 1e-9


class Percentile(Strict):
    """For a ``share`` of the units, data with and without that unit are (epsilon_mu, delta)-indistinguishable.

    By Markov's inequality (equation 12): the mean over units of the delta that belongs to epsilon_mu is below delta_mu.
    """

    delta: Fraction
    share: Portion


class BayesianClaim(Strict):
    """(epsilon_mu, delta_mu)-Bayesian differential privacy of one run, with all that it rests on.

    ``delta_mu`` contains ``failure``, the probability that the confidence bound fails somewhere in the run.
    ``estimated_steps`` of the ``steps`` were estimated; the others count at their worst case. ``effective_samples`` is
    the number of sampled gradients that carry the estimate at its order; where they are few, or show more together than
    the bounds of the single steps do, the estimate is not ``trusted``. ``epsilon_mu_distribution_free`` does without
    Student's t: for members it holds whatever the law of their gradients' lengths.
    """

    kind: Literal["bayesian-dp"] = "bayesian-dp"
    epsilon_mu: NonNegative
    delta_mu: Fraction
    failure: Fraction
    confidence: Portion
    percentile: Percentile
    order: Count
    pairs: Annotated[int, Field(ge=3)]
    steps: Count
    estimated_steps: Natural
    effective_samples: NonNegative
    trusted: bool
    epsilon_mu_distribution_free: NonNegative
    formulas: Literal["tight", "as printed"] = "tight"
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
        if self.estimated_steps > self.steps:
            raise ValueError(f"{self.estimated_steps} estimated of {self.steps} steps")
        if self.trusted and self.estimated_steps and self.effective_samples < FEWEST_EFFECTIVE:
            raise ValueError(f"trusted: {self.effective_samples:g} effective samples are too few for that")
        return self


def as_published(claim: BayesianClaim) -> BayesianClaim:
    """A claim as a certificate states it: no finer than a reader needs, and never rounded in our favour."""
    return claim.model_copy(update={"effective_samples": _leading_digit(claim.effective_samples)})


def _leading_digit(count: float) -> float:
    """A count rounded down to one significant digit."""
    if count < 1:
        return 0.0
    power = 10 ** (len(str(int(count))) - 1)
    return float(int(count) // power * power)


def markov_share(delta_mu: float, delta: float) -> float:
    """The share of units for which (epsilon_mu, delta) holds, by Markov's inequality."""
    return max(0.0, 1 - delta_mu / delta)


def claim_in_words(claim: BayesianClaim) -> list[str]:
    """The claim as sentences, under its own name, with its warning last."""
    rest = 1 - claim.percentile.share
    sentences = [
        f"Bayesian DP (kind bayesian-dp, not an epsilon of differential privacy): epsilon_mu "
        f"{rounded(claim.epsilon_mu)}, delta_mu {claim.delta_mu:g}, for a random member of these data; for another "
        "record from the same distribution only as far as members stand for it.",
        f"So, by Markov's inequality, for all but a share of {rest:.1g} of the members data with and without that "
        f"member are (epsilon_mu, {claim.percentile.delta:g})-indistinguishable; statistical confidence "
        f"1 - {claim.failure:.1g}. Outliers have the worst-case guarantee only.",
    ]
    if not claim.trusted:
        sentences.append(
            f"Do not rely on it: only {claim.effective_samples:.0f} of {claim.estimated_steps * claim.pairs} sampled "
            "gradients carry the estimate, and for such tails its confidence bound is known to fail."
        )
    sentences.append(
        f"For members, whatever the law of their gradients' lengths: epsilon_mu "
        f"{rounded(claim.epsilon_mu_distribution_free)} instead."
    )
    return [*sentences, f"Warning: {claim.warning}."]


def rounded(figure: float) -> str:
    """A figure as text, rounded up to four decimals."""
    return f"{math.ceil(figure * 1e4 - 1e-6) / 1e4:g}"


# Votes

VOTE_WARNING = (
    "epsilon_votes, order and answers were computed from the votes without noise: publishing any of them discloses "
    "something about the data that no guarantee covers"
)
VOTE_ASSUMPTIONS = (
    "it compares these data with data that have one record more or less, in that direction only; other data have the "
    "guarantee, and nothing else",
    "the cost along this run stands for its cost along all others, though the images asked about depend on earlier "
    "answers, so another run would ask about others",
    "of a query whose check failed nobody has seen the answer, so it costs its check alone",
)


class VoteClaim(Strict):
    """A bound on what the winners of noisy votes tell, given how clearly they won.

    ``queries`` is what a certificate charges, the larger of planned and executed. ``recorded_queries`` of them are on
    record, with ``answers`` winners that were shown (up to one for each coordinate of a query); all others count as if
    every one of their winners had been shown and had won by nothing.
    """

    kind: Literal["data-dependent-votes"] = "data-dependent-votes"
    epsilon_votes: NonNegative
    delta: Fraction
    order: Annotated[float, Field(gt=1)]
    queries: Natural
    recorded_queries: Natural
    answers: Natural
    unit: Literal["record"] = "record"
    assumptions: Annotated[tuple[str, ...], Field(min_length=1)] = VOTE_ASSUMPTIONS
    warning: Annotated[str, Field(min_length=1)] = VOTE_WARNING


def vote_claim_in_words(claim: VoteClaim) -> list[str]:
    """The claim as sentences, under its own name, with its warning last."""
    return [
        f"Votes (kind data-dependent-votes, not an epsilon of differential privacy): for these data and these "
        f"{claim.queries:,} queries, of which {claim.recorded_queries:,} are on record with {claim.answers:,} winners "
        f"shown and all others count at their worst case, epsilon_votes {rounded(claim.epsilon_votes)} at delta "
        f"{claim.delta:g}. Where it is above the guarantee, teachers agreed too little for it to tell anything.",
        f"What it rests on: {'; '.join(claim.assumptions)}.",
        f"Warning: {claim.warning}.",
    ]


# What a run keeps

DataDependentClaim = Annotated[BayesianClaim | VoteClaim, Field(discriminator="kind")]

STAMP = "not private: do not publish"
_ADAPTER: TypeAdapter[tuple[DataDependentClaim, ...]] = TypeAdapter(tuple[DataDependentClaim, ...])


def keep_claims(path: Path, claims: Sequence[DataDependentClaim], guarantees: Sequence[Guarantee]) -> None:
    """Write the claims, never without the worst-case figures of the same run."""
    content = {
        "stamp": STAMP,
        "guarantees": [guarantee.model_dump(exclude_none=True) for guarantee in guarantees],
        "data_dependent": [claim.model_dump() for claim in claims],
    }
    write_text(path, json.dumps(content, indent=2) + "\n", private=True)


def kept_claims(path: Path) -> tuple[DataDependentClaim, ...]:
    """What a run keeps; none where there is no such file."""
    if not path.is_file():
        return ()
    try:
        return _ADAPTER.validate_python(read_json(path, "claims")["data_dependent"])
    except (KeyError, TypeError, ValidationError):
        raise InputError(f"claims: {path} does not hold the claims of a run; the file is damaged") from None


def kept_claim_in_words(claim: DataDependentClaim) -> list[str]:
    """A claim of any kind as sentences."""
    return vote_claim_in_words(claim) if isinstance(claim, VoteClaim) else claim_in_words(claim)
