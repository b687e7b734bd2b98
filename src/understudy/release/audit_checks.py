"""Checks of the audits that a certificate records: made elsewhere, on public data, and within what they audit."""

from __future__ import annotations

from collections.abc import Iterator

from understudy.errors import UnderstudyError
from understudy.privacy import accounting
from understudy.privacy.audits import AuditRecord
from understudy.privacy.certificate import Certificate

_MOST_AUDITS = 100
Found = tuple[str, bool, str]


def check_audits(certificate: Certificate) -> Iterator[Found]:
    """Name, outcome and detail of one check for each recorded audit."""
    audits = certificate.audits or ()
    if len(audits) > _MOST_AUDITS:
        yield "audits", False, f"{len(audits)} audits; at most {_MOST_AUDITS} are checked"
        return
    for number, audit in enumerate(audits, start=1):
        try:
            problem = _problem(audit, certificate)
        except (UnderstudyError, ValueError, ArithmeticError, MemoryError) as error:
            problem = f"its claim cannot be recomputed ({error})"
        yield f"audit {number}", problem is None, problem or audit.in_words()


def _problem(audit: AuditRecord, certificate: Certificate) -> str | None:
    """Why an audit does not speak for the release, or speaks against it.

    What it claims is recomputed from its events, so that a claim that was raised afterwards hides nothing.
    """
    if audit.method != certificate.method:
        return f"it audits {audit.method}, not {certificate.method}"
    if not audit.declared_public:
        return "it was not made on declared-public data"
    if (audit.generator_sha256 is None) != (audit.kind == "mechanism"):
        return "the audit of a run names the generator it made, and no other audit does"
    if audit.generator_sha256 == certificate.generator_sha256:
        return "it was made on the run that is released, not on one of its own"
    claimed = accounting.certified_epsilon(audit.events, audit.delta)
    if audit.claimed > claimed:
        return f"it says that its events cost {audit.claimed:g}, but they cost {claimed:g}"
    if audit.epsilon_lower > claimed:
        return (
            f"epsilon is at least {audit.epsilon_lower:.4g} with confidence {audit.confidence:.4%}, above the "
            f"{claimed:.4g} that follows from its events: the method does not keep its word"
        )
    return None
