"""Where a run keeps the claims that depend on its data: stamped, in its private folder, beside its guarantees.

Privacy: what is kept is private. A release holds it only where its owner asked for that before the run began.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from understudy.errors import InputError
from understudy.files import read_json, write_text
from understudy.privacy.certificate import Guarantee
from understudy.privacy.claims.bayesian_claim import BayesianClaim, claim_in_words
from understudy.privacy.claims.votes import VoteClaim, vote_claim_in_words

DataDependentClaim = Annotated[BayesianClaim | VoteClaim, Field(discriminator="kind")]

STAMP = "not private: do not publish"
_ADAPTER: TypeAdapter[tuple[DataDependentClaim, ...]] = TypeAdapter(tuple[DataDependentClaim, ...])


def keep_claims(path: Path, claims: Sequence[DataDependentClaim], guarantees: Sequence[Guarantee]) -> None:
    """Write the claims, never without the worst-case figures of the same run; nothing where there are none."""
    if not claims:
        return
    content = {
        "stamp": STAMP,
        "guarantees": [guarantee.model_dump(exclude_none=True) for guarantee in guarantees],
        "data_dependent": [claim.model_dump() for claim in claims],
    }
    write_text(path, json.dumps(content, indent=2) + "\n")


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
