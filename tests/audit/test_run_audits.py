"""Run audits: canaries by fair coins, an attack that finds them where noise is small, and the way to a certificate."""

from __future__ import annotations

import json

import numpy as np
import pytest

from understudy.audit import recording
from understudy.audit.canaries import make_canaries, with_canaries
from understudy.audit.mechanisms import AuditOptions, audit_mechanism
from understudy.audit.probes import PROBES
from understudy.audit.runs import RunAuditOptions, audit_run, choose_guesses, guess
from understudy.errors import InputError
from understudy.privacy.audits import AuditRecord
from understudy.privacy.budget import Budget
from understudy.privacy.randomness.streams import Randomness
from understudy.release.verify import verify

from ..federated.helpers import federated_data
from ..federated.helpers import tiny_config as tiny_federation
from ..helpers.cases import CASES
from ..helpers.data import tiny_data
from ..helpers.runs import tiny_train
from ..release.building import edit_config, put_json

FALSE_ALARM = 1e-6
MERF = {"method": {"frequencies": 400, "steps": 2, "batch": 12, "latent": 2, "width": 4}, "runtime": {"device": "cpu"}}


def settings(**changes) -> RunAuditOptions:
    given = {"canaries": 400, "confidence": 1 - FALSE_ALARM, "declared_public": True, "config": MERF}
    return RunAuditOptions(**{**given, **changes})


def test_canaries_are_balanced_and_only_those_included_reach_the_data():
    """400 fair coins lie within 5 deviations of one half; false alarms: 6e-7."""
    canaries, data = make_canaries(tiny_data().domain, 400, Randomness().bits), tiny_data()
    assert abs(canaries.included.sum() - 200) < 5 * 10
    audited = with_canaries(data, canaries, as_clients=False)
    assert len(audited) == len(data) + canaries.included.sum()
    assert audited.domain.nominal_records == data.domain.nominal_records + 200, "declared, whoever is included"
    assert np.array_equal(audited.images[len(data) :], canaries.images[canaries.included])
    with pytest.raises(InputError, match="canaries: 3"):
        make_canaries(data.domain, 3, Randomness().bits)


def test_as_clients_every_canary_is_enrolled_and_holds_one_place():
    data = federated_data()
    canaries = make_canaries(data.domain, 20, Randomness().bits)
    audited = with_canaries(data, canaries, as_clients=True)
    assert audited.domain.nominal_clients == 3 + 20
    assert set(audited.client_ids[len(data) :]) == set(3 + np.flatnonzero(canaries.included))


def test_guesses_are_the_extremes_and_their_number_is_chosen_on_other_canaries():
    scores, included = np.arange(10.0), np.arange(10) >= 5
    assert guess(scores, included, 0.5) == (10, 10)
    assert guess(scores, ~included, 0.5) == (10, 0)
    assert guess(scores, included, 0.0) == (0, 0)
    random = np.random.default_rng(0)
    truth = random.random(2000) < 0.5
    rows = np.stack([random.normal(0, 1, 2000), truth + random.normal(0, 0.1, 2000)])
    row, share = choose_guesses(rows, truth, 1e-9, 1e-4)
    assert (row, share) >= (1, 0.4)


def test_hardly_any_noise_is_found_out_by_the_white_box_attack(tmp_path):
    """A dp-merf with a claim of about 300: the attack must show much, and never more than the claim."""
    black, white = audit_run("dp-merf", tiny_data(), Budget(300, 1e-5), tmp_path / "run", settings())
    assert (black.access, white.access) == ("black-box", "white-box")
    assert 2 < white.epsilon_lower <= white.claimed
    assert black.epsilon_lower <= black.claimed
    assert (white.trials, white.held_out) == (300, 100)
    assert white.generator_sha256 == verify_hash(tmp_path / "run")


def verify_hash(run):
    return json.loads((run / "release" / "certificate.json").read_text())["generator_sha256"]


def test_an_ordinary_run_is_within_its_claim(tmp_path):
    for audit in audit_run("dp-merf", tiny_data(), Budget(1, 1e-5), tmp_path / "run", settings()):
        assert not audit.exceeds


@pytest.mark.parametrize("case", ["dpgan", pytest.param("dp-merf-ae", marks=pytest.mark.slow)])
def test_steps_of_dp_sgd_are_attacked_at_their_noisy_sums(case, tmp_path):
    config = CASES[case].config()
    audits = audit_run(
        CASES[case].name, tiny_data(), Budget(10, 1e-5), tmp_path / "run", settings(canaries=40, config=config)
    )
    stepped = audits[-1]
    assert "step by step" in stepped.attack
    assert len(stepped.events) == 1
    assert all(not audit.exceeds for audit in audits)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({case.name for case in CASES.values()} - {"dp-merf", "dpgan"}))
