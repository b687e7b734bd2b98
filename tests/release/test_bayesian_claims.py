"""A claim of kind bayesian-dp in a release: beside a guarantee, under its own name, and never taken for an epsilon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.privacy.certificate import NOT_COVERED as ALWAYS_NOT_COVERED
from understudy.privacy.certificate import Certificate
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.privacy.claims.statements import NOT_COVERED, WARNING, BayesianClaim, BayesianConfig, as_published
from understudy.privacy.events import Event, PoissonSampling
from understudy.release.model_card import model_card
from understudy.release.release import Release, load
from understudy.release.verify import verify

from ..cli.calling import Caller
from .building import edit_json, make_release, put_json

STEPS = 100
EVENT = Event(noise_multiplier=2.0, sensitivity="C", sampling=PoissonSampling(rate=0.02), count=STEPS)
EPSILON = 0.6


def claim(length: float = 0.2, **changes: Any) -> dict[str, Any]:
    accountant = BayesianAccountant(BayesianConfig(**changes), EVENT)
    accountant.add(np.full((STEPS, 32), length))
    return accountant.claim().model_dump()


def claimed_release(stated: dict[str, Any]) -> Release:
    return make_release(
        guarantees=[{"epsilon": EPSILON, "delta": 1e-5}],
        events=[EVENT.model_dump()],
        data_dependent=[stated],
        not_covered=[*ALWAYS_NOT_COVERED, NOT_COVERED],
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A release with a claim; of a method that is not known here, so that no plan is compared."""
    claimed_release(claim()).save(tmp_path / "release")
    for name in ("certificate.json", "config.json"):
        edit_json(tmp_path / "release" / name, lambda content: content.update(method="another"))
    edit_json(tmp_path / "release" / "certificate.json", lambda content: content.pop("config_sha256"))
    return tmp_path / "release"


def edited(place: Path, **changes: Any):
    edit_json(place / "certificate.json", lambda content: content["data_dependent"][0].update(changes))
    return {check.name: check for check in verify(place).checks}


def test_verify_lets_a_possible_claim_stand_and_says_what_it_is_not(place):
    result = verify(place)
    assert [check.name for check in result.checks if not check.passed] == ["config hash", "plan"]
    assert result.verdict == "consistent"
    (check,) = [check for check in result.checks if check.name == "bayesian-dp 1"]
    assert "is not recomputed and is no epsilon of differential privacy" in check.detail
    assert result.claimed == EPSILON
    assert any("epsilon_mu" in item for item in result.as_dict()["does_not_prove"])


@pytest.mark.parametrize("figure", [1e-3, 1e4])
def test_a_figure_that_the_events_do_not_allow_is_caught(place, figure):
    found = edited(place, epsilon_mu=figure)["bayesian-dp 1"]
    assert not found.passed
    assert "is impossible: the events allow" in found.detail


def test_a_claim_about_other_steps_is_caught(place):
    found = edited(place, steps=STEPS + 1)["bayesian-dp 1"]
    assert not found.passed
    assert "no event is" in found.detail


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "dp"}, "bayesian-dp"),
        ({"epsilon": 0.1}, "Extra inputs"),
        ({"failure": 1.0}, "less than 1"),
        ({"percentile": {"delta": 1e-5, "share": 1.0}}, "does not follow"),
        ({"assumptions": []}, "at least 1"),
        ({"warning": ""}, "at least 1"),
    ],
)
def test_a_claim_without_its_parts_makes_the_certificate_invalid(place, changes, words):
    found = edited(place, **changes)["certificate"]
    assert not found.passed
    assert words in found.detail


