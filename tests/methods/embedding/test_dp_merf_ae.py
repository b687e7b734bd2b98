"""dp-merf-ae: the split of the budget, the exact sensitivity of both parts, and what stays where it is."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from understudy.api import resume
from understudy.data.domain import Domain
from understudy.engines.dpsgd.step import PrivateStep, StepOptions
from understudy.engines.embedding import means as fitting
from understudy.engines.embedding.means import Embedding
from understudy.errors import AbortedRun, CheckError, InputError
from understudy.methods.base import configure
from understudy.methods.embedding import codes as code_embedding
from understudy.methods.embedding import dp_merf_ae
from understudy.methods.embedding.codes import CodeEmbedding
from understudy.methods.registry import get_method
from understudy.models.autoencoder import Autoencoder, DecoderGenerator, Encoder, into_unit_ball, reconstruction_losses
from understudy.models.generator import GeneratorConfig
from understudy.privacy import accounting
from understudy.privacy.events import Event, NoSampling, PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianSum, clip_rows
from understudy.privacy.randomness.streams import Randomness
from understudy.release.release import load
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, CLASSES, case_of
from ...helpers.data import tiny_data, with_labels
from ...helpers.runs import tiny_train

FALSE_ALARM = 1e-6
MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)


def plan_of(preset: str | None = None, **groups):
    method = get_method("dp-merf-ae")
    return method.plan(configure(method, groups, preset), MNIST, BUDGET)


# The split


@pytest.mark.slow
def test_the_budget_is_split_between_auto_encoder_and_embedding_and_the_plan_says_how():
    plan = plan_of(privacy={"steps": 100, "embedding_share": 0.3})
    steps, embedding = plan.events
    assert (steps.sampling, steps.sensitivity, steps.count) == (PoissonSampling(rate=500 / 60_000), "C", 100)
    assert (embedding.sampling, embedding.sensitivity, embedding.count) == (NoSampling(), "C", 1)
    alone = accounting.certified_epsilon([embedding], 1e-5)
    assert alone == pytest.approx(3.0, abs=0.01)
    assert 9.8 < plan.epsilon <= 10
    (remark,) = plan.remarks
    assert f"the embedding alone {alone:.4g}" in remark
    assert f"{accounting.certified_epsilon([steps], 1e-5):.4g}" in remark


def test_golden_price_of_the_settings_in_the_paper():
    """Batch 500, multiplier 0.686, 2040 steps: 5.54 by themselves."""
    plan = plan_of("paper")
    assert accounting.certified_epsilon(plan.events[:1], 1e-5) == pytest.approx(5.5445, abs=2e-3)
    assert plan.epsilon == pytest.approx(8.3776, abs=5e-3)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_neither_part_can_be_left_out(share):
    with pytest.raises(InputError, match=r"privacy\.embedding_share"):
        plan_of(privacy={"embedding_share": share})


# Sensitivity of the embedding


@given(values=arrays.arrays("float32", (1, 4), elements=st.floats(-1e4, 1e4, width=32)))
@settings(max_examples=200, deadline=None)
def test_codes_lie_in_the_unit_ball_and_their_features_have_norm_one(values):
    code = into_unit_ball(torch.from_numpy(values))
    assert code.double().norm() <= 1 + 1e-6
    embedding = Embedding(torch.randn(4, 20, generator=torch.Generator().manual_seed(0)), 0.02)
    features = embedding(code)
    assert features.double().norm() == pytest.approx(1, abs=1e-5)
    assert (clip_rows(features, 1.0) - features).double().norm() < 1e-5


def test_each_image_is_encoded_by_itself():
    torch.manual_seed(0)
    embedding = CodeEmbedding(Encoder((1, 8, 8), 3, 4), Embedding(torch.randn(3, 10), 0.02))
    images = torch.rand(5, 1, 8, 8)
    changed = images.clone()
    changed[1] = 1 - changed[1]
    before, after = embedding(images), embedding(changed)
    assert torch.equal(before[[0, 2, 3, 4]], after[[0, 2, 3, 4]])
    assert not torch.equal(before[1], after[1])
    assert before.shape[1] == embedding.count == 21


# Sensitivity of the auto-encoder's steps


def stepping_of(folder, data, *, clip: float = 0.1, seed: int = 1) -> tuple[PrivateStep, Autoencoder]:
    """Steps inside a run in which every record takes part (a rate of one), from the same weights each time."""
    method = get_method("dp-merf-ae")
    plan = method.plan(configure(method, case_of("dp-merf-ae").config()), data.domain, BUDGET)
    run = Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(seed), torch.device("cpu"))
    torch.manual_seed(0)
    generator = DecoderGenerator(GeneratorConfig(kind="decoder", shape=(1, 8, 8), classes=CLASSES, latent=3, width=2))
    network = Autoencoder(Encoder((1, 8, 8), 3, 2), generator.decoder)
    event = Event(noise_multiplier=1.0, sensitivity="C", sampling=PoissonSampling(rate=1.0), count=5, purpose="steps")
    batch = data.domain.nominal_records
    options = StepOptions(batch, clip, learning_rate=1e-3)

    def objective(seen, random):
        return (seen.images,), lambda raw: reconstruction_losses(raw, seen.images)

    return PrivateStep(run, network, objective, options, event), network


@pytest.fixture
def sums(monkeypatch) -> list[torch.Tensor]:
    """Every exact sum that was released, before its noise."""
    seen: list[torch.Tensor] = []
    release = GaussianSum.release

    def remember(self, total, *, block=1):
        seen.append(total.clone().double())
        return release(self, total, block=block)

    monkeypatch.setattr(GaussianSum, "release", remember)
    return seen


@pytest.mark.parametrize("clip", [1e-3, 0.1])
def test_one_record_moves_the_sum_of_gradients_by_at_most_the_bound(tmp_path, sums, clip):
    for name, labels in (("without", [0, 1, 2, 0]), ("with", [0, 1, 2, 0, 1])):
        (tmp_path / name).mkdir()
        stepping_of(tmp_path / name, with_labels(labels), clip=clip)[0].take()
    moved = float((sums[1] - sums[0]).norm())
    assert moved <= clip * (1 + 1e-4)
    assert moved > 0.5 * min(clip, 0.01), "the record must be seen at all"


def test_the_sum_is_that_of_clipped_gradients_by_automatic_differentiation(tmp_path, sums):
    data = with_labels([0, 1, 2])
    stepping, network = stepping_of(tmp_path, data, clip=1e-2)
    expected = []
    for image in torch.from_numpy(data.images).float() / 255:
        network.requires_grad_()
        raw = network(image[None])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(raw, image[None])
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(network.parameters()))])
        expected.append(clip_rows(gradient[None], 1e-2)[0])
    stepping.take()
    exact = torch.stack(expected).sum(dim=0)
    assert float(sums[0].norm()) == pytest.approx(float(exact.norm()), rel=1e-3)  # the flat order differs


def test_an_empty_batch_is_a_step_of_noise(tmp_path, sums):
    stepping, network = stepping_of(tmp_path, with_labels([]))
    before = [parameter.clone() for parameter in network.parameters()]
    stepping.take()
    assert (sums[0] == 0).all()
    assert any(not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    assert stepping.remaining == 4


def test_the_update_carries_the_accounted_noise_over_the_public_batch(tmp_path, monkeypatch):
    data = with_labels([])
    stepping, _ = stepping_of(tmp_path, data, clip=0.5)
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(type(stepping.optimizer), "step", lambda self, update_dp: seen.append(update_dp.double()))
    for _ in range(5):
        stepping.take()
    noise = torch.cat(seen).numpy()
    law = stats.chi2(noise.size, scale=(0.5 / data.domain.nominal_records) ** 2)
    assert law.ppf(FALSE_ALARM / 2) < float((noise**2).sum()) < law.isf(FALSE_ALARM / 2)


# What is released


def test_the_decoder_is_that_of_the_auto_encoder_and_the_encoder_stays(tmp_path):
    tiny_train("dp-merf-ae", tiny_data(), tmp_path / "run")
    parts = {name.split(".")[0] for name in load(tmp_path / "run").generator.state_dict()}
    assert parts == {"mapper", "decoder"}


def test_the_fit_moves_the_codes_and_not_the_decoder(tmp_path):
    """Two runs of the same seed with short and long fits: the same decoder, other codes."""
    states = []
    for steps in (1, 6):
        torch.manual_seed(0)  # first weights
        tiny_train(
            "dp-merf-ae",
            tiny_data(),
            tmp_path / str(steps),
            seed=3,
            method={"embedding": {"frequencies": 16, "steps": steps, "batch": 12}},
        )
        states.append(load(tmp_path / str(steps)).generator.state_dict())
    first, second = states
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert changed
    assert all(name.startswith("mapper.") for name in changed)


def test_noisy_class_sizes_become_the_law_of_labels(tmp_path):
    """With a multiplier of 0.6 the size of a class is known to within 4 * 0.6 / sqrt(0.3) = 4.4 of 300 records."""
    labels = [0] * 200 + [1] * 70 + [2] * 30
    settings = {"autoencoder": {"code": 2, "width": 2}, "embedding": {"frequencies": 16, "steps": 1, "size_share": 0.3}}
    privacy = {"embedding_noise_multiplier": 0.6, "noise_multiplier": 50.0}
    data = with_labels([0] * 300)
    data = type(data)(data.name, data.domain, data.images, np.array(labels))
    tiny_train("dp-merf-ae", data, tmp_path / "run", privacy=privacy, method=settings)
    weights = np.array(load(tmp_path / "run").generator.config.label_weights)
    error = stats.norm.isf(FALSE_ALARM / 6) * 0.6 / math.sqrt(0.3)
    assert 300 * weights == pytest.approx(np.array([200, 70, 30]), abs=3 * error)
    assert weights[0] > weights[1] > weights[2]


# Broken values


def test_gradients_that_are_not_finite_stop_the_run_and_release_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Encoder, "forward", lambda self, images: self.end(self.body(images).flatten(1)) * math.inf)
    with pytest.raises(AbortedRun, match=r"'auto-encoder steps' were not finite, .*lower the learning rate"):
        tiny_train("dp-merf-ae", tiny_data(), tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


def test_a_fit_that_is_not_finite_stops_the_run_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(code_embedding, "distance", lambda codes, *rest: codes.sum() * math.nan)
    with pytest.raises(CheckError, match=r"lower method\.learning_rate"):
        tiny_train("dp-merf-ae", tiny_data(), tmp_path / "run")


def test_a_run_resumed_behind_its_last_step_keeps_the_law_of_labels(tmp_path):
    first = tiny_train("dp-merf-ae", tiny_data(), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "release")
    again = resume(tiny_data(), tmp_path / "run")
    assert again.generator.config.label_weights == first.generator.config.label_weights is not None


def test_a_run_killed_after_the_release_of_the_embedding_keeps_the_auto_encoder_that_it_is_about(tmp_path, monkeypatch):
    """All its steps are spent by then: without a checkpoint the decoder would be a random one, and released."""
    decoders = []
    released = dp_merf_ae._release_target

    def remember(run, embedding, generator):
        decoders.append({name: value.clone() for name, value in generator.decoder.state_dict().items()})
        return released(run, embedding, generator)

    def die(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(dp_merf_ae, "_release_target", remember)
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "report_fit", die)
        with pytest.raises(KeyboardInterrupt):
            tiny_train("dp-merf-ae", tiny_data(), tmp_path / "run")
    decoder = resume(tiny_data(), tmp_path / "run").generator.decoder.state_dict()
    assert all(torch.equal(decoder[name], value) for name, value in decoders[0].items())