def test_every_method_can_be_audited_in_one_run(method, tmp_path):
    config = CASES[method].config()
    audits = audit_run(method, tiny_data(), Budget(10, 1e-5), tmp_path / "run", settings(canaries=40, config=config))
    assert {audit.access for audit in audits} >= {"black-box"}
    assert all(not audit.exceeds for audit in audits)


@pytest.mark.slow
def test_a_federation_can_be_audited_with_clients_as_canaries(tmp_path):
    chosen = settings(canaries=20, config=tiny_federation(privacy={"noise_multiplier": 30.0}))
    audits = audit_run("gs-wgan-federated", federated_data(), Budget(10, 1e-5), tmp_path / "run", chosen)
    assert all(audit.events[0].unit == "client" and not audit.exceeds for audit in audits)


def test_a_method_without_privacy_has_no_claim_to_audit(tmp_path):
    with pytest.raises(InputError, match="gan is not private"):
        audit_run("gan", tiny_data(), Budget(1, 1e-5), tmp_path / "run", settings())


# Recording


@pytest.fixture
def audited(tmp_path) -> tuple[AuditRecord, AuditRecord]:
    probe = next(probe for probe in PROBES if probe.method == "dp-merf")
    mechanism = audit_mechanism(probe, Budget(4, 1e-5), AuditOptions(trials=500))
    fields = mechanism.model_dump() | {"kind": "run", "generator_sha256": "0" * 64, "data": "digits"}
    return mechanism, AuditRecord.model_validate(fields)


@pytest.fixture
def release(tmp_path):
    tiny_train("dp-merf", tiny_data(), tmp_path / "released")
    return tmp_path / "released" / "release"


def test_audits_on_public_data_are_recorded_once_and_verify(audited, release, tmp_path):
    recording.write_audits(tmp_path / "audits.json", audited)
    found = recording.read_audits(tmp_path / "audits.json")
    assert tuple(found) == audited
    assert recording.record(release, found).passed
    assert recording.record(release, found).passed
    recorded = json.loads((release / "certificate.json").read_text())["audits"]
    assert len(recorded) == 2
    told = [check.detail for check in verify(release).checks if check.name in {"audit 1", "audit 2"}]
    assert len(told) == 2
    assert all("what it says of itself" in detail for detail in told)


def test_audits_are_recorded_in_what_an_earlier_version_wrote(audited, release):
    """It knew fewer fields; its config stays as it is, byte for byte."""
    edit_config(release, lambda config: config["generator"].pop("spectral_norm"))
    before = (release / "config.json").read_bytes()
    assert recording.record(release, audited[:1]).passed
    assert (release / "config.json").read_bytes() == before


def _failed(release, audits):
    result = recording.record(release, audits)
    return {check.name for check in result.checks if not check.passed}


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon_lower": 4.5},
        {"epsilon_lower": 4.5, "claimed": 5.0},
        {"claimed": 5.0},
        {"generator_sha256": "1" * 64},
        {"kind": "run"},
    ],
    ids=[
        "it exceeds its claim",
        "it hides that",
        "a claim above its events",
        "a mechanism with a run",
        "a run without",
    ],
)
def test_an_audit_that_speaks_against_the_release_makes_verify_fail(change, audited, release):
    altered = AuditRecord.model_validate(audited[0].model_dump() | change)
    assert _failed(release, [altered]) == {"audit 1"}


def test_an_audit_of_the_very_run_that_is_released_makes_verify_fail(audited, release):
    own = {"generator_sha256": json.loads((release / "certificate.json").read_text())["generator_sha256"]}
    assert _failed(release, [AuditRecord.model_validate(audited[1].model_dump() | own)]) == {"audit 1"}


def test_audits_on_other_data_or_of_other_methods_are_refused(audited, release, tmp_path):
    private = AuditRecord.model_validate(audited[1].model_dump() | {"declared_public": False})
    with pytest.raises(InputError, match="not declared public"):
        recording.record(release, [private])
    other = AuditRecord.model_validate(audited[0].model_dump() | {"method": "gs-wgan"})
    with pytest.raises(InputError, match="one of gs-wgan"):
        recording.record(release, [other])
    (tmp_path / "nothing.json").write_text("{}")
    with pytest.raises(InputError, match="holds no list of audits"):
        recording.read_audits(tmp_path / "nothing.json")
    (tmp_path / "wrong.json").write_text('{"audits": [{"kind": "run"}]}')
    with pytest.raises(InputError, match="access"):
        recording.read_audits(tmp_path / "wrong.json")


def test_a_certificate_with_an_audit_on_private_data_is_not_valid(audited, release):
    path = release / "certificate.json"
    content = json.loads(path.read_text())
    content["audits"] = [audited[1].model_dump(exclude_none=True) | {"declared_public": False}]
    put_json(path, content)
    failed = {check.name: check.detail for check in verify(release).checks if not check.passed}
    assert "declared-public" in failed["certificate"]
