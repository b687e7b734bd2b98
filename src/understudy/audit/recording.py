"""Audits in files and in certificates: written as JSON, read back, and added to the certificate of a release."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from understudy.errors import InputError
from understudy.files import read_json, write_text
from understudy.privacy.audits import AuditRecord
from understudy.privacy.certificate import parse_certificate
from understudy.release import folders
from understudy.release.release import load
from understudy.release.verify import Verification, verify


def as_json(audits: Sequence[AuditRecord]) -> dict[str, object]:
    """Audits as one JSON object."""
    return {"audits": [audit.model_dump(exclude_none=True) for audit in audits]}


def write_audits(path: Path, audits: Sequence[AuditRecord]) -> None:
    """Write audits to a file that ``record`` reads."""
    write_text(path, json.dumps(as_json(audits), indent=2) + "\n")


def read_audits(path: Path) -> list[AuditRecord]:
    """The audits of such a file; anything else is one clear sentence."""
    raw = read_json(path, "audits")
    try:
        return [AuditRecord.model_validate(item) for item in raw["audits"]]
    except (KeyError, TypeError):
        raise InputError(f"audits: {path} holds no list of audits; write it with `understudy audit --to`") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"audits: {path}: {where}: {first['msg']}; write it with `understudy audit --to`") from None


def record(release_folder: Path, audits: Sequence[AuditRecord]) -> Verification:
    """Add audits to the certificate of a release and verify it; what was recorded before stays.

    Privacy: an audit on data that were not declared public would disclose them, and is refused.
    """
    place = folders.find_release(release_folder)
    if (place / folders.SIGNATURE).exists():
        raise InputError(f"audit: {place} is signed as it is; record audits in its run, and sign after that")
    release = load(place)
    if release.certificate.not_private is not None:
        raise InputError(f"audit: {release.certificate.not_private}; there is no certificate to add audits to")
    other = [audit.method for audit in audits if audit.method != release.method]
    if other:
        raise InputError(f"audit: it is one of {other[0]}, but the release was made by {release.method}")
    if not all(audit.declared_public for audit in audits):
        raise InputError(
            "audit: it discloses its data, which were not declared public; audit again on public data with "
            "--declared-public, in a run of its own"
        )
    known = list(release.certificate.audits or ())
    added = [audit for audit in audits if audit not in known]
    fields = release.certificate.model_dump(by_alias=True, exclude_none=True)
    fields["audits"] = [audit.model_dump(exclude_none=True) for audit in (*known, *added)]
    certificate = parse_certificate(fields)
    replace(release, certificate=certificate).save(place, allow_seeded=True)
    return verify(place)
