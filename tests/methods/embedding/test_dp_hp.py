"""dp-hp: Mehler's formula, the exact sensitivity of the one release, and what the features tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.special import eval_hermite

from understudy.data.domain import Domain
from understudy.engines.embedding import means as fitting
from understudy.errors import CheckError
from understudy.files import read_tensors
from understudy.methods.base import configure
from understudy.methods.embedding.dp_hp import HermiteConfig
from understudy.methods.embedding.hermite import HermiteFeatures, hermite_features
from understudy.methods.registry import get_method
from understudy.privacy.events import NoSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import clip_rows

from ...helpers.cases import BUDGET, CLASSES
from ...helpers.data import tiny_data
from ...helpers.runs import tiny_train

PIXELS = 9
IMAGES = arrays.arrays("uint8", (1, PIXELS), elements=st.integers(0, 255))


def features_of(**settings: float) -> HermiteFeatures:
    groups = torch.tensor([[0, 4], [3, 8], [7, 1]])
    return HermiteFeatures(groups, PIXELS, HermiteConfig(groups=3, **settings))


def as_image(values: np.ndarray) -> torch.Tensor:
    return (torch.from_numpy(values).float() / 255).view(1, 1, 3, 3)


# Features


@pytest.mark.parametrize("length_scale", [0.2, 0.5, 2.0])
def test_features_are_hermite_polynomials_with_mehlers_weights(length_scale):
    values = np.linspace(-0.5, 0.5, 7)
    rho = math.sqrt(length_scale**4 + 1) - length_scale**2
    found = hermite_features(torch.from_numpy(values), 12, length_scale).numpy()
    for degree in range(13):
        weight = (1 - rho**2) ** 0.25 * rho ** (degree / 2) / math.sqrt(2.0**degree * math.factorial(degree))
        expected = weight * eval_hermite(degree, values) * np.exp(-rho / (1 + rho) * values**2)
        assert found[:, degree] == pytest.approx(expected, abs=1e-12)


def test_golden_values_of_the_first_features():
    """At length scale 0.5 and x = 0.25, from the closed forms of H_0, H_1 and H_2."""
    found = hermite_features(torch.tensor([0.25], dtype=torch.float64), 2, 0.5)[0].tolist()
    assert found == pytest.approx([0.769083, 0.240266, -0.371529], abs=1e-6)


@pytest.mark.parametrize("length_scale", [0.3, 0.5, 1.0])
def test_many_orders_give_the_gaussian_kernel(length_scale):
    values = torch.linspace(-0.5, 0.5, 5, dtype=torch.float64)
    features = hermite_features(values, 200, length_scale)
    expected = torch.exp(-((values[:, None] - values[None]) ** 2) / (2 * length_scale**2))
    assert torch.allclose(features @ features.T, expected, atol=1e-6)


# Sensitivity


@given(image=IMAGES, share=st.floats(0, 0.99), scale=st.sampled_from([0.05, 0.5, 5.0]), order=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_no_image_has_features_longer_than_one_so_clipping_takes_nothing_away(image, share, scale, order):
    features = features_of(length_scale=scale, order=order, group_share=share)(as_image(image))
    assert features.double().norm() <= 1 + 1e-6
    assert (clip_rows(features, 1.0) - features).double().norm() < 1e-5


@given(image=IMAGES)
@settings(max_examples=30, deadline=None)
def test_with_many_orders_the_norm_is_one_so_the_sensitivity_is_exact(image):
    features = features_of(length_scale=1.0, order=60, group_order=20)(as_image(image))
    assert features.double().norm() == pytest.approx(1, abs=1e-4)


def test_each_image_is_mapped_by_itself():
    images = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    changed = images.clone()
    changed[2] = 1 - changed[2]
    before, after = features_of()(images), features_of()(changed)
    assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])
    assert not torch.equal(before[2], after[2])
    assert before.shape[1] == features_of().count


def test_groups_see_what_single_pixels_do_not():
    """Two sets of images with the same law of each pixel, one of which ties two pixels of a group together."""
    tied, free = torch.zeros(4, 1, 3, 3), torch.zeros(4, 1, 3, 3)
    tied.flatten(1)[:, [0, 4]] = torch.tensor([[0.0, 0], [0, 0], [1, 1], [1, 1]])
    free.flatten(1)[:, [0, 4]] = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    singles = PIXELS * 11
    gap = (features_of()(tied).mean(dim=0) - features_of()(free).mean(dim=0)).abs()
    assert gap[:singles].max() < 1e-6
    assert gap[singles:].max() > 1e-3


# The release and the fit


def test_the_data_are_charged_as_one_unsampled_gaussian_of_sensitivity_one(tmp_path):
    tiny_train("dp-hp", tiny_data(), tmp_path / "run")
    (event,) = Ledger.open(tmp_path / "run" / "ledger.jsonl").events()
    assert (event.sampling, event.sensitivity, event.count, event.executed) == (NoSampling(), "C", 1, 1)


def test_the_released_sum_is_the_exact_one_when_noise_is_small(tmp_path):
    data = tiny_data()
    method = {"order": 3, "groups": 5, "group_order": 2}
    budget_noise = {"noise_multiplier": 1.0}
    tiny_train("dp-hp", data, tmp_path / "run", method=method, privacy=budget_noise)
    groups = read_tensors(tmp_path / "run" / "private" / "groups.safetensors")[0]["groups"]
    assert groups.shape == (5, 2)
    assert (groups[:, 0] != groups[:, 1]).all()
    features = HermiteFeatures(groups, 64, HermiteConfig(**method))(torch.from_numpy(data.images).float() / 255)
    exact = torch.zeros(CLASSES, features.shape[1], dtype=torch.float64)
    exact.index_add_(0, torch.from_numpy(data.labels), features.double())
    noisy = read_tensors(tmp_path / "run" / "private" / "embedding.safetensors")[0]["total_dp"]
    assert noisy.shape == exact.shape
    assert (noisy - exact).std() == pytest.approx(1, rel=0.25)  # 5 deviations of the estimate for 903 values


def test_defaults_are_decided_from_the_shape_and_planning_again_gives_the_same():
    method = get_method("dp-hp")
    for shape, groups in (((1, 8, 8), 300), ((1, 28, 28), 1500)):
        plan = method.plan(configure(method, {}), Domain(shape=shape, classes=10, nominal_records=60_000), BUDGET)
        assert plan.config.method.groups == groups
        assert method.plan(plan.config, plan.domain, BUDGET).events == plan.events


def test_a_loss_that_is_not_finite_stops_the_run_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "distance", lambda images, *rest: images.sum() * math.nan)
    with pytest.raises(CheckError, match=r"not finite at step 1, .*lower method.learning_rate"):
        tiny_train("dp-hp", tiny_data(), tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()