def test_a_bayesian_figure_does_not_pass_for_a_guarantee(place):
    """Neither by its kind in the list of guarantees, nor by taking the place of the headline's epsilon."""
    raw = json.loads((place / "certificate.json").read_text())
    small = raw["data_dependent"][0]["epsilon_mu"]
    assert small < EPSILON
    swapped = raw | {"guarantees": [{"kind": "bayesian-dp", "epsilon": small, "delta": 1e-5}]}
    put_json(place / "certificate.json", swapped)
    assert not verify(place).passed
    put_json(place / "certificate.json", raw | {"guarantees": [{"epsilon": small, "delta": 1e-5}]})
    result = verify(place)
    failed = {check.name for check in result.checks if not check.passed and not check.missing}
    assert failed == {"guarantee 1: pld", "guarantee 1: fourier"}
    assert result.verdict == "refused"


def test_a_claim_without_a_guarantee_beside_it_is_refused(place):
    raw = json.loads((place / "certificate.json").read_text())
    with pytest.raises(ValueError, match="beside a guarantee of differential privacy, never alone"):
        Certificate.model_validate(raw | {"guarantees": [], "events": [], "not_private": "not private"})


def test_the_card_shows_it_with_its_assumptions_and_its_warning():
    card = model_card(claimed_release(claim())).replace("\\", "")
    assert "Beside the guarantee, and not instead of it" in card
    assert 0 < card.index("The guarantee follows from these accesses") < card.index("Beside the guarantee")
    assert NOT_COVERED in card
    assert "epsilon_mu" in card
    assert card.count("It assumes:") == 4
    assert "discloses something" in card
    assert f"## The guarantee: epsilon {EPSILON}" in card


def test_an_estimate_that_cannot_be_relied_on_says_so():
    accountant = BayesianAccountant(BayesianConfig(heavy_tails="warn"), EVENT)
    random = np.random.default_rng(0)
    accountant.add(np.where(random.random((STEPS, 32)) < 0.005, 1.0, 0.01))
    assert "Do not rely on it" in model_card(claimed_release(accountant.claim().model_dump()))


def test_a_claim_that_the_certificate_does_not_except_from_its_guarantee_is_caught(place):
    edit_json(place / "certificate.json", lambda content: content["not_covered"].remove(NOT_COVERED))
    (found,) = [check for check in verify(place).checks if not check.passed and not check.missing]
    assert found.name == "bayesian-dp 1"
    assert NOT_COVERED in found.detail


@pytest.mark.parametrize("changes", [{"assumptions": ["none"]}, {"warning": "nothing is disclosed"}], ids=str)
def test_a_claim_in_other_words_than_its_own_is_not_verified(place, changes):
    found = edited(place, **changes)["bayesian-dp 1"]
    assert found.missing
    assert "without what it assumes, or without its warning" in found.detail


@pytest.mark.parametrize(("found", "shown"), [(0.4, 0), (7.9, 7), (99.99, 90), (100.0, 100), (1987.6, 1000)])
def test_published_counts_have_one_digit_and_are_never_rounded_up(found, shown):
    stated = BayesianClaim.model_validate(claim() | {"effective_samples": found, "trusted": found >= 100})
    published = as_published(stated)
    assert published.effective_samples == shown
    assert BayesianClaim.model_validate(published.model_dump()) == published


def test_the_warning_names_every_figure_that_depends_on_the_data():
    """Two sets of gradients under one plan: whatever differs between their claims is named."""
    first, second = claim(0.01), claim(0.9)
    differ = {name for name in first if first[name] != second[name]}
    assert {"epsilon_mu", "order"} <= differ
    assert all(name in WARNING for name in differ | {"trusted", "estimated_steps", "effective_samples"})


def test_the_command_line_prints_the_check_under_its_own_name(place, capsys):
    answer = Caller(capsys)("verify", place)
    printed = answer.out
    assert answer.code == 1, "of a method that is not known here nothing is verified"
    assert "bayesian-dp 1: epsilon_mu" in printed
    assert "verified" not in printed


def test_a_release_keeps_its_claim_when_it_is_read_and_written_again(place, tmp_path):
    edit_json(place / "config.json", lambda content: content.update(method="another"))
    release = load(place)
    again = Certificate.model_validate(json.loads(release.certificate.to_json()))
    assert again.data_dependent == release.certificate.data_dependent
