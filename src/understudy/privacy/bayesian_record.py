"""Where a run keeps the claims that depend on its data: stamped, in its private folder, beside its guarantees.

Privacy: what is kept is private. A release holds it only where its owner asked for that before the run began.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from understudy.errors import InputError
from understudy.files import write_text
from understudy.privacy.bayesian_claim import BayesianClaim
from understudy.privacy.certificate import Guarantee, read_json

STAMP = "not private: do not publish"
_NAME = "data-dependent.json"


def claims_path(private: Path) -> Path:
    """The file of the claims in the private folder of a run."""
    return private / _NAME


def keep_claims(private: Path, claims: Sequence[BayesianClaim], guarantees: Sequence[Guarantee]) -> None:
    """Write the claims, never without the worst-case figures of the same run; nothing where there are none."""
    if not claims:
        return
    content = {
        "stamp": STAMP,
        "guarantees": [guarantee.model_dump(exclude_none=True) for guarantee in guarantees],
        "data_dependent": [claim.model_dump() for claim in claims],
    }
    write_text(claims_path(private), json.dumps(content, indent=2) + "\n")


def kept_claims(private: Path) -> tuple[BayesianClaim, ...]:
    """What a run keeps; none where there is no such file."""
    path = claims_path(private)
    if not path.is_file():
        return ()
    try:
        return tuple(BayesianClaim.model_validate(claim) for claim in read_json(path, "claims")["data_dependent"])
    except (KeyError, TypeError, ValidationError):
        raise InputError(f"claims: {path} does not hold the claims of a run; the file is damaged") from None
