"""dp-merf: the exact sensitivity of its one release, what is recovered from it, and the distance that it minimises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from understudy.api import TrainOptions, resume, train
from understudy.data.arrays import from_arrays
from understudy.data.domain import Domain
from understudy.engines.embedding import means as mean_embedding
from understudy.engines.embedding.config import EmbeddingConfig
from understudy.engines.embedding.means import Embedding, Fit, NoisyMeans, tinted_frequencies
from understudy.errors import BudgetError, InputError
from understudy.files import read_tensors
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, NoSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianSum, clip_rows
from understudy.privacy.randomness.streams import Randomness
from understudy.release.release import load

from ...helpers.cases import CLASSES, RECORDS
from ...helpers.data import tiny_data, with_labels
from ...helpers.runs import interrupt, read_lines, tiny_train

FALSE_ALARM = 1e-6
PIXELS, FREQUENCIES = 12, 24
IMAGES = arrays.arrays("uint8", (1, PIXELS), elements=st.integers(0, 255))


def embedding_of(scale: float = 1.0, size_share: float = 0.02, seed: int = 0) -> Embedding:
    random = torch.Generator().manual_seed(seed)
    return Embedding(scale * torch.randn(PIXELS, FREQUENCIES, generator=random), size_share)


def a_sum(tmp_path, noise: float = 1.0) -> GaussianSum:
    ledger = Ledger.create(tmp_path / "ledger.jsonl")
    event = Event(noise_multiplier=noise, sensitivity="C", count=1, purpose="embedding")
    return GaussianSum(ledger, Randomness(), clip=1.0, event=event)


# Sensitivity


@given(image=IMAGES, scale=st.sampled_from([1e-6, 1.0, 1e6]), share=st.floats(0.001, 0.999))
@settings(max_examples=200, deadline=None)
def test_every_image_has_features_of_unit_norm_so_clipping_takes_nothing_away(image, scale, share):
    features = embedding_of(scale, share)(torch.from_numpy(image).float() / 255)
    assert features.double().norm() == pytest.approx(1, abs=1e-5)
    assert (clip_rows(features, 1.0) - features).double().norm() < 1e-5


@given(images=arrays.arrays("uint8", (5, PIXELS)), extra=IMAGES, label=st.integers(0, CLASSES - 1))
@settings(max_examples=100, deadline=None)
def test_one_record_moves_the_sum_by_exactly_one_clipped_row_in_its_own_class(tmp_path_factory, images, extra, label):
    mechanism = a_sum(tmp_path_factory.mktemp("sum"))
    embedding, labels = embedding_of(), torch.arange(5) % CLASSES
    totals = [torch.zeros(CLASSES, 2 * FREQUENCIES + 1, dtype=torch.float64) for _ in range(2)]
    for total in totals:
        mechanism.accumulate(total, embedding(torch.from_numpy(images).float() / 255), labels)
    mechanism.accumulate(totals[1], embedding(torch.from_numpy(extra).float() / 255), torch.tensor([label]))
    moved = (totals[1] - totals[0]).norm(dim=1)
    others = [number for number in range(CLASSES) if number != label]
    assert 1 - 1e-4 < moved[label] <= 1 + 1e-12  # sums of float64 round; each row itself is at most 1 - 1e-6
    assert (moved[others] == 0).all()


# The one release


def _data_reads(monkeypatch) -> list[slice]:
    reads: list[slice] = []
    original = mean_embedding.load_batch

    def remember(data, selection, device):
        reads.append(selection)
        return original(data, selection, device)

    monkeypatch.setattr(mean_embedding, "load_batch", remember)
    return reads


def test_the_data_are_read_once_and_charged_as_one_unsampled_gaussian(tmp_path, monkeypatch):
    reads = _data_reads(monkeypatch)
    tiny_train("dp-merf", tiny_data(), tmp_path / "run", runtime={"micro_batch": 16})
    assert [range(RECORDS)[each] for each in reads] == [range(16), range(16, 32), range(32, RECORDS)]
    (event,) = Ledger.open(tmp_path / "run" / "ledger.jsonl").events()
    assert (event.mechanism, event.sampling, event.sensitivity) == ("gaussian", NoSampling(), "C")
    assert (event.count, event.planned, event.executed) == (1, 1, 1)
    assert [line["kind"] for line in read_lines(tmp_path / "run" / "ledger.jsonl")] == ["plan", "reserve", "note"]


def test_a_resumed_run_reads_no_data_and_fits_the_same_embedding(tmp_path, monkeypatch):
    interrupt("dp-merf", tiny_data(), tmp_path / "run")
    before = (tmp_path / "run" / "private" / "embedding.safetensors").read_bytes()
    reads = _data_reads(monkeypatch)
    resume(tiny_data(), tmp_path / "run")
    assert reads == []
    assert (tmp_path / "run" / "private" / "embedding.safetensors").read_bytes() == before


def _lost(run):
    (run / "private" / "embedding.safetensors").unlink()


def _line_lost(run):
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(lines[0])


@pytest.mark.parametrize(
    ("damage", "error", "sentence"),
    [
        pytest.param(_lost, BudgetError, "was paid for, but .*embedding.safetensors is gone", id="result lost"),
        pytest.param(_line_lost, InputError, "the ledger does not hold the execution", id="record lost"),
    ],
)
def test_the_embedding_is_never_drawn_a_second_time(tmp_path, damage, error, sentence):
    """Two noisy sums of the same data would be worth twice the budget, so a run that lost either half stops."""
    interrupt("dp-merf", tiny_data(), tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(error, match=sentence):
        resume(tiny_data(), tmp_path / "run")


def _exact_sum(run, data) -> torch.Tensor:
    embedding = Embedding(read_tensors(run / "private" / "frequencies.safetensors")[0]["frequencies"], 0.02)
    features = embedding(torch.from_numpy(data.images).float() / 255).double()
    total = torch.zeros(CLASSES, features.shape[1], dtype=torch.float64)
    return total.index_add(0, torch.from_numpy(data.labels), features)


def _fits(noise: np.ndarray, deviation: float) -> bool:
    """Two-sided chi-square test of the noise's variance."""
    statistic = float((noise**2).sum() / deviation**2)
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], noise.size)
    return low <= statistic <= high


