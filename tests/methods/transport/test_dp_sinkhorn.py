"""dp-sinkhorn: its event, the noise where it is used, broken values, and that the transport teaches something."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from understudy.api import TrainOptions, train
from understudy.data.arrays import from_arrays
from understudy.data.domain import Domain
from understudy.engines.learner import SlopeLearner
from understudy.errors import AbortedRun, CheckError, InputError
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.methods.transport import sinkhorn
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianBlocks

from ...helpers.cases import BUDGET, CLASSES
from ...helpers.data import tiny_data
from ...helpers.runs import tiny_train

FALSE_ALARM = 1e-6
MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)


def plan_of(domain: Domain = MNIST, preset: str | None = None, **groups):
    method = get_method("dp-sinkhorn")
    return method.plan(configure(method, groups, preset), domain, BUDGET)


# The plan


def test_steps_are_poisson_sampled_gaussians_of_sensitivity_2c():
    plan = plan_of(privacy={"noise_multiplier": 2.0, "batch": 600, "steps": 4000, "embedding_share": 0.0})
    (event,) = plan.events
    assert (event.sampling, event.sensitivity, event.count) == (PoissonSampling(rate=0.01), "2C", 4000)
    assert plan.epsilon == accounting.certified_epsilon([event], 1e-5)


def test_golden_price_of_a_plan():
    """The Poisson-sampled Gaussian at (1.5, 0.04, 2250) costs 6.768787: the sensitivity is part of the multiplier."""
    privacy = {"noise_multiplier": 1.5, "batch": 2400, "steps": 2250, "embedding_share": 0.0}
    assert plan_of(privacy=privacy).epsilon == pytest.approx(6.768787, rel=2e-3)


def test_an_embedding_takes_its_share_and_the_steps_the_rest():
    plan = plan_of(privacy={"steps": 100, "embedding_share": 0.3})
    steps, embedding = plan.events
    assert (embedding.count, embedding.sensitivity) == (1, "C")
    assert accounting.certified_epsilon([embedding], 1e-5) == pytest.approx(3.0, abs=0.01)
    assert accounting.certified_epsilon([steps], 1e-5) < plan.epsilon <= 10


def test_cells_are_decided_from_public_numbers_and_cost_nothing():
    given = {"steps": 50, "noise_multiplier": 5.0}
    few, many = (plan_of(method={"transport": {"cells": cells}}, privacy=given) for cells in (1, 9))
    assert few.events == many.events
    assert plan_of(privacy=given).config.method.transport.cells == 20  # 600 of 10 classes, three in a cell
    one_block = plan_of(preset="joint", privacy=given)
    assert (one_block.config.method.transport.cells, len(one_block.events)) == (1, 1)


@pytest.mark.parametrize(
    "groups",
    [
        {"privacy": {"clip": 1e-4}},
        {"method": {"transport": {"regularisation": 1e-4}}},
        {"method": {"transport": {"label_cost": 1e4}}},
    ],
)
def test_settings_that_would_magnify_rounding_are_refused(groups):
    with pytest.raises(InputError, match=r"config: .*(clip|regularisation|label_cost)"):
        configure(get_method("dp-sinkhorn"), groups)


def test_a_batch_above_the_declared_records_is_refused():
    with pytest.raises(InputError, match="batch: an expected size of 61000"):
        plan_of(privacy={"batch": 61_000})


# The answers


@pytest.fixture
def answers(monkeypatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every matrix that was sanitized, as it went in and as it came out."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    answer = GaussianBlocks.answer

    def remember(self, blocks_private, *, block=1):
        sanitized = answer(self, blocks_private, block=block)
        seen.append((blocks_private.clone(), sanitized.value_dp.clone()))
        return sanitized

    monkeypatch.setattr(GaussianBlocks, "answer", remember)
    return seen


def test_the_generator_hears_the_clipped_blocks_with_the_noise_that_is_accounted(tmp_path, answers, monkeypatch):
    heard: list[torch.Tensor] = []
    learn = SlopeLearner.learn
    monkeypatch.setattr(
        SlopeLearner, "learn", lambda self, drawn, slopes: (heard.append(slopes.clone()), learn(self, drawn, slopes))
    )
    tiny_train("dp-sinkhorn", tiny_data(), tmp_path / "run", privacy={"clip": 0.5, "noise_multiplier": 2.0})
    assert len(answers) == len(heard) == 4
    for (blocks, sanitized), slopes in zip(answers, heard, strict=True):
        assert blocks.shape == (2 * CLASSES, 3 * 64)
        assert torch.allclose(slopes, sanitized * math.sqrt(3) / 0.5)  # three images share the norm of a block
    noise = torch.cat([(out - _clipped(blocks, 0.5)).flatten() for blocks, out in answers]).numpy()
    deviation = 2 * 0.5 * 2.0
    law = stats.chi2(noise.size, scale=deviation**2)
    assert law.ppf(FALSE_ALARM / 2) < float((noise**2).sum()) < law.isf(FALSE_ALARM / 2)


def _clipped(blocks: torch.Tensor, bound: float) -> torch.Tensor:
    return blocks * (bound / blocks.norm(dim=1, keepdim=True).clamp(min=bound))


def test_every_step_is_one_execution_and_no_step_is_free(tmp_path, answers):
    tiny_train("dp-sinkhorn", tiny_data(), tmp_path / "run")
    steps = next(
        event for event in Ledger.open(tmp_path / "run" / "ledger.jsonl").events() if event.sensitivity == "2C"
    )
    assert steps.executed == steps.planned == len(answers)


# Broken values


def test_slopes_that_are_not_finite_stop_the_run_and_release_nothing(tmp_path, monkeypatch):
    broken = lambda fakes, *rest: torch.full_like(fakes, math.nan)  # noqa: E731
    monkeypatch.setattr(sinkhorn, "divergence_slopes", broken)
    with pytest.raises(AbortedRun, match=r"'transport gradients' were not finite, .*lower the learning rate"):
        tiny_train("dp-sinkhorn", tiny_data(), tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


def test_a_generator_that_stays_blank_stops_the_run_with_advice(tmp_path, monkeypatch):
    blank = lambda self, count: type("Pool", (), {"images": torch.zeros(count, 1, 8, 8)})()  # noqa: E731
    monkeypatch.setattr(SlopeLearner, "pool", blank)
    with pytest.raises(
        CheckError, match=r"lower method.generator.learning_rate, raise method.transport.regularisation"
    ):
        tiny_train("dp-sinkhorn", tiny_data(), tmp_path / "run", privacy={"steps": 8})


# Learning


@pytest.mark.slow
@pytest.mark.parametrize("transport", [{"cells": 1, "images": 8}, {"cells": 1, "images": 16, "label_cost": 0.5}])
def test_without_much_noise_classes_are_learnt_from_transport_alone(tmp_path, transport):
    """Class 0 is bright above, class 1 below; no embedding, and a budget that allows little noise."""
    random = np.random.default_rng(0)
    labels = np.arange(200) % 2
    images = random.integers(0, 60, (200, 8, 8))
    images[labels == 0, :4] += 180
    images[labels == 1, 4:] += 180
    data = from_arrays(images.astype(np.uint8), labels, classes=2, records=200)
    config = {
        "privacy": {"noise_multiplier": 0.02, "batch": 40, "steps": 150, "embedding_share": 0.0},
        "method": {
            "transport": transport,
            "generator": {"width": 4, "latent": 2, "learning_rate": 1e-2, "average_decay": 0.9},
        },
    }
    release = train("dp-sinkhorn", data, Budget(1e6, 1e-5), tmp_path / "run", TrainOptions(config=config, seed=1))
    for label, bright in ((0, slice(0, 4)), (1, slice(4, 8))):
        drawn = release.sample(40, labels=[label], seed=0)[0].astype(float)
        assert drawn[:, bright].mean() > drawn.mean() + 40
