"""The teacher in a plan: what it takes of a budget, what is decided from public facts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.data.domain import Domain
from understudy.engines.teacher.config import PURPOSE, TaughtConfig, teacher_costs, with_teacher
from understudy.errors import InputError
from understudy.methods.config import build_config
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.plan import Costs

BUDGET = Budget(4.0, 1e-5)
COSTS = Costs(steps=3, memory_bytes=100, seconds=1.0, seconds_on_gpu=0.5)


def domain(shape: tuple[int, int, int] = (1, 28, 28), **fields: Any) -> Domain:
    return Domain(shape=shape, **{"classes": 10, "nominal_records": 60_000, **fields})


def config(share: float = 0.25, teacher: dict[str, Any] | None = None, **privacy: Any) -> TaughtConfig:
    named = {f"teacher_{name}": value for name, value in privacy.items()}
    return build_config(TaughtConfig, {"privacy": {"teacher_share": share, **named}, "teacher": teacher or {}})


def test_without_a_share_there_is_no_teacher_and_nothing_changes():
    given = config(0.0)
    assert with_teacher(given, domain(classes=None), BUDGET) == (given, ())
    assert teacher_costs(given, domain(), COSTS) == COSTS


@pytest.mark.parametrize("given", [config(0.0, {"kind": "network"}), config(0.0, steps=5)], ids=["kind", "steps"])
def test_settings_of_a_teacher_that_gets_no_share_are_refused(given):
    with pytest.raises(InputError, match="no share is given to a teacher"):
        with_teacher(given, domain(), BUDGET)


@pytest.mark.parametrize(("kind", "share"), [("linear", 0.9), pytest.param("network", 0.3, marks=pytest.mark.slow)])
def test_it_takes_its_share_of_epsilon_and_nearly_all_of_it(kind, share):
    decided, (event,) = with_teacher(config(share, {"kind": kind}, steps=50), domain(), BUDGET)
    assert 0.98 * share * 4.0 < accounting.certified_epsilon([event], 1e-5) <= share * 4.0
    assert (event.purpose, event.count, event.sensitivity, event.unit) == (PURPOSE, 50, "C", "record")
    assert event.sampling.kind == ("none" if kind == "linear" else "poisson")
    assert event.noise_multiplier == decided.privacy.teacher_noise_multiplier


def test_what_is_decided_stays_and_plans_the_same_again():
    """A released config is planned again by ``verify``, also with another budget."""
    for kind in ("linear", "network"):
        noise = None if kind == "linear" else 9.0
        decided, events = with_teacher(config(teacher={"kind": kind}, noise_multiplier=noise), domain(), BUDGET)
        for budget in (BUDGET, Budget(9.0, 1e-6)):
            assert with_teacher(decided, domain(), budget) == (decided, events)
        settings = decided.teacher
        assert settings.scales == 2
        assert settings.learning_rate > 0
        assert decided.privacy.teacher_steps > 0


def test_steps_cost_what_one_step_of_all_their_noise_costs():
    """T Gaussians of multiplier m are one of m / sqrt(T), so the number of steps is free to follow what is learnt."""
    multipliers = []
    for steps in (1, 100):
        _, (event,) = with_teacher(config(steps=steps), domain(), BUDGET)
        multipliers.append(event.noise_multiplier / steps**0.5)
    assert multipliers[0] == pytest.approx(multipliers[1], rel=1e-3)


@pytest.mark.parametrize(
    "epsilon", [pytest.param(0.5, marks=pytest.mark.slow), 1.0, pytest.param(10.0, marks=pytest.mark.slow)]
)
def test_steps_and_rate_follow_from_public_facts_so_that_noise_carries_no_weight_far(epsilon):
    decided, (event,) = with_teacher(config(0.9), domain(), Budget(epsilon, 1e-5))
    steps, rate = event.count, decided.teacher.learning_rate
    carried = rate / 0.1 * event.noise_multiplier * steps**0.5 / 60_000  # by momentum 0.9
    assert carried <= 0.101
    assert 100 <= steps <= 1000
    assert 0 < rate <= 0.51
    fewer, _ = with_teacher(config(0.9), domain(nominal_records=600), Budget(epsilon, 1e-5))
    assert fewer.teacher.learning_rate < rate


def test_a_batch_of_a_network_follows_the_declared_records():
    given = config(teacher={"kind": "network"}, noise_multiplier=9.0)
    decided, (event,) = with_teacher(given, domain(nominal_records=300), BUDGET)
    assert decided.privacy.teacher_batch == 30
    assert event.sampling.rate == pytest.approx(0.1)
    assert with_teacher(given, domain(), BUDGET)[0].privacy.teacher_batch == 1024
    with pytest.raises(InputError, match="400"):
        with_teacher(config(teacher={"kind": "network"}, batch=400), domain(nominal_records=300), BUDGET)


@pytest.mark.parametrize(
    ("shape", "scales"), [((1, 8, 8), 2), ((1, 40, 40), 2), ((1, 28, 41), 3), ((1, 64, 64), 3), ((1, 8, 64), 2)]
)
def test_scales_follow_the_size_of_the_image(shape, scales):
    noise = {"steps": 4, "noise_multiplier": 9.0}
    assert with_teacher(config(**noise), domain(shape), BUDGET)[0].teacher.scales == scales
    assert with_teacher(config(teacher={"scales": 1}, **noise), domain(shape), BUDGET)[0].teacher.scales == 1


def test_patches_have_filters_and_no_scales():
    given = config(teacher={"features": "patches", "mirrored": True}, steps=4, noise_multiplier=9.0)
    decided, _ = with_teacher(given, domain((3, 32, 32)), BUDGET)
    assert (decided.teacher.filters, decided.teacher.scales) == (256, None)
    assert with_teacher(decided, domain((3, 32, 32)), BUDGET)[0] == decided
    few = config(teacher={"features": "patches", "filters": 20}, steps=4, noise_multiplier=9.0)
    assert with_teacher(few, domain(), BUDGET)[0].teacher.filters == 20


@pytest.mark.parametrize(
    ("shape", "teacher", "features"),
    [
        ((3, 32, 32), {}, "patches"),
        ((1, 28, 28), {}, "scattering"),
        ((3, 32, 32), {"features": "scattering"}, "scattering"),
        ((1, 28, 28), {"features": "patches"}, "patches"),
        ((3, 32, 32), {"scales": 2}, "scattering"),
        ((3, 32, 32), {"directions": 4}, "scattering"),
    ],
)
def test_features_follow_the_channels_where_nobody_names_them(shape, teacher, features):
    """A config of an earlier version, which decided scales, means scattering in colour too."""
    decided, _ = with_teacher(config(teacher=teacher, steps=4, noise_multiplier=9.0), domain(shape), BUDGET)
    assert decided.teacher.released()["features"] == features
    assert with_teacher(decided, domain(shape), BUDGET)[0] == decided


def test_a_teacher_on_scattering_is_written_as_before_there_were_patches():
    """Older versions refuse keys that they do not know, and a release states the hash of its config."""
    decided, _ = with_teacher(config(steps=4, noise_multiplier=9.0), domain(), BUDGET)
    assert set(decided.teacher.model_dump()) == {"kind", "scales", "directions", "width", "learning_rate"}
    on_patches = config(teacher={"features": "patches"}).teacher.model_dump()
    assert on_patches["features"] == "patches"


def test_more_filters_take_more_time_and_memory():
    def costs(**teacher: Any) -> Costs:
        return teacher_costs(config(0.1, {"features": "patches", **teacher}, steps=4), domain((3, 32, 32)), COSTS)

    few, many, mirrored = costs(filters=64), costs(filters=512), costs(filters=64, mirrored=True)
    assert few.memory_bytes < many.memory_bytes
    assert few.seconds < mirrored.seconds < many.seconds
    assert few.seconds_on_gpu < many.seconds_on_gpu < many.seconds


@pytest.mark.parametrize(
    ("given", "declared", "words"),
    [
        (config(), domain(classes=None), "without labels, so there is nothing to teach; leave it out"),
        (config(batch=8), domain(), "a linear teacher sees all records"),
        (
            config(teacher={"scales": 3}, noise_multiplier=9.0),
            domain((1, 8, 20)),
            "8x20 pixels are too small for them; pass 2",
        ),
        (
            config(teacher={"features": "patches", "scales": 2}, noise_multiplier=9.0),
            domain(),
            "settings of scattering, but features=patches was asked for; leave them out, or set filters",
        ),
        (
            config(teacher={"filters": 9}, noise_multiplier=9.0),
            domain(),
            "would be looked at by scattering; leave them out",
        ),
        (config(teacher={"mirrored": True}, noise_multiplier=9.0), domain(), r"pass teacher\.features=patches"),
    ],
)
def test_what_cannot_be_taught_is_refused_in_one_sentence(given, declared, words):
    with pytest.raises(InputError, match=words):
        with_teacher(given, declared, BUDGET)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_share_lies_between_nothing_and_all(share):
    with pytest.raises(InputError, match="teacher_share"):
        config(share)


def test_the_owners_own_noise_is_kept_and_priced():
    decided, (event,) = with_teacher(config(0.25, steps=4, noise_multiplier=17.0), domain(), BUDGET)
    assert event.noise_multiplier == 17.0
    assert decided.privacy.teacher_noise_multiplier == 17.0


def test_its_costs_come_on_top():
    for kind in ("linear", "network"):
        decided, _ = with_teacher(config(teacher={"kind": kind}, steps=40, noise_multiplier=9.0), domain(), BUDGET)
        costs = teacher_costs(decided, domain(), COSTS)
        assert costs.steps == COSTS.steps, "those that progress tells are the generator's"
        assert costs.seconds > COSTS.seconds
        assert costs.seconds_on_gpu > COSTS.seconds_on_gpu
        assert costs.memory_bytes > 2 * 60_000 * 5184
