"""The certificate: the guarantee of a release, the events it follows from, and everything that was assumed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, Context, Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from understudy.configs import Count, Fraction, NonNegative, Share, Strict, validated
from understudy.errors import InputError
from understudy.files import laid_out, read_json
from understudy.privacy.audits import AuditRecord
from understudy.privacy.claims.statements import BayesianClaim
from understudy.privacy.events import Event, Unit
from understudy.privacy.filters import Statement

NOT_PRIVATE = "not private: trained without clipping or noise; do not publish"
NOT_COVERED = (
    "side channels (timing, memory, power)",
    "floating-point attacks on the noise: rows are clipped a hair inside the bound and noise is drawn and added in "
    "double precision from a generator keyed by the operating system, a heuristic mitigation",
    "the choice of hyper-parameters by looking at results on private data: see runs_on_this_data",
    "evaluation figures computed with private data",
    "that a run was aborted because too many of its private gradients were not finite",
)
"""What no certificate covers, word for word: ``verify`` looks for each sentence, so one that is reworded stays here too
(as an alternative), or releases that state it the old way are no longer verified."""
_INVALID = "the certificate is not valid (schema 1 to 3)"
ACCOUNT_SCHEMA = 3
_WIDE = Context(prec=400)  # enough digits for any float


class ClientLimits(Strict):
    """What bounds the answers of one client of a federation; set before the first query, never read from the run.

    In each of ``rounds`` rounds ``queries`` queries are routed over ``clients`` enrolled clients; a client answers at
    most ``slots`` of them a round and ``answers`` in all, and a query beyond that is answered with zero plus noise.
    """

    clients: Count
    rounds: Count
    queries: Count
    slots: Count
    answers: Count


class Guarantee(Strict):
    """One statement of differential privacy: for whom, against whom, and how much.

    ``coalition`` is the number of clients that a ``client`` viewer unites; ``limits`` bound what a client answers.
    """

    kind: Literal["dp"] = "dp"
    epsilon: NonNegative
    delta: Fraction
    unit: Unit = "record"
    adjacency: Literal["add-remove", "replace-one"] = "add-remove"
    viewer: Literal["public", "server", "client"] = "public"
    accountant: Literal["pld"] = "pld"
    delta_parts: dict[str, Share] | None = None
    coalition: Count | None = None
    limits: ClientLimits | None = None

    @property
    def accounted_delta(self) -> float:
        """The part of delta that the accountants may use; the other parts pay for stated failures (a cap, say)."""
        if self.delta_parts is None:
            return self.delta
        return self.delta - sum(part for name, part in self.delta_parts.items() if name != "accountant")


class Certificate(Strict):
    """Everything a reader needs to recompute the claim; see docs/privacy.md for what it does and does not prove.

    ``not_private`` stamps a generator of a method without privacy: it has no events and no guarantee, and nobody can
    take it for a certified one, because ``verify`` refuses it and ``headline`` does not exist. ``data_dependent`` holds
    claims of another kind, which nobody can recompute without the data: never without a guarantee beside them.
    ``account`` is what all runs that were charged to one account reveal together. Schema 2 is 1 with people as units,
    and schema 3 is 2 with an account; each is written only where it is needed.
    """

    schema_version: Annotated[int, Field(strict=True, ge=1, le=3, alias="schema")] = 1  # Literal[1] takes true
    method: str
    created: str
    software: dict[str, str]
    not_private: str | None = None  # before the next two, which depend on it
    guarantees: tuple[Guarantee, ...]
    events: tuple[Event, ...]
    data_dependent: tuple[BayesianClaim, ...] | None = None
    assumed_public: Annotated[tuple[str, ...], Field(min_length=1)]
    randomness: str
    runs_on_this_data: Count
    generator_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    config_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    stopped_because: str | None = None
    plan_raised: bool = False
    accounting: dict[str, str] | None = None
    not_covered: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    audits: tuple[AuditRecord, ...] | None = None
    account: Statement | None = None

    @field_validator("audits")
    @classmethod
    def _on_public_data(cls, audits: tuple[AuditRecord, ...] | None) -> tuple[AuditRecord, ...] | None:
        if not all(audit.declared_public for audit in audits or ()):
            raise ValueError("an audit discloses its data, so only audits on declared-public data are recorded")
        return audits

    @field_validator("guarantees", "events")
    @classmethod
    def _none_without_privacy(cls, values: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        stamped = info.data.get("not_private") is not None
        if stamped and values:
            raise ValueError("a generator that is not private has none")
        if not stamped and not values:
            raise ValueError("at least one is needed")
        return values

    @field_validator("data_dependent")
    @classmethod
    def _beside_a_guarantee(
        cls, claims: tuple[BayesianClaim, ...] | None, info: ValidationInfo
    ) -> tuple[BayesianClaim, ...] | None:
        if claims and not info.data.get("guarantees"):
            raise ValueError("a data-dependent claim stands beside a guarantee of differential privacy, never alone")
        return claims

    @model_validator(mode="after")
    def _people_need_schema_2(self) -> Certificate:
        if self.schema_version < schema_for(self.guarantees, self.events):
            raise ValueError("schema: 1, but people are units from schema 2 on")
        return self

    @model_validator(mode="after")
    def _accounts_need_schema_3(self) -> Certificate:
        if self.account is not None and self.schema_version < ACCOUNT_SCHEMA:
            raise ValueError(f"schema: {self.schema_version}, but an account is stated from schema 3 on")
        if self.account is not None and not self.guarantees:
            raise ValueError("account: a generator that is not private is charged to none")
        return self

    @property
    def headline(self) -> Guarantee:
        """The guarantee that is quoted first; an error where there is none."""
        if not self.guarantees:
            raise InputError(f"certificate: there is no guarantee ({self.not_private})")
        return self.guarantees[0]

    def to_json(self) -> str:
        """The content of ``certificate.json``."""
        return laid_out(self.model_dump(by_alias=True, exclude_none=True))


def schema_for(*parts: Iterable[Guarantee | Event]) -> int:
    """The oldest schema that can say who is protected."""
    return 2 if any(each.unit == "person" for part in parts for each in part) else 1


def read_certificate(path: Path) -> Certificate:
    """A certificate from its file, where no value is converted to another type; anything malformed is one sentence."""
    return validated(Certificate, read_json(path, "certificate"), "certificate", _INVALID, exact=True)


def parse_certificate(raw: object) -> Certificate:
    """A certificate from what a run knows."""
    return validated(Certificate, raw, "certificate", _INVALID)


def round_up(value: float, digits: int = 4) -> str:
    """A figure as text, rounded up, so that a claim never looks smaller than it is."""
    if not math.isfinite(value):
        return "infinite"
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING, _WIDE)
    text = f"{rounded:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