def test_the_noise_on_the_sum_has_the_deviation_of_the_certificate(tmp_path):
    """24,000 values: an error of 10 % in the scale is sure to be noticed."""
    data, run = tiny_data(), tmp_path / "run"
    release = tiny_train("dp-merf", data, run, method={"frequencies": 4000, "steps": 1})
    noisy = read_tensors(run / "private" / "embedding.safetensors")[0]["total_dp"]
    noise = (noisy - _exact_sum(run, data)).numpy().ravel()
    deviation = release.certificate.events[0].noise_multiplier  # times the clip bound, which is 1
    assert _fits(noise, deviation)
    assert not _fits(noise, 1.1 * deviation)
    assert not _fits(noise, 0.9 * deviation)
    assert stats.kstest(noise / deviation, "norm").pvalue > FALSE_ALARM


# After the release: nothing but post-processing


@given(sizes=st.lists(st.integers(5, 500), min_size=1, max_size=6))
@settings(deadline=None)
def test_class_sizes_and_mean_embeddings_are_recovered_from_the_sum(sizes):
    images = torch.rand(len(sizes), PIXELS, generator=torch.Generator().manual_seed(1))
    features = embedding_of()(images).double()
    total = features * torch.tensor(sizes, dtype=torch.float64)[:, None]  # every image as often as its class is large
    found = NoisyMeans.from_total(total, 0.02, nominal_units=sum(sizes))
    assert found.shares_dp.numpy() == pytest.approx(np.array(sizes) / sum(sizes), rel=1e-4)
    assert torch.allclose(found.means_dp.double(), features[:, :-1], atol=1e-4)


def test_a_class_that_the_noise_makes_negative_or_empty_gets_a_small_public_share():
    total = torch.zeros(3, 2 * FREQUENCIES + 1, dtype=torch.float64)
    total[0, -1], total[1, -1] = 100 * 0.02**0.5, -7.0
    found = NoisyMeans.from_total(total, 0.02, nominal_units=300)
    assert torch.isfinite(found.means_dp).all()
    due = 0.01 * 300 / 3  # one per cent of an equal share of the nominal records
    assert found.shares_dp.numpy() == pytest.approx(np.array([100, due, due]) / (100 + 2 * due))


