"""Certificates: the stated schema, nothing unknown, and clear sentences about files that are none."""

import hashlib
import json

import pytest

from understudy.errors import InputError
from understudy.files import file_sha256
from understudy.privacy.certificate import Certificate, Guarantee, parse_certificate, read_certificate

from ..helpers.certificates import AS_DESIGNED


def test_the_designed_form_is_read_and_its_first_guarantee_is_the_headline():
    certificate = parse_certificate(AS_DESIGNED)
    assert certificate.headline.epsilon == 9.03
    assert certificate.events[0].count == 640000
    assert certificate.runs_on_this_data == 1


def test_what_is_written_is_what_is_read(tmp_path):
    certificate = parse_certificate(AS_DESIGNED)
    (tmp_path / "certificate.json").write_text(certificate.to_json())
    assert read_certificate(tmp_path / "certificate.json") == certificate
    written = json.loads(certificate.to_json())
    assert written["schema"] == 1
    assert _within(AS_DESIGNED, written)


def _within(part: object, whole: object) -> bool:
    """Whether everything that is stated is written; more may be, where defaults are spelled out."""
    if isinstance(part, dict):
        return all(key in whole and _within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(_within, part, whole))
    return part == whole


def _changed(path: str, value: object) -> dict:
    changed = json.loads(json.dumps(AS_DESIGNED))
    place = changed
    *parents, last = path.split(".")
    for parent in parents:
        place = place[int(parent) if parent.isdigit() else parent]
    place[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 4),
        ("surprise", 1),
        ("guarantees", []),
        ("guarantees.0.kind", "hope"),
        ("guarantees.0.epsilon", -1),
        ("guarantees.0.epsilon", float("nan")),
        ("guarantees.0.epsilon", float("inf")),
        ("guarantees.0.delta", 0),
        ("guarantees.0.delta", 1),
        ("guarantees.0.unit", "household"),
        ("guarantees.0.adjacency", "implied"),
        ("guarantees.0.viewer", "nobody"),
        ("guarantees.0.delta_parts", {"cap": -1e-6}),
        ("events", []),
        ("events.0.mechanism", "laplace"),
        ("events.0.count", 1),
        ("runs_on_this_data", 0),
        ("generator_sha256", "0" * 63),
        ("generator_sha256", "G" * 64),
        ("config_sha256", ""),
    ],
)
def test_a_certificate_that_is_not_of_the_schema_is_refused_by_the_place_of_the_mistake(path, value):
    place = path.split(".")[0]
    with pytest.raises(InputError, match=rf"certificate: {place}.*; the certificate is not valid \(schema 1 to 3\)"):
        parse_certificate(_changed(path, value))


@pytest.mark.parametrize(
    "missing",
    ["method", "created", "software", "guarantees", "events", "assumed_public", "randomness", "generator_sha256"],
)
def test_a_certificate_without_its_main_parts_is_refused(missing):
    with pytest.raises(InputError, match=f"certificate: {missing}: "):
        parse_certificate({key: value for key, value in AS_DESIGNED.items() if key != missing})


def test_the_accountants_may_use_what_the_other_parts_of_delta_leave():
    assert Guarantee(epsilon=1, delta=1e-5).accounted_delta == 1e-5
    parts = {"accountant": 9e-6, "cap": 1e-6}
    assert Guarantee(epsilon=1, delta=1e-5, delta_parts=parts).accounted_delta == pytest.approx(9e-6)
    assert Guarantee(epsilon=1, delta=1e-5, delta_parts={"cap": 4e-6}).accounted_delta == pytest.approx(6e-6)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", "the certificate is not valid"),
        (b"null", "the certificate is not valid"),
        (b" " * (4 * 2**20 + 1), "is larger than"),
    ],
)
def test_a_file_that_holds_no_certificate_is_one_sentence(tmp_path, content, sentence):
    (tmp_path / "certificate.json").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        read_certificate(tmp_path / "certificate.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"certificate: .*certificate\.json cannot be read"):
        read_certificate(tmp_path / "certificate.json")


def test_hashes_are_those_of_the_whole_file(tmp_path):
    content = bytes(range(256)) * 10_000  # more than is read at once
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_certificate_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        parse_certificate(AS_DESIGNED).method = "another"
    assert Certificate.model_config["extra"] == "forbid"
