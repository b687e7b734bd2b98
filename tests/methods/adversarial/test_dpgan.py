"""DPGAN: the prices of its presets, what a generator step reads and follows, resuming, and that it learns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from understudy.api import TrainOptions, resume, train
from understudy.data.arrays import from_arrays
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.methods.adversarial.dpgan import DpGanMethodConfig
from understudy.methods.adversarial.learner import AdversarialLearner
from understudy.methods.adversarial.schedule import StepSchedule
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.models.dpgan import DpganDiscriminator, DpganDiscriminatorConfig
from understudy.models.generator import GeneratorConfig
from understudy.privacy.budget import Budget, NoBudget
from understudy.privacy.ledger import Ledger
from understudy.privacy.plan import Plan
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

from ...helpers.cases import BUDGET, CASES, NOT_PRIVATE
from ...helpers.data import tiny_data
from ...helpers.runs import interrupt, read_lines, tiny_train

MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)


def plan_of(preset: str, epsilon: float, method: str = "dpgan", **changes: Any) -> Plan:
    implementation = get_method(method)
    return implementation.plan(configure(implementation, changes, preset), MNIST, Budget(epsilon, 1e-5))


# The presets of the paper


@pytest.mark.parametrize(
    ("preset", "batch", "noise", "steps", "epsilon"),
    [
        ("paper-eps10", 128, 1.0, 450_000, 9.28),
        ("paper-eps10-fashion", 128, 1.0, 450_000, 9.28),
        ("paper-eps10-adaptive", 512, 2.0, 174_000, 9.39),
        ("paper-eps1", 128, 5.0, 325_000, 0.914),
        ("paper-eps1-adaptive", 512, 14.0, 165_000, 0.920),
    ],
)
def test_a_preset_costs_what_the_tight_accountants_say(preset, batch, noise, steps, epsilon):
    plan = plan_of(preset, 10)
    (event,) = plan.events
    assert (event.noise_multiplier, event.count, event.sensitivity) == (noise, steps, "C")
    assert event.sampling.model_dump() == {"kind": "poisson", "rate": batch / 60_000}
    assert plan.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert plan.steps == steps


@pytest.mark.parametrize(
    ("preset", "discriminator_steps", "threshold"),
    [
        ("paper-eps10", 50, 0.6),
        ("paper-eps10-fashion", 100, 0.6),
        ("paper-eps10-adaptive", "adaptive", 0.6),
        ("paper-eps1", 200, 0.6),
        ("paper-eps1-adaptive", "adaptive", 0.7),
    ],
)
def test_a_preset_is_the_paper_and_nothing_of_ours(preset, discriminator_steps, threshold):
    config = plan_of(preset, 10).config
    assert (config.method.discriminator_steps, config.method.schedule.threshold) == (discriminator_steps, threshold)
    assert (config.method.width, config.method.latent, config.privacy.clip) == (64, 128, 1.0)
    assert (config.method.learning_rate, config.method.generator_learning_rate) == (2e-4, 2e-4)
    assert config.method.betas == (0.5, 0.999)
    assert (config.privacy.embedding_share, config.method.average_decay, config.method.head_start) == (0.0, 0.0, 0)


def test_every_preset_is_tried_here():
    tried = {"paper-eps10", "paper-eps10-fashion", "paper-eps10-adaptive", "paper-eps1", "paper-eps1-adaptive"}
    assert set(get_method("dpgan").presets) == tried | {"gpu", "gpu-eps1"}


@pytest.mark.parametrize(
    ("preset", "epsilon", "steps", "latent"), [("gpu", 10, 50_000, 128), ("gpu-eps1", 1, 5000, 16)]
)
def test_the_presets_for_a_card_spend_the_whole_budget_on_steps_and_an_embedding(preset, epsilon, steps, latent):
    plan = plan_of(preset, epsilon)
    assert 0.999 * epsilon < plan.epsilon <= epsilon
    assert [event.count for event in plan.events] == [steps, 1]
    assert plan.config.method.latent == latent


def test_what_a_preset_leaves_unspent_can_be_calibrated_away():
    plan = plan_of("paper-eps10-adaptive", 10, privacy={"noise_multiplier": None})
    assert 9.98 < plan.epsilon <= 10
    assert plan.config.privacy.noise_multiplier < 2.0


def test_fewer_steps_than_a_preset_need_less_noise():
    scaled = plan_of("paper-eps10-adaptive", 10, privacy={"noise_multiplier": None, "steps": 20_000})
    assert scaled.steps == 20_000
    assert scaled.config.privacy.noise_multiplier < 1.0


def test_the_published_dp_cgan_costs_far_less_than_the_ten_it_was_reported_at():
    plan = plan_of("paper", 10, "dp-cgan")
    assert (plan.config.privacy.clip, plan.config.privacy.noise_multiplier) == (1.1, 2.1)
    assert (plan.events[0].count, plan.events[0].sampling.rate) == (30_000, 600 / 60_000)
    assert plan.config.method.discriminator_steps == 1
    assert plan.epsilon == pytest.approx(3.767, rel=1e-3)


def test_dp_cgan_on_small_images_is_as_short_as_dpgan():
    small = Domain(shape=(1, 8, 8), nominal_records=1437, classes=10)
    plans = [
        get_method(name).plan(configure(get_method(name), {}), small, Budget(10, 1e-5)) for name in ("dp-cgan", "dpgan")
    ]
    assert plans[0].steps == plans[1].steps == 1000


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="'best' is unknown for dpgan; choose one of gpu, gpu-eps1, paper-eps1, "):
        configure(get_method("dpgan"), {}, "best")
    with pytest.raises(InputError, match="preset: 'best' is unknown for fedavg-gan; it has none"):
        configure(get_method("fedavg-gan"), {}, "best")


def test_a_batch_above_the_declared_records_is_refused():
    implementation = get_method("dpgan")
    config = configure(implementation, {"privacy": {"batch": 60_001}})
    with pytest.raises(InputError, match="batch: an expected size of 60001 out of 60000"):
        implementation.plan(config, MNIST, BUDGET)


def test_a_batch_whose_sum_is_not_exact_enough_is_refused_before_a_run_begins():
    implementation = get_method("dpgan")
    config = configure(implementation, {"privacy": {"batch": 16_385}})
    with pytest.raises(InputError, match="batch: 16,385, but a step sums in single precision"):
        implementation.plan(config, MNIST, BUDGET)


# The generator's side: post-processing


@pytest.fixture
def learner(tmp_path: Path) -> AdversarialLearner:
    return make_learner(tmp_path)


def make_learner(folder: Path, decay: float = 0.0) -> AdversarialLearner:
    implementation = get_method("gan")
    config = configure(implementation, NOT_PRIVATE["gan"].config())
    plan = implementation.plan(config, tiny_data().domain, NoBudget())
    data = tiny_data()
    run = Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(3), torch.device("cpu"))
    network = GeneratorConfig(kind="dpgan", shape=(1, 8, 8), classes=3, latent=2, width=2)
    settings = DpGanMethodConfig(generator_learning_rate=1e-2, average_decay=decay)
    return AdversarialLearner(run, network, settings, batch=16)


def discriminator() -> DpganDiscriminator:
    torch.manual_seed(1)
    return DpganDiscriminator(DpganDiscriminatorConfig(shape=(1, 8, 8), classes=3, width=2))


def test_a_generator_step_follows_the_gradient_of_minus_log_d(learner, monkeypatch):
    """The gradient that the optimiser is given is that of mean(-log sigmoid(D(G(z, y)))), by finite differences."""
    judge = discriminator().double()
    live = learner.live.double()
    latent, labels = torch.randn(16, 2, dtype=torch.float64), torch.arange(16) % 3
    monkeypatch.setattr(live, "draw_latent", lambda count, random: latent)
    monkeypatch.setattr(live, "draw_labels", lambda count, random: labels)
    before = copy.deepcopy(live.state_dict())

    def objective() -> float:
        with torch.no_grad():
            return float(-judge(live.pixels(live(latent, labels)), labels).sigmoid().log().mean())

    loss, _ = learner.step(judge, 0)
    live.load_state_dict(before)  # where the gradient was taken
    assert float(loss) == pytest.approx(objective(), rel=1e-6)
    weight = live.layers[0].weight
    for place in [(0, 0, 0, 0), (1, 1, 1, 2)]:
        with torch.no_grad():
            weight[place] += 1e-5
            above = objective()
            weight[place] -= 2e-5
            below = objective()
            weight[place] += 1e-5
        assert float(weight.grad[place]) == pytest.approx((above - below) / 2e-5, rel=1e-3)


def test_a_generator_step_lowers_its_loss_and_leaves_the_discriminator_alone(learner):
    judge = discriminator()
    before = copy.deepcopy(judge.state_dict())
    losses = [float(learner.step(judge, number)[0]) for number in range(150)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    assert all(torch.equal(value, before[name]) for name, value in judge.state_dict().items())
    assert all(weight.grad is None for weight in judge.parameters())


def test_the_accuracy_is_the_share_of_fakes_that_were_told_from_before_the_step(learner):
    class Judge(torch.nn.Module):
        def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            self.seen = len(images)
            return images.flatten(1).sum(dim=1) * 0 + torch.where(torch.arange(len(images)) < 4, 1.0, -1.0)

    judge = Judge()
    _, accuracy = learner.step(judge, 0)
    assert (judge.seen, float(accuracy)) == (16, 12 / 16)


def test_the_average_moves_behind_the_live_weights(tmp_path):
    learner, judge = make_learner(tmp_path, decay=0.9), discriminator()
    weights = []
    for number in range(30):
        learner.step(judge, number)
        weights.append(torch.cat([weight.detach().flatten() for weight in learner.live.parameters()]))
    expected = weights[0].clone()
    for number, current in enumerate(weights[1:], start=1):
        expected = torch.lerp(expected, current, 1 - min(0.9, number / (number + 10)))
    found = torch.cat([weight.detach().flatten() for weight in learner.released.parameters()])
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, weights[-1], atol=1e-4)


def test_generator_steps_and_the_schedule_read_no_private_data(learner):
    """They are given a run whose data cannot be read: everything they do is about generated images."""
    judge, schedule = discriminator(), StepSchedule.fixed(1)
    assert not any("data" in name for name in vars(learner)), "the generator's side keeps no hold of the data"
    for number in range(3):
        _, accuracy = learner.step(judge, number)
        schedule.count_generator_step(float(accuracy))
    assert set(vars(schedule)) == {
        "_settings", "_rung", "_since_generator", "_on_rung", "generator_steps", "average"
    }  # fmt: skip


# Runs


def test_the_loop_takes_the_planned_steps_and_a_generator_step_after_every_n(tmp_path):
    case = "dpgan with a fixed number of steps, no embedding and an average"
    tiny_train(case, tiny_data(), tmp_path / "run", privacy={"steps": 9}, method={"discriminator_steps": 2})
    lines = read_lines(tmp_path / "run" / "progress.jsonl")
    assert [(line["step"], line["generator_steps"]) for line in lines] == [(step, step // 2) for step in range(1, 10)]
    (event,) = Ledger.open(tmp_path / "run" / "ledger.jsonl").events()
    assert (event.planned, event.executed) == (9, 9)


def test_the_head_start_is_for_the_discriminator_alone(tmp_path):
    tiny_train("dp-cgan", tiny_data(), tmp_path / "run", privacy={"steps": 6}, method={"head_start": 4})
    lines = read_lines(tmp_path / "run" / "progress.jsonl")
    assert [line["generator_steps"] for line in lines] == [0, 0, 0, 0, 1, 2]


def test_diagnostics_hold_clipping_accuracies_and_moves_and_stay_private(tmp_path, monkeypatch):
    folder, step = tmp_path / "run", AdversarialLearner.step

    def always_fooled(
        self: AdversarialLearner, judge: torch.nn.Module, number: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return step(self, judge, number)[0], torch.tensor(0.25)

    monkeypatch.setattr(AdversarialLearner, "step", always_fooled)
    tiny_train("dpgan", tiny_data(), folder, privacy={"steps": 12}, method={"head_start": 0})
    lines = read_lines(folder / "private" / "diagnostics.jsonl")
    clipped = [line["clipped"] for line in lines if "clipped" in line]
    assert clipped
    assert all(0 <= share <= 1 for share in clipped)
    accuracies = [pair for line in lines for pair in line.get("accuracy_on_fakes", [])]
    reported = [line["generator_steps"] for line in read_lines(folder / "progress.jsonl")]
    assert len(accuracies) == reported[-1]
    assert not any("clipped" in line or "gradient_norm" in line for line in read_lines(folder / "progress.jsonl"))
    assert accuracies == [[step, 0.25] for step in (1, 3, 8)]
    moves = [(line["step"], line["discriminator_steps"]) for line in lines if "average" in line]
    assert moves == [(1, 2), (3, 5), (8, 10)]


def test_pictures_over_time_are_kept_in_the_private_folder(tmp_path):
    tiny_train("dpgan", tiny_data("rgb"), tmp_path / "run")
    paths = sorted((tmp_path / "run" / "private" / "samples").glob("*.png"))
    assert [int(path.stem) for path in paths] == [1, 2, 3, 4]
    with Image.open(paths[-1]) as picture:
        assert (picture.size, picture.mode) == ((80, 24), "RGB")


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.name in ("dpgan", "dp-cgan")])
def test_a_resumed_run_takes_up_schedule_discriminator_and_optimisers(case, tmp_path):
    """Up to the noise: with a seed, the steps before the interruption are those of the undisturbed run."""
    data, folder = tiny_data(), tmp_path / "run"
    interrupt(case, data, folder, privacy={"steps": 8})
    before = read_lines(folder / "progress.jsonl")[-1]
    resume(data, folder)
    lines = read_lines(folder / "progress.jsonl")
    assert [line["step"] for line in lines] == list(range(1, lines[-1]["step"] + 1))
    assert all(line["generator_steps"] >= before["generator_steps"] for line in lines[before["step"] :])
    for event in Ledger.open(folder / "ledger.jsonl").events():
        assert event.executed <= event.planned == event.count


def two_patterns(count: int = 400) -> Any:
    """Class 0: bright left half; class 1: bright right half; of varying brightness."""
    labels, images = np.arange(count) % 2, np.zeros((count, 8, 8), dtype=int)
    level = np.random.default_rng(0).integers(120, 250, count)[:, None, None]
    images[labels == 0, :, :4] = level[labels == 0]
    images[labels == 1, :, 4:] = level[labels == 1]
    return from_arrays(images.astype(np.uint8), labels, classes=2, records=count)


def tells_the_classes_apart(release: Any) -> bool:
    left, right = (release.sample(200, labels=[label], seed=2)[0].astype(float) for label in (0, 1))
    bright, dark = (left[:, :, :4], right[:, :, 4:]), (left[:, :, 4:], right[:, :, :4])
    return all(high.mean() > low.mean() + 40 for high, low in zip(bright, dark, strict=True))


@pytest.mark.slow
def test_the_loop_without_noise_learns_what_a_class_looks_like(tmp_path):
    rates = {"learning_rate": 3e-3, "generator_learning_rate": 3e-3}
    config = {
        "privacy": {"batch": 64, "steps": 300},
        "method": {"width": 8, "latent": 4, "average_decay": 0.0, **rates},
        "runtime": {"device": "cpu"},
    }
    torch.manual_seed(0)  # the first weights; they need no secrecy
    release = train("gan", two_patterns(), None, tmp_path / "run", TrainOptions(config=config, seed=2))
    assert tells_the_classes_apart(release)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "learnt"), [(0.5, True), pytest.param(0.0, False, marks=pytest.mark.slow)])
def test_an_embedding_gives_a_start_that_a_few_steps_alone_do_not(share, learnt, tmp_path):
    embedding = {"frequencies": 200, "steps": 100, "batch": 60, "learning_rate": 5e-3}
    config = {
        "privacy": {"batch": 16, "steps": 5, "embedding_share": share},
        "method": {"width": 16, "latent": 4, "embedding": embedding},
        "runtime": {"device": "cpu"},
    }
    torch.manual_seed(0)
    release = train("dpgan", two_patterns(), BUDGET, tmp_path / "run", TrainOptions(config=config, seed=1))
    assert tells_the_classes_apart(release) == learnt


def test_the_logistic_loss_of_the_generator_is_softplus():
    """-log sigmoid(x) = softplus(-x): the non-saturating loss, finite where the sigmoid underflows."""
    logits = torch.tensor([-200.0, -1.0, 0.0, 3.0])
    assert torch.allclose(functional.softplus(-logits)[1:], -logits.sigmoid().log()[1:])
    assert float(functional.softplus(-logits)[0]) == 200.0