def test_released_label_weights_are_the_class_shares_when_noise_is_small(tmp_path):
    """With noise 0.01 the size of a class is known to within 0.4 records, except with probability 1e-6."""
    labels = [0] * 5 + [1] * 13 + [2] * 19
    config = {"privacy": {"noise_multiplier": 0.01}, "method": {"frequencies": 16, "steps": 1, "batch": 6, "width": 4}}
    train("dp-merf", with_labels(labels), Budget(1e5, 1e-5), tmp_path / "run", TrainOptions(config=config))
    weights = np.array(load(tmp_path / "run").generator.config.label_weights)
    deviation = 0.01 / math.sqrt(0.02)
    bound = stats.norm.isf(FALSE_ALARM / 6) * deviation
    assert bound < 0.4
    assert 37 * weights == pytest.approx(np.array([5, 13, 19]), abs=2 * bound)


# The distance


def _exact_means(generator, embedding) -> torch.Tensor:
    """The mean embedding of each class over all equally likely latent values."""
    latent = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * generator.config.latent)
    means = []
    for label in range(CLASSES):
        labels = torch.full((len(latent),), label)
        images = generator.pixels(generator(latent, labels))
        means.append(embedding(images)[:, :-1].double().mean(dim=0))
    return torch.stack(means)


@pytest.mark.parametrize("per_class", [2, 5])
def test_the_expected_estimate_is_the_squared_distance(per_class):
    """A generator with eight latent values, so that its exact mean embedding is known; a false alarm in 1e6 runs."""
    torch.manual_seed(3)
    config = GeneratorConfig(shape=(1, 8, 8), classes=CLASSES, latent=3, latent_law="bernoulli", width=4)
    generator = build_generator(config)
    for parameter in generator.parameters():
        parameter.data *= 3  # images that differ, so that the correction for few images matters
    embedding = Embedding(0.6 * torch.randn(64, FREQUENCIES), size_share=0.02)
    means, shares = 0.1 * torch.randn(CLASSES, 2 * FREQUENCIES), torch.tensor([0.5, 0.3, 0.2])
    target = NoisyMeans(means, shares)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        own_means = _exact_means(generator, embedding)
        fit = Fit(generator, embedding, target, EmbeddingConfig(batch=per_class * CLASSES))
        draws = [fit.loss(random) for _ in range(1500)]
    exact = float((shares * (own_means - means).square().sum(dim=1)).sum())
    spread = float((shares * (0.98 - own_means.square().sum(dim=1))).sum())  # what differs between images of a class
    estimates = np.array([float(draw) for draw in draws])
    error = stats.norm.isf(FALSE_ALARM / 2) * estimates.std(ddof=1) / math.sqrt(len(estimates))
    assert spread / per_class > 4 * error, "the test must be able to see the bias that the estimator removes"
    assert abs(estimates.mean() - exact) < error


def test_at_least_two_images_of_each_class_are_compared():
    """One image has no spread to correct for: a small batch is filled up instead of divided by zero."""
    torch.manual_seed(0)
    generator = build_generator(GeneratorConfig(shape=(1, 8, 8), classes=CLASSES, latent=2, width=4))
    embedding = Embedding(torch.randn(64, FREQUENCIES), size_share=0.02)
    target = NoisyMeans(torch.zeros(CLASSES, 2 * FREQUENCIES), torch.full((CLASSES,), 1 / CLASSES))
    assert torch.isfinite(Fit(generator, embedding, target, EmbeddingConfig(batch=1)).loss(torch.Generator()))


def test_several_length_scales_are_mixed_in_equal_parts(tmp_path):
    run = tmp_path / "run"
    tiny_train("dp-merf", tiny_data(), run, method={"frequencies": 2000, "steps": 1, "length_scales": (0.5, 2.0)})
    frequencies = read_tensors(run / "private" / "frequencies.safetensors")[0]["frequencies"].double()
    for part, scale in enumerate((0.5, 2.0)):
        values = frequencies[:, part::2].numpy().ravel() * scale * 8  # 8: the square root of the number of pixels
        assert _fits(values, 1.0)
        assert not _fits(values, 1.1)


def test_raw_values_outside_the_range_are_pulled_back_where_the_output_is_cut():
    """Cut values tell the embedding nothing about how far outside they lie, so a penalty with a gradient must."""
    generator = build_generator(GeneratorConfig(shape=(1, 8, 8), classes=3, width=2, latent=2, output="clamp"))
    embedding = Embedding(torch.zeros(64, 4), 0.02)  # sees nothing: all that is left is the penalty
    target = NoisyMeans(torch.zeros(3, 8), torch.ones(3) / 3)
    last = generator.body[-1]
    torch.nn.init.constant_(last.weight, 0.0)
    torch.nn.init.constant_(last.bias, 3.0)
    Fit(generator, embedding, target, EmbeddingConfig(batch=6)).loss(torch.Generator().manual_seed(0)).backward()
    assert last.bias.grad.item() > 0, "a pixel of 3 is pulled down"


