"""``understudy audit``: bounds on the command line, in a file, and in a certificate."""

from __future__ import annotations

import json

import pytest

from understudy.audit import probes
from understudy.privacy import mechanisms


def test_mechanisms_are_audited_written_and_recorded(call, tmp_path, released):
    result = call("audit", "mechanisms", "dp-merf", "--trials", "500", "--to", tmp_path / "audits.json", "--json")
    assert result.code == 0, result.err
    audits = json.loads(result.out)["audits"]
    assert len(audits) == 4, "alone, with a teacher, with a network as its teacher, and of people"
    for audit in audits:
        assert (audit["method"], audit["trials"], audit["corrected_for"]) == ("dp-merf", 1000, 4)
        assert 0 <= audit["epsilon_lower"] <= audit["claimed"] <= 1

    recorded = call("audit", "record", released, tmp_path / "audits.json")
    assert recorded.code == 0, recorded.err
    assert "4 audits are in the certificate" in recorded.out
    assert "audit 1" in call("verify", released).out


def test_an_epsilon_above_the_claim_is_a_failed_check(call, monkeypatch):
    noisy = mechanisms.GaussianMechanism._noisy
    monkeypatch.setattr(
        mechanisms.GaussianMechanism, "_noisy", lambda self, exact, scale: noisy(self, exact, scale / 9)
    )
    result = call("audit", "mechanisms", "pate-gan", "--trials", "500")
    assert result.code == 1
    assert "EXCEEDS" in result.out
    assert result.err.strip().splitlines()[-1].startswith("understudy: audit: pate-gan: epsilon is at least")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mechanisms", "gan"], "gan is not private"),
        (["mechanisms", "no-such-method"], "'no-such-method' is unknown"),
        (["mechanisms", "--trials", "3"], "trials: 3"),
        (["run", "gan", "--data", "digits", "--out", "nowhere"], "gan is not private"),
        (["record", "nowhere", "nothing.json"], "nothing.json cannot be read"),
    ],
)
def test_bad_input_is_one_sentence(call, arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in call.refused("audit", *arguments)


def test_a_run_with_canaries_is_stamped_unless_its_data_are_public(call, tmp_path):
    common = ["--data", "digits", "--canaries", "40", "--set", "method.steps=2"]
    result = call("audit", "run", "dp-merf", *common, "--out", tmp_path / "first")
    assert result.code == 0, result.err
    assert "not private: do not publish" in result.out
    public = call("audit", "run", "dp-merf", *common, "--out", tmp_path / "second", "--declared-public", "--json")
    assert all(audit["declared_public"] for audit in json.loads(public.out)["audits"])


def test_every_probe_is_reachable_by_the_name_of_its_method():
    assert {probe.method for probe in probes.probes_of(("dpgan", "gs-wgan"))} == {"dpgan", "gs-wgan"}
