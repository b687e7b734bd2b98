"""The claim of kind ``data-dependent-votes``: what papers on PATE report where teachers agree, under its own names.

It stands beside the guarantees of a run, in its private folder, and in no certificate.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from understudy.privacy.bayesian_claim import rounded

WARNING = (
    "epsilon_votes, order and answers were computed from the votes without noise: publishing any of them discloses "
    "something about the data that no guarantee covers"
)
ASSUMPTIONS = (
    "it compares these data with data that have one record more or less, in that direction only; other data have the "
    "guarantee, and nothing else",
    "the cost along this run stands for its cost along all others, though the images asked about depend on earlier "
    "answers, so another run would ask about others",
    "of a query whose check failed nobody has seen the answer, so it costs its check alone",
)


class VoteClaim(BaseModel):
    """A bound on what the winners of noisy votes tell, given how clearly they won.

    ``queries`` is what a certificate charges, the larger of planned and executed. ``recorded_queries`` of them are on
    record, with ``answers`` winners that were shown (up to one for each coordinate of a query); all others count as if
    every one of their winners had been shown and had won by nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    kind: Literal["data-dependent-votes"] = "data-dependent-votes"
    epsilon_votes: Annotated[float, Field(ge=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    order: Annotated[float, Field(gt=1)]
    queries: Annotated[int, Field(ge=0)]
    recorded_queries: Annotated[int, Field(ge=0)]
    answers: Annotated[int, Field(ge=0)]
    unit: Literal["record"] = "record"
    assumptions: Annotated[tuple[str, ...], Field(min_length=1)] = ASSUMPTIONS
    warning: Annotated[str, Field(min_length=1)] = WARNING


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