# Colour


COLOUR = Domain(shape=(3, 16, 16), classes=2, nominal_records=100)


def test_frequencies_are_tinted_where_that_is_asked_for_and_stay_so():
    assert EmbeddingConfig().decided(COLOUR, 1.0).tinted == 0.0
    again = EmbeddingConfig(tinted=0.2).decided(COLOUR, 1.0)
    assert again.tinted == 0.2
    assert again.decided(COLOUR, 1.0) == again


def test_a_tinted_frequency_sees_the_mean_colour_of_one_place_and_nothing_else():
    seen = tinted_frequencies((3, 16, 8), 300, torch.Generator().manual_seed(0)).T.view(300, 3, 16, 8)
    inside = seen.abs().sum(dim=1) > 0
    assert sorted(set(inside.sum(dim=(1, 2)).tolist())) == [4 * 2, 8 * 4, 16 * 8]
    assert inside.any(dim=0).all(), "places lie everywhere"
    colours = seen.sum(dim=(2, 3))
    where = inside.float() / inside.sum(dim=(1, 2), keepdim=True)
    torch.testing.assert_close(seen, colours[:, :, None, None] * where[:, None])


def test_images_of_two_colours_are_not_taken_for_images_of_the_colour_between(tmp_path):
    """Same outline, same mean image: frequencies over all pixels see a tenth of it."""
    random = torch.Generator().manual_seed(0)
    outline = torch.zeros(3, 16, 16)
    outline[:, 4:12, 4:12] = 0.6
    tint = torch.tensor([0.08, 0.0, -0.08])[:, None, None] * (outline > 0)
    both, between = torch.stack([outline + tint, outline - tint]), torch.stack([outline, outline])

    def apart(frequencies: torch.Tensor) -> float:
        embedding = Embedding(frequencies, 0.02)
        return float((embedding(both).mean(dim=0) - embedding(between).mean(dim=0)).square().sum())

    tinted = apart(tinted_frequencies((3, 16, 16), 2000, random))
    over_all = apart(torch.randn(768, 2000, generator=random) / (0.25 * 768**0.5))
    assert tinted > 10 * over_all


def test_a_run_in_colour_keeps_its_frequencies_and_every_record_has_norm_one(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    data = from_arrays(images, np.arange(40) % 2, classes=2, records=40)
    release = tiny_train("dp-merf", data, tmp_path / "run", method={"frequencies": 60, "tinted": 0.25})
    assert release.method_config["method"]["tinted"] == 0.25
    (kept,) = read_tensors(next((tmp_path / "run").rglob("*frequencies*")))[0].values()
    assert kept.shape == (192, 60)
    flat = kept.view(3, 8, 8, 60).flatten(1, 2).std(dim=1).min(dim=0).values < 1e-6
    assert flat.sum() == 5, "of fifteen tinted ones every third sees the whole image"
    rows = Embedding(kept, 0.02)(torch.from_numpy(data.images).float() / 255)
    assert rows.norm(dim=1).sub(1).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["dp-merf", pytest.param("dp-merf-ae", marks=pytest.mark.slow)])
def test_the_preset_for_colour_spends_the_budget_fits_a_card_and_takes_minutes(name):
    method, cifar = get_method(name), Domain(shape=(3, 32, 32), classes=10, nominal_records=50_000)
    plan = method.plan(configure(method, {}, "gpu-colour"), cifar, Budget(10, 1e-5))
    assert 9.99 < plan.epsilon <= 10
    assert plan.memory_bytes < 40 * 2**30
    assert plan.seconds_on_gpu < 10 * 60


def test_a_config_without_tinted_frequencies_is_written_as_before_there_were_any():
    assert "tinted" not in EmbeddingConfig().decided(COLOUR, 1.0).model_dump(mode="json")
    for config in (EmbeddingConfig(tinted=0.0), EmbeddingConfig(tinted=0.3).decided(COLOUR, 1.0)):
        assert EmbeddingConfig.model_validate(config.model_dump(mode="json")) == config
