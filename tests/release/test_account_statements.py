"""What ``verify`` makes of the statement that a certificate has of its account."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from understudy.privacy.certificate import read_certificate
from understudy.release.verify import Verification, verify

from .building import EPSILON, edit_json, make_release

TERMS = {"epsilon": 10.0, "delta": 1e-5, "unit": "record", "adjacency": "add-remove", "filter": "renyi", "order": 3.4}
ACCOUNT = {
    "name": "cells", "identity": "0" * 32, "terms": TERMS, "runs": 1, "total_epsilon": EPSILON, "total_delta": 1e-5
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_release(account=ACCOUNT).save(tmp_path / "release")


def changed(folder: Path, terms: dict[str, Any] | None = None, **fields: Any) -> Verification:
    """What ``verify`` says once the statement is changed."""

    def change(certificate: dict[str, Any]) -> None:
        certificate["account"].update(fields)
        certificate["account"]["terms"].update(terms or {})

    edit_json(folder / "certificate.json", change)
    return verify(folder)


def failing(result: Verification) -> list[str]:
    return [check.name for check in result.checks if not check.passed]


def test_a_statement_that_fits_is_verified_and_told_as_the_trainers_word(folder: Path) -> None:
    result = verify(folder)
    assert result.passed
    assert read_certificate(folder / "certificate.json").schema_version == 3
    (told,) = [line for line in result.stated if line.startswith("account cells: this run alone at epsilon 4.3772")]
    assert "stay within epsilon 10, delta 1e-05 (unit record, add-remove, filter renyi at order 3.4)" in told
    assert "account cells" in (folder / "README.md").read_text()


def test_several_runs_are_held_against_the_filter(folder: Path) -> None:
    """One run alone costs 4.3772; by the filter at order 3.4 the same events cost 5.6."""
    assert changed(folder, runs=2, total_epsilon=5.7).passed
    assert failing(changed(folder, runs=2, total_epsilon=5.0)) == ["account"]


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"total_epsilon": 4.0}, "account"),
        ({"total_delta": 1e-12}, "account"),
        ({"terms": {"unit": "person"}}, "account"),
        ({"terms": {"adjacency": "replace-one"}}, "account"),
        ({"terms": {"order": 3.45}}, "account"),
        ({"total_epsilon": 11.0}, "certificate"),
        ({"total_delta": 2e-5}, "certificate"),
        ({"runs": 0}, "certificate"),
        ({"name": "a/b"}, "certificate"),
        ({"terms": {"filter": "sum"}}, "certificate"),
    ],
)
def test_a_statement_that_cannot_be_true_is_refused(folder: Path, fields: dict[str, Any], check: str) -> None:
    result = changed(folder, **fields)
    assert failing(result) == [check]
    assert result.verdict == "refused"


def test_an_account_whose_delta_allows_to_publish_a_record_is_not_verified(folder: Path) -> None:
    result = changed(folder, total_delta=0.5, terms={"delta": 0.5})
    assert failing(result) == ["account"]
    assert result.verdict == "consistent"


def test_an_account_is_stated_from_schema_3_on(folder: Path) -> None:
    edit_json(folder / "certificate.json", lambda certificate: certificate.update(schema=2))
    assert failing(verify(folder)) == ["certificate"]


def test_a_release_without_an_account_is_as_it_was(tmp_path: Path) -> None:
    folder = make_release().save(tmp_path / "release")
    assert read_certificate(folder / "certificate.json").schema_version == 1
    assert not any(check.name == "account" for check in verify(folder).checks)
    assert "account" not in (folder / "certificate.json").read_text().replace("accountant", "").replace(
        "accounting", ""
    )
