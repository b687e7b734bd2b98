"""Who is in a noisy sum: the estimate, the rows that DP-SGD and federated averaging add, and noise that is missing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from understudy.audit.attacks import Witness
from understudy.audit.canaries import NOISE_LEVELS, Canaries, Units, presence
from understudy.audit.runs import RunAuditOptions, audit_run
from understudy.audit.sgd import row_gradients
from understudy.engines.critics.frequencies import AnswerBasis
from understudy.engines.dpsgd.gradients import FlatParameters, PerExampleGradients
from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig
from understudy.privacy.budget import Budget
from understudy.privacy.mechanisms import GaussianMechanism

from ..helpers.cases import CASES, FEDERATED
from ..helpers.data import dealt, tiny_data


@pytest.mark.parametrize("values", [200, 20], ids=["more values than units", "fewer"])
def test_the_estimate_is_that_of_the_textbook(values):
    """The posterior mean of normal shares, by the formula in the space of values."""
    random = torch.Generator().manual_seed(0)
    mine, others = (torch.randn(count, values, generator=random, dtype=torch.float64) for count in (10, 30))
    total, noise, (p, q) = torch.randn(values, generator=random, dtype=torch.float64), 1.5, (0.4, 0.8)
    units = [Units.by_coin(mine, p), Units.by_coin(others, q), Units(others[:1], 3.0, 0.0)]
    spread = p * (1 - p) * mine.T @ mine + q * (1 - q) * others.T @ others + noise**2 * torch.eye(values)
    rest = total - p * mine.sum(0) - q * others.sum(0) - 3 * others[0]
    expected = p * (1 - p) * mine @ torch.linalg.solve(spread, rest)
    found = presence(total, units, noise)
    assert found.shape == (len(NOISE_LEVELS), 10)
    assert torch.allclose(found[0] * (p * (1 - p)) ** 0.5, expected)


def test_units_that_resemble_each_other_are_told_apart_where_noise_is_missing():
    """Rows that share nine tenths of their square: their products with the sum say little, the estimate says all."""
    random = torch.Generator().manual_seed(1)
    rows = 3 * torch.randn(1, 300, generator=random) + torch.randn(100, 300, generator=random)
    taken = torch.arange(100) % 3 == 0
    found = presence(rows[taken].sum(0), [Units.by_coin(rows, 0.5)], noise=5.0)
    assert found[-1][taken].min() > found[-1][~taken].max()


def test_rows_of_gradients_are_those_that_training_sums():
    """``torch.func`` against the fast sums of the mechanism, in the same flat order."""
    torch.manual_seed(0)
    network = DpganDiscriminator(DpganDiscriminatorConfig(shape=(1, 8, 8), classes=3, width=4))
    images, labels = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    rows = row_gradients(network, images, labels, lambda logits, _: torch.nn.functional.softplus(-logits))
    flat = FlatParameters(network)
    total, weights = flat.zeros(), torch.arange(1.0, 6.0)
    losses = torch.nn.functional.softplus
    PerExampleGradients(network, flat).add(total, (images, labels), lambda logits: losses(-logits), weights)
    assert torch.allclose(weights @ rows, total, atol=1e-5)


def test_one_clear_answer_among_many_is_noticed():
    """Only one of a hundred answers points to the first canary: the largest tell it, the sum does not."""
    random = np.random.default_rng(0)
    images = random.integers(0, 2, (50, 1, 8, 8), dtype=np.uint8) * 255
    canaries = Canaries(images, None, np.ones(50, dtype=bool))
    witness = Witness(canaries)
    assert witness.slope_scores() is None
    answers = torch.from_numpy(random.normal(size=(100, 64)))
    answers[7] -= 40 * torch.from_numpy(canaries.patterns()[0])
    witness("answers", answers)
    witness("a tally of another shape", torch.ones(3, 4, 5))
    scores = witness.slope_scores()
    assert scores is not None
    assert scores[1].argmax() == 0
    assert np.allclose(scores[0], -canaries.patterns() @ answers.numpy().sum(axis=0))


def test_an_answer_in_low_frequencies_is_searched_for_what_is_left_of_a_canary_there():
    """Also where a later stage has as many values as pixels, which are frequencies nevertheless."""
    random = np.random.default_rng(0)
    images = random.integers(0, 2, (50, 1, 8, 8), dtype=np.uint8) * 255
    canaries = Canaries(images, None, np.ones(50, dtype=bool))
    for side in (4, 8):
        basis, witness = AnswerBasis((1, 8, 8), side), Witness(canaries, (4, 8))
        answers = torch.from_numpy(random.normal(size=(100, side**2)))
        answers[7] -= 40 * basis.project(torch.from_numpy(canaries.patterns()[:1]))[0]
        witness("answers", answers)
        scores = witness.slope_scores()
        assert scores is not None
        assert scores[1].argmax() == 0


def test_a_run_audit_reads_from_the_config_in_which_frequencies_critics_answer(tmp_path):
    """Else it would see 16 values where it looks for 64, and leave this attack out."""
    config = CASES["gs-wgan"].config(method={"low_frequencies": [4], "queries_per_point": 2})
    chosen = RunAuditOptions(canaries=100, config=config, declared_public=True)
    audits = audit_run("gs-wgan", tiny_data(), Budget(10, 1e-5), tmp_path / "run", chosen)
    assert any(audit.attack.startswith("sanitized gradients towards each canary") for audit in audits)


def noiseless(monkeypatch):
    genuine = GaussianMechanism._noisy
    monkeypatch.setattr(GaussianMechanism, "_noisy", lambda self, exact, deviation: genuine(self, exact, 0.0))


BROKEN = {
    "dp-merf": ({"frequencies": 300}, {}, "the noisy embedding"),
    "dpgan": ({"width": 8}, {"batch": 120, "embedding_share": 0.0}, "noisy sums, step by step"),
    "gs-wgan-federated": ({"embedding": {"frequencies": 300, "steps": 2, "batch": 12}}, {}, "the noisy embedding"),
    "fedavg-gan": ({}, {"clients_per_round": 150.0}, "noisy sums, step by step"),
}


@pytest.mark.parametrize(
    "case",
    [
        "dp-merf",
        "dpgan",
        pytest.param("gs-wgan-federated", marks=pytest.mark.slow),
        pytest.param("fedavg-gan", marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_noise_is_missing_exceeds_its_claim(case, tmp_path, monkeypatch):
    """The control of every run audit: the plan, the ledger and the claim are right, but no noise is added.

    It fails by chance where fewer than four in five of about a hundred guesses are right; all are, or nearly.
    """
    method, privacy, attack = BROKEN[case]
    config = {**CASES, **FEDERATED}[case].config(method=method, privacy={**privacy, "noise_multiplier": None})
    config["privacy"].pop("embedding_noise_multiplier", None)
    chosen = RunAuditOptions(canaries=200, confidence=0.999, declared_public=True, config=config)
    noiseless(monkeypatch)
    data = dealt(case, tiny_data()) if case in FEDERATED else tiny_data()
    audits = audit_run(case, data, Budget(0.5, 1e-5), tmp_path / "run", chosen)
    (found,) = [audit for audit in audits if audit.attack.startswith(attack)]
    assert found.exceeds, found.in_words()
