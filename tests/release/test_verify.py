"""What ``verify`` confirms, and everything that it must catch."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from understudy.errors import InputError
from understudy.privacy.randomness.streams import SEEDED
from understudy.release.verify import Verification, verify

from ..helpers.certificates import AS_DESIGNED
from .building import DELTA, EPSILON, GAUSSIAN, edit_json, make_release

# The example of the design document for the domain of ``make_release``.
EXAMPLE = AS_DESIGNED | {"assumed_public": ["nominal_records: 1000", "classes: 4", "shape: 1x8x8", "range: 0..255"]}


def failed(result: Verification) -> set[str]:
    return {check.name for check in result.checks if not check.passed}


def certificate_of(folder: Path) -> Path:
    return folder / "certificate.json"


def put_example(folder: Path, **changes: Any) -> None:
    digest = hashlib.sha256((folder / "generator.safetensors").read_bytes()).hexdigest()
    certificate_of(folder).write_text(json.dumps(EXAMPLE | {"generator_sha256": digest} | changes))
    edit_json(folder / "config.json", lambda config: config.update(method="gs-wgan"))


def test_a_sound_release_is_confirmed_by_both_accountants(folder: Path):
    result = verify(folder)
    assert result.passed, failed(result)
    assert result.claimed == EPSILON
    assert result.delta == DELTA
    assert result.epsilon == pytest.approx(4.377178, abs=1e-4)
    names = {check.name for check in result.checks}
    assert {"guarantee 1: pld", "guarantee 1: fourier", "guarantee 1: renyi", "files", "randomness"} <= names


def test_it_says_what_it_proves_and_what_not(folder: Path):
    plain = json.loads(json.dumps(verify(folder).as_dict()))
    assert plain["passed"] is True
    assert any("accountants" in item for item in plain["proves"])
    assert any("side channels" in item for item in plain["does_not_prove"])
    assert any("happened" in item for item in plain["does_not_prove"])


def test_what_was_not_compared_is_not_said_to_be_proven(folder: Path):
    """A certificate without the hash of its config, and one of a method that is not known here."""
    planned, named = "the events are those that the released config plans", "the config is the one that"
    assert planned in verify(folder).proves
    edit_json(certificate_of(folder), lambda certificate: certificate.pop("config_sha256"))
    result = verify(folder)
    assert not [item for item in result.proves if item == planned or named in item]
    assert len([item for item in result.does_not_prove if planned in item or named in item]) == 2
    assert result.as_dict()["proves"] == list(result.proves)
    assert all(set(check) == {"name", "passed", "detail"} for check in result.as_dict()["checks"])


def test_the_plan_of_a_method_that_is_not_known_is_not_proven(folder: Path):
    edit_json(folder / "config.json", lambda config: config.update(method="another"))
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    edit_json(certificate_of(folder), lambda certificate: certificate.update(method="another", config_sha256=digest))
    result = verify(folder)
    assert result.passed
    assert "the events are those that the released config plans" not in result.proves
    assert "the config is the one that the certificate names" in result.proves


def test_the_example_of_the_design_is_accepted(folder: Path):
    put_example(folder)
    result = verify(folder)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.epsilon == pytest.approx(9.03, abs=0.001)


@pytest.mark.parametrize("epsilon", [9.02, 9.0285, 5.0])
def test_the_example_with_a_lower_claim_is_refused(folder: Path, epsilon: float):
    put_example(folder, guarantees=[EXAMPLE["guarantees"][0] | {"epsilon": epsilon}])
    result = verify(folder)
    assert {"guarantee 1: pld", "guarantee 1: fourier"} <= failed(result)


def test_an_event_with_nothing_optional_is_accepted(folder: Path):
    def strip(certificate: dict[str, Any]) -> None:
        for key in ("not_covered", "config_sha256"):
            certificate.pop(key, None)
        certificate["events"] = [{"mechanism": "gaussian", "noise_multiplier": 1.0, "count": 1}]

    edit_json(certificate_of(folder), strip)
    assert verify(folder).passed


def _guarantee(**fields: Any) -> Any:
    return lambda certificate: certificate["guarantees"][0].update(fields)


def _event(**fields: Any) -> Any:
    return lambda certificate: certificate["events"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        pytest.param(_guarantee(epsilon=4.3), "guarantee 1: pld", id="epsilon lowered"),
        pytest.param(_guarantee(epsilon=4.3), "guarantee 1: fourier", id="epsilon lowered, second accountant"),
        pytest.param(_guarantee(epsilon=4.3771), "guarantee 1: pld", id="epsilon lowered in the last digit"),
        pytest.param(_guarantee(delta=1e-6), "guarantee 1: pld", id="delta lowered"),
        pytest.param(_guarantee(epsilon="NaN"), "certificate", id="epsilon not a number"),
        pytest.param(_guarantee(kind="none"), "certificate", id="another kind of guarantee"),
        pytest.param(_guarantee(adjacency="replace-one"), "guarantee 1: kind", id="a stronger adjacency"),
        pytest.param(_guarantee(viewer="server"), "guarantee 1: kind", id="a stronger viewer"),
        pytest.param(_guarantee(delta_parts={"cap": 2e-5}), "guarantee 1: delta", id="parts exceed delta"),
        pytest.param(
            _guarantee(delta_parts={"accountant": 5e-6, "cap": 1e-6}), "guarantee 1: delta", id="parts do not add up"
        ),
        pytest.param(
            _guarantee(delta_parts={"accountant": 4e-6, "cap": 6e-6}), "guarantee 1: pld", id="less is left of delta"
        ),
        pytest.param(_event(planned=2), "certificate", id="charged below the plan"),
        pytest.param(_event(executed=2), "certificate", id="charged below what was executed"),
        pytest.param(_event(count=0), "certificate", id="nothing charged"),
        pytest.param(_event(count=2), "guarantee 1: pld", id="more executions than claimed"),
        pytest.param(_event(noise_multiplier=0.9), "guarantee 1: pld", id="less noise"),
        pytest.param(_event(noise_multiplier=0), "certificate", id="no noise"),
        pytest.param(_event(mechanism="laplace"), "certificate", id="unknown mechanism"),
        pytest.param(_event(sampling={"kind": "shuffled"}), "certificate", id="unknown sampling"),
        pytest.param(_event(sampling={"kind": "poisson", "rate": 2}), "certificate", id="impossible rate"),
        pytest.param(_event(discount=0.5), "certificate", id="unknown field of an event"),
        pytest.param(lambda certificate: certificate.update(note="trust me"), "certificate", id="unknown field"),
        pytest.param(lambda certificate: certificate.update(schema=2), "certificate", id="unknown schema"),
        pytest.param(lambda certificate: certificate.update(events=[]), "certificate", id="no events"),
        pytest.param(lambda certificate: certificate.update(guarantees=[]), "certificate", id="no guarantee"),
        pytest.param(lambda certificate: certificate.pop("generator_sha256"), "certificate", id="no hash"),
        pytest.param(lambda certificate: certificate.update(randomness=SEEDED), "randomness", id="seeded"),
        pytest.param(lambda certificate: certificate.update(randomness="dice"), "randomness", id="other randomness"),
        pytest.param(lambda certificate: certificate.update(method="gs-wgan"), "generator", id="another method"),
        pytest.param(
            lambda certificate: certificate.update(assumed_public=["nominal_records: 9"]),
            "generator",
            id="hidden facts",
        ),
        pytest.param(
            lambda certificate: certificate["guarantees"].append({"epsilon": 1.0, "delta": DELTA}),
            "guarantee 2: pld",
            id="a false second guarantee",
        ),
        pytest.param(
            lambda certificate: certificate.update(
                events=[GAUSSIAN | {"noise_multiplier": 10 + n} for n in range(2000)]
            ),
            "events",
            id="far too many events",
        ),
    ],
)
def test_a_changed_certificate_is_caught(folder: Path, change: Any, check: str):
    edit_json(certificate_of(folder), change)
    result = verify(folder)
    assert check in failed(result), result.checks
    assert not result.passed


def test_a_seeded_release_is_caught(tmp_path: Path):
    place = make_release(randomness=SEEDED).save(tmp_path / "seeded", allow_seeded=True)
    assert failed(verify(place)) == {"randomness"}


@pytest.mark.parametrize(("name", "check"), [("generator.safetensors", "weights hash"), ("config.json", "config hash")])
def test_changed_files_are_caught(folder: Path, name: str, check: str):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    assert check in failed(verify(folder))


def test_foreign_weights_with_a_matching_hash_are_caught(folder: Path):
    (folder / "generator.safetensors").write_bytes(b"\x80\x04pickle")
    digest = hashlib.sha256(b"\x80\x04pickle").hexdigest()
    edit_json(certificate_of(folder), lambda certificate: certificate.update(generator_sha256=digest))
    assert failed(verify(folder)) == {"generator"}


@pytest.mark.parametrize("name", ["critic.safetensors", ".hidden", "ledger.jsonl"])
def test_an_extra_file_is_caught(folder: Path, name: str):
    (folder / name).write_text("private")
    assert failed(verify(folder)) == {"files"}


def test_an_extra_folder_is_caught(folder: Path):
    (folder / "private").mkdir()
    assert failed(verify(folder)) == {"files"}


@pytest.mark.parametrize(
    "name", ["generator.safetensors", "config.json", "certificate.json", "README.md", "samples.png"]
)
def test_a_missing_file_is_caught(folder: Path, name: str):
    (folder / name).unlink()
    assert "files" in failed(verify(folder))


@pytest.mark.parametrize("name", ["generator.safetensors", "samples.png"])
def test_a_link_is_caught(folder: Path, tmp_path: Path, name: str):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert "files" in failed(verify(folder))


def test_a_pipe_or_device_is_never_opened(folder: Path):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert "files" in failed(verify(folder))
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("/dev/zero")
    assert "files" in failed(verify(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"schema": NaN}'])
def test_a_hostile_certificate_is_a_failed_check(folder: Path, content: bytes):
    certificate_of(folder).write_bytes(content)
    result = verify(folder)
    assert "certificate" in failed(result)
    assert result.epsilon is None


@pytest.mark.parametrize(
    "event",
    [
        {"noise_multiplier": 1e-300, "count": 10**18},
        {"noise_multiplier": 1e300, "count": 10**30},
        {"noise_multiplier": 1.0, "count": 10**15, "sampling": {"kind": "poisson", "rate": 1e-300}},
        {"noise_multiplier": 1.0, "count": 10**12, "sampling": {"kind": "routed", "subsets": 10**400}},
    ],
)
def test_extreme_events_end_in_an_answer(folder: Path, event: dict[str, Any]):
    edit_json(certificate_of(folder), lambda certificate: certificate.update(events=[event]))
    assert isinstance(verify(folder).passed, bool)


def test_a_replaced_unit_is_covered_by_unsampled_answers_only(folder: Path):
    def change(certificate: dict[str, Any]) -> None:
        certificate["guarantees"][0].update(adjacency="replace-one", viewer="server", unit="client")
        certificate["events"][0].update(sensitivity="2C", unit="client")
        certificate.pop("config_sha256")  # no method of this certificate plans such events

    edit_json(certificate_of(folder), change)
    assert verify(folder).passed


@pytest.mark.parametrize(
    "claim",
    [
        {"viewer": "server", "adjacency": "replace-one"},
        {"viewer": "client", "coalition": 1},
        {"adjacency": "replace-one"},
    ],
    ids=str,
)
def test_whoever_trains_on_records_sees_them_so_nothing_holds_against_him(folder: Path, claim: dict[str, Any]):
    """Unsampled events of sensitivity 2C are also made centrally, from votes of teachers for instance."""
    edit_json(certificate_of(folder), _event(sensitivity="2C"))
    edit_json(certificate_of(folder), _guarantee(**claim))
    assert "guarantee 1: kind" in failed(verify(folder))


@pytest.mark.parametrize("missing", ["assumed_public", "randomness", "runs_on_this_data", "software", "created"])
def test_what_a_reader_must_know_cannot_be_left_out(folder: Path, missing: str):
    edit_json(certificate_of(folder), lambda certificate: certificate.pop(missing))
    assert failed(verify(folder)) == {"certificate"}


def test_events_that_the_config_does_not_plan_are_caught(folder: Path):
    """More noise in the certificate than in the config that it is tied to, with a claim that fits the noise."""
    edit_json(certificate_of(folder), _event(noise_multiplier=50.0))
    assert failed(verify(folder)) == {"plan"}


@pytest.mark.parametrize("fields", [{"sensitivity": "2C"}, {"sensitivity": "sqrt(2)C"}, {"sensitivity": None}], ids=str)
def test_an_event_of_another_sensitivity_than_planned_is_caught(folder: Path, fields: dict[str, Any]):
    """The same multiplier over a larger sensitivity would be more noise than was added."""
    edit_json(certificate_of(folder), _event(**fields))
    assert failed(verify(folder)) == {"plan"}


def test_events_of_another_unit_than_planned_are_caught(folder: Path):
    """A run that protects records does not protect clients, whatever its certificate says."""
    edit_json(certificate_of(folder), _event(unit="client"))
    edit_json(certificate_of(folder), _guarantee(unit="client"))
    assert failed(verify(folder)) == {"plan"}


def test_a_raised_plan_is_said_aloud(folder: Path):
    edit_json(certificate_of(folder), lambda certificate: certificate.update(plan_raised=True))
    result = verify(folder)
    assert result.passed
    assert any("the plan was raised" in check.detail for check in result.checks)


@pytest.mark.parametrize(
    "claim",
    [
        {"unit": "client"},
        {"viewer": "server"},
        {"viewer": "client"},
        {"adjacency": "replace-one"},
        {"accountant": "none"},
    ],
    ids=str,
)
def test_a_claim_that_the_events_do_not_carry_is_caught(folder: Path, claim: dict[str, str]):
    edit_json(certificate_of(folder), _guarantee(**claim))
    assert failed(verify(folder))


def test_parts_of_delta_are_respected(folder: Path):
    parts = {"accountant": DELTA, "cap": 1e-9}
    edit_json(certificate_of(folder), _guarantee(delta=DELTA + 1e-9, delta_parts=parts))
    assert verify(folder).passed


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(InputError, match="does not exist"):
        verify(tmp_path / "nothing")


def test_an_empty_folder_fails(tmp_path: Path):
    assert failed(verify(tmp_path)) >= {"files", "certificate"}
