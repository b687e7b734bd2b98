"""BDP-GAN: its presets, its claim beside the guarantee, and that the Bayesian figure never speaks during a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from understudy.api import release_early, resume
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.models.selu import DpganDiscriminatorConfig, SeluCritic
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.claims.bayesian import BayesianAccountant
from understudy.privacy.claims.statements import NOT_COVERED, BayesianClaim, BayesianConfig, as_published, kept_claims
from understudy.privacy.ledger import Ledger
from understudy.release.release import load
from understudy.release.verify import verify
from understudy.runs.folder import RunFolder

from ...helpers.cases import BUDGET
from ...helpers.data import tiny_data, with_labels
from ...helpers.runs import interrupt, read_lines, tiny_train

MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)
METHOD = get_method("bdp-gan")


# Networks and presets


@pytest.mark.parametrize("classes", [10, None])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 9, 13), (3, 64, 8)])
def test_the_networks_of_the_paper_fit_every_image_size(shape, classes):
    critic = SeluCritic(DpganDiscriminatorConfig(shape=shape, classes=classes, width=4))
    config = GeneratorConfig(kind="selu", shape=shape, classes=classes, latent=5, width=4, output="tanh")
    generator, labels = build_generator(config), torch.zeros(3, dtype=torch.long)
    images = generator.pixels(generator(torch.randn(3, 5), labels))
    assert images.shape == (3, *shape)
    assert 0 <= images.min() <= images.max() <= 1
    assert critic(images, labels if classes else None).shape == (3,)


def test_at_28x28_the_generator_starts_from_4096_values_as_in_the_paper():
    generator = build_generator(GeneratorConfig(kind="selu", shape=(1, 28, 28), classes=10, latent=100, width=64))
    assert generator.head.out_features == 4096
    assert sum(isinstance(layer, torch.nn.ConvTranspose2d) for layer in generator.modules()) == 3
    critic = SeluCritic(DpganDiscriminatorConfig(shape=(1, 28, 28), classes=None, width=64))
    kinds = [type(layer).__name__ for layer in critic.children() if layer is not None]
    assert kinds == ["Conv2d", "Conv2d", "Conv2d", "Linear", "Linear"]


@pytest.mark.parametrize(
    ("preset", "noise", "epsilon"), [("paper-mnist", 1.28, 2.4514), ("paper-fashion", 2.56, 0.9945)]
)
def test_a_preset_has_the_settings_of_the_paper_at_a_known_worst_case_price(preset, noise, epsilon):
    plan = METHOD.plan(configure(METHOD, {}, preset), MNIST, Budget(10, 1e-5))
    (event,) = plan.events
    assert (event.noise_multiplier, event.count, event.sampling.rate) == (noise, 375_000, 64 / 60_000)
    assert plan.epsilon == pytest.approx(epsilon, abs=2e-3)
    assert (plan.config.privacy.clip, plan.config.method.loss) == (0.5, "wasserstein")
    assert any("stays in the private folder" in remark and "disclosure" in remark for remark in plan.remarks)


def test_a_gradient_penalty_is_refused_with_a_reason_and_a_way_out():
    with pytest.raises(InputError, match=r"reads real images a second time.*use weight_bound"):
        configure(METHOD, {"method": {"gradient_penalty": 10}})


def test_an_adaptive_schedule_needs_a_threshold_that_scores_do_not_have():
    with pytest.raises(InputError, match=r"scores have no such zero; pass a number such as 5, or loss=logistic"):
        configure(METHOD, {"method": {"discriminator_steps": "adaptive"}})
    plan = METHOD.plan(configure(METHOD, {}), MNIST, BUDGET)
    assert plan.config.method.discriminator_steps == 5
    assert METHOD.plan(configure(METHOD, {}, "gpu"), MNIST, BUDGET).config.method.discriminator_steps == "adaptive"


@pytest.mark.slow
def test_what_the_accountant_looks_at_changes_no_event():
    plans = [
        METHOD.plan(configure(METHOD, {"method": {"bayesian": values}}), MNIST, BUDGET)
        for values in ({"enabled": False}, {"pairs": 512, "delta_mu": 1e-7})
    ]
    assert plans[0].events == plans[1].events
    assert plans[0].epsilon == plans[1].epsilon


# The claim


def kept(folder: Path) -> BayesianClaim:
    (claim,) = kept_claims(RunFolder(folder).claims)
    return claim


def test_the_claim_stays_in_the_private_folder_beside_the_guarantee(tmp_path):
    """Nothing that was computed from the data without noise is in the release unless its owner asked for it."""
    certificate = tiny_train("bdp-gan", tiny_data(), tmp_path / "run").certificate
    assert certificate.data_dependent is None
    assert NOT_COVERED not in certificate.not_covered
    written = json.loads((tmp_path / "run" / "private" / "data-dependent.json").read_text())
    assert written["stamp"] == "not private: do not publish"
    assert written["guarantees"][0]["epsilon"] == certificate.headline.epsilon
    assert kept(tmp_path / "run").kind == "bayesian-dp"
    assert "Bayesian" not in (tmp_path / "run" / "release" / "README.md").read_text()
    assert verify(tmp_path / "run").passed


def test_its_certificate_carries_the_claim_beside_the_guarantee_where_asked_for(tmp_path):
    release = tiny_train("bdp-gan", tiny_data(), tmp_path / "run", method={"bayesian": {"pairs": 32, "publish": True}})
    certificate = release.certificate
    (claim,) = certificate.data_dependent
    assert claim == as_published(kept(tmp_path / "run"))
    assert NOT_COVERED in certificate.not_covered
    assert (claim.steps, claim.estimated_steps, claim.pairs) == (4, 4, 32)
    assert [guarantee.kind for guarantee in certificate.guarantees] == ["dp"]
    assert certificate.headline.epsilon == accounting.certified_epsilon(certificate.events, BUDGET.delta)
    assert load(tmp_path / "run").certificate == certificate
    result = verify(tmp_path / "run")
    assert result.passed
    assert result.claimed == certificate.headline.epsilon
    assert "bayesian-dp 1" in [check.name for check in result.checks]


def test_without_the_accountant_there_is_no_claim_and_no_record(tmp_path):
    method = {"bayesian": {"enabled": False, "publish": True}}
    release = tiny_train("bdp-gan", tiny_data(), tmp_path / "run", method=method)
    assert release.certificate.data_dependent is None
    assert not kept_claims(RunFolder(tmp_path / "run").claims)
    assert not (tmp_path / "run" / "private" / "bayesian.json").exists()


def test_the_claim_is_that_of_the_record_in_the_private_folder(tmp_path):
    tiny_train("bdp-gan", tiny_data(), tmp_path / "run")
    events = Ledger.open(tmp_path / "run" / "ledger.jsonl").events()
    accountant = BayesianAccountant(BayesianConfig(pairs=4, orders=(1, 2, 8)), events[0], events[1:])
    accountant.restore(tmp_path / "run" / "private" / "bayesian.json")
    assert accountant.claim() == kept(tmp_path / "run")


def test_nothing_of_it_is_shown_during_the_run(tmp_path):
    """No value of the accountant reaches progress, ledger or diagnostics, so nobody can steer or stop by it."""
    folder = tmp_path / "run"
    tiny_train("bdp-gan", tiny_data(), folder)
    for name in ("progress.jsonl", "ledger.jsonl", "private/diagnostics.jsonl"):
        assert read_lines(folder / name)
        assert not {"epsilon_mu", "delta_mu", "costs"} & set((folder / name).read_text().split('"'))
        assert "bayes" not in (folder / name).read_text()


@pytest.mark.parametrize("labels", [[], [1]])
def test_data_without_records_are_charged_at_the_worst_case(labels, tmp_path):
    tiny_train("bdp-gan", with_labels(labels), tmp_path / "run")
    assert kept(tmp_path / "run").steps == 4


# Resuming


def recorded(folder: Path) -> int:
    return json.loads((folder / "private" / "bayesian.json").read_text())["recorded"]


def test_a_resumed_run_goes_on_with_its_record(tmp_path):
    data, folder = tiny_data(), tmp_path / "run"
    interrupt("bdp-gan", data, folder)
    release_early(folder)
    early = kept(folder)
    assert recorded(folder) < early.steps
    resume(data, folder)
    claim = kept(folder)
    assert recorded(folder) == claim.steps == 4
    assert claim.epsilon_mu <= early.epsilon_mu, "steps that were not done yet were charged at their worst case"


def test_steps_whose_record_was_lost_are_charged_at_their_worst_case(tmp_path):
    data, folder = tiny_data(), tmp_path / "run"
    interrupt("bdp-gan", data, folder)
    (folder / "private" / "bayesian.json").unlink()
    resume(data, folder)
    assert recorded(folder) < kept(folder).steps
    assert verify(folder).passed


def test_a_damaged_record_is_refused(tmp_path):
    data, folder = tiny_data(), tmp_path / "run"
    interrupt("bdp-gan", data, folder)
    (folder / "private" / "bayesian.json").write_text("{}")
    with pytest.raises(InputError, match="is not the record of this run"):
        resume(data, folder)


def test_the_weights_of_the_critic_are_kept_within_their_bound(tmp_path):
    tiny_train("bdp-gan", tiny_data(), tmp_path / "run", method={"weight_bound": 0.02})
    newest = max((tmp_path / "run" / "private").glob("checkpoint-*.safetensors"))
    with safe_open(newest, framework="pt") as file:
        weights = [file.get_tensor(name) for name in file.keys() if name.startswith("discriminator.")]  # noqa: SIM118
    assert weights
    assert max(float(weight.abs().max()) for weight in weights) <= 0.02 + 1e-9


def test_the_certificate_as_json_never_calls_it_epsilon(tmp_path):
    tiny_train("bdp-gan", tiny_data(), tmp_path / "run", method={"bayesian": {"publish": True}})
    raw = json.loads((tmp_path / "run" / "release" / "certificate.json").read_text())
    (claim,) = raw["data_dependent"]
    assert "epsilon" not in claim
    assert "delta" not in claim
    assert {"epsilon_mu", "delta_mu", "percentile", "confidence", "assumptions", "warning"} <= set(claim)


def test_a_damaged_claim_is_one_sentence(tmp_path):
    (tmp_path / "data-dependent.json").write_text("[]")
    with pytest.raises(InputError, match="does not hold the claims of a run"):
        kept_claims(tmp_path / "data-dependent.json")
