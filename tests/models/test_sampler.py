"""The sampler of diffusion models: levels, law, number of evaluations, guidance, temperature and seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from understudy.errors import InputError
from understudy.methods.config import build_config
from understudy.models.diffusion import DiffusionGenerator
from understudy.models.generator import DiffusionGeneratorConfig, build_generator, read_generator_config
from understudy.models.sampler import SamplerConfig, noise_levels, walk

FALSE_ALARM = 1e-6
CHURNED = {"churn": 20.0, "churn_from": 0.01, "churn_to": 50.0, "churn_noise": 1.0}


def test_levels_are_those_of_edm():
    """Eq. 5 at 18 steps, rho 7, from 80 to 0.002; computed with 50 digits."""
    levels = noise_levels(SamplerConfig())
    assert len(levels) == 19
    expected = {0: 80.0, 1: 57.58598472, 8: 3.25682152, 9: 1.92333984, 16: 0.00752801996, 17: 0.002, 18: 0}
    for place, level in expected.items():
        assert levels[place] == pytest.approx(level, rel=1e-8)
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize("rho", [1.0, 7.0, 30.0])
@pytest.mark.parametrize("steps", [2, 40])
def test_levels_begin_and_end_where_they_should(rho, steps):
    levels = noise_levels(SamplerConfig(steps=steps, rho=rho, sigma_min=0.01, sigma_max=20.0))
    assert (levels[0], levels[-2], levels[-1]) == (pytest.approx(20.0), pytest.approx(0.01), 0.0)
    assert len(levels) == steps + 1


@pytest.mark.parametrize(
    "values",
    [
        {"sigma_min": 3.0, "sigma_max": 2.0},
        {"steps": 1},
        {"steps": 5000},
        {"rho": 0.5},
        {"churn": -1.0},
        {"floor": 1.0},
        {"guidance": 101.0},
        {"autoguidance": 1e308},
    ],
)
def test_settings_that_lead_nowhere_are_refused(values):
    with pytest.raises(InputError):
        build_config(SamplerConfig, values)


# The walk, with a denoiser that is known exactly


MEAN, DEVIATION = 0.3, 0.4


def exact(noisy: Tensor, sigma: float) -> Tensor:
    """The best guess of a value from Normal(MEAN, DEVIATION^2) behind noise of level sigma."""
    share = DEVIATION**2 / (DEVIATION**2 + sigma**2)
    return MEAN + share * (noisy - MEAN)


@pytest.mark.parametrize(
    "churn", [{}, CHURNED, {**CHURNED, "churn": 5.0}], ids=["deterministic", "churned", "a little"]
)
def test_a_gaussian_comes_out_of_its_own_denoiser(churn):
    """Mean and variance of 100,000 values, and their law; false-alarm rate 1e-6, and 1 % for the steps."""
    sampler = SamplerConfig(steps=60, **churn)
    random = torch.Generator().manual_seed(5)
    first = 80.0 * torch.randn(100_000, 1, 1, 1, generator=random, dtype=torch.float64)
    found = walk(first, exact, sampler, random).flatten()
    spread = -stats.norm.ppf(FALSE_ALARM / 4) / math.sqrt(len(found))
    assert abs(float(found.mean()) - MEAN) < DEVIATION * (spread + 0.01)
    assert abs(float(found.std()) / DEVIATION - 1) < spread + 0.01
    normal = (found - found.mean()) / found.std()
    assert stats.kstest(normal.numpy(), "norm").pvalue > FALSE_ALARM


def test_without_a_generator_no_noise_is_added_on_the_way():
    first = 80.0 * torch.linspace(-2, 2, 9, dtype=torch.float64).view(9, 1, 1, 1)
    churned, plain = (walk(first, exact, SamplerConfig(**churn), None) for churn in (CHURNED, {}))
    assert torch.equal(churned, plain)
    ends = walk(first, exact, SamplerConfig(steps=400), None).flatten()
    straight = MEAN + (first.flatten() - MEAN) * DEVIATION / math.sqrt(80.0**2 + DEVIATION**2)
    assert torch.allclose(ends, straight, atol=1e-3), "the flow of a Gaussian keeps its quantiles"


def test_churn_is_added_between_its_levels_alone():
    seen: list[float] = []

    def watch(noisy: Tensor, sigma: float) -> Tensor:
        seen.append(sigma)
        return exact(noisy, sigma)

    sampler = SamplerConfig(steps=18, churn=18.0 * 0.2, churn_from=0.05, churn_to=50.0)
    walk(torch.zeros(1, 1, 1, 1), watch, sampler, torch.Generator().manual_seed(0))
    for level in noise_levels(sampler)[:-1]:
        raised = level * 1.2 if 0.05 <= level <= 50.0 else level
        assert any(sigma == pytest.approx(raised, rel=1e-12) for sigma in seen)
    assert max(seen) == 80.0


@pytest.mark.parametrize("steps", [2, 18])
@pytest.mark.parametrize("churn", [0.0, 20.0])
def test_the_network_is_asked_as_often_as_stated(steps, churn):
    calls = []
    sampler = SamplerConfig(steps=steps, churn=churn)
    random = torch.Generator().manual_seed(0)
    walk(torch.zeros(1, 1, 2, 2), lambda noisy, sigma: calls.append(sigma) or exact(noisy, sigma), sampler, random)
    assert len(calls) == sampler.evaluations == 2 * steps - 1


# The generator


def generator(classes: int | None = 3, shape: tuple[int, int, int] = (1, 8, 8), **sampler: float) -> DiffusionGenerator:
    torch.manual_seed(0)
    config = DiffusionGeneratorConfig(
        shape=shape, classes=classes, widths=(8,), blocks=1, sampler={"steps": 4, **sampler}
    )
    built = build_generator(config)
    assert isinstance(built, DiffusionGenerator)
    with torch.no_grad():  # as it begins, the network hardly knows its class
        built.network.class_embedding.weight.mul_(5)
        built.network.conv_out.weight.mul_(20)
    return built.eval()


def drawn(model: DiffusionGenerator, seed: int = 1, count: int = 6, **settings: float) -> Tensor:
    labels = torch.arange(count) % (model.config.classes or 1)
    return model.sample(labels, torch.Generator().manual_seed(seed), **settings)


@pytest.mark.parametrize("classes", [3, None])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13)])
def test_images_are_drawn_in_eight_bits(classes, shape):
    images = drawn(generator(classes, shape))
    assert (images.dtype, images.shape) == (torch.uint8, (6, *shape))
    assert len(torch.unique(images)) > 10
    assert drawn(generator(classes, shape), count=0).shape == (0, *shape)


@pytest.mark.parametrize("churn", [0.0, 4.0])
def test_the_same_seed_draws_the_same_images(churn):
    model = generator(churn=churn)
    assert torch.equal(drawn(model), drawn(model))
    assert not torch.equal(drawn(model), drawn(model, seed=2))


def test_a_class_is_followed():
    model, random = generator(), torch.Generator().manual_seed(1)
    first = model.draw_latent(1, random)
    images = [model(first, torch.tensor([label])) for label in range(3)]
    assert all(float((images[0] - other).abs().max()) > 1e-3 for other in images[1:])


def test_guidance_moves_away_from_the_answer_without_a_class(monkeypatch):
    """What the network says plus w times what the class adds to it; with two answers that are known."""

    def answers(images: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        asked.append(labels)
        return torch.where(labels == 3, 1.0, 3.0)[:, None, None, None].expand_as(images)

    said = {}
    for guidance, constant in ((0.0, 3.0), (1.5, 3.0 + 1.5 * 2.0)):
        asked: list[Tensor] = []
        model = generator(guidance=guidance)
        monkeypatch.setattr(model.network, "forward", answers)
        first = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))
        images = model(first, torch.tensor([0, 2]))
        assert len(asked) == model.sampler.evaluations == (14 if guidance else 7)
        monkeypatch.setattr(model.network, "forward", lambda seen, times, labels, c=constant: torch.full_like(seen, c))
        said[guidance] = images, model(first, torch.tensor([0, 2]))
    assert all(torch.allclose(*each, atol=1e-4) for each in said.values())
    assert not torch.allclose(said[0.0][0], said[1.5][0], atol=1e-2)


def test_guidance_is_nothing_where_there_are_no_classes():
    first = torch.randn(3, 64)
    images = [generator(None, guidance=guidance)(first, torch.zeros(3).long()) for guidance in (0.0, 3.0)]
    assert torch.equal(*images)


def test_autoguidance_moves_away_from_what_the_guide_says(monkeypatch):
    """What the network says plus w times what it says more than its guide; with two answers that are known."""

    def constant(value: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda seen, times, labels: torch.full_like(seen, value)

    first, labels = torch.randn(2, 64, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 2])
    alone, led = generator(), generator(autoguidance=1.5)
    assert alone.guide is None
    assert led.guide is not None
    assert led.sampler.evaluations == 2 * alone.sampler.evaluations == 14
    monkeypatch.setattr(led.network, "forward", constant(3.0))
    monkeypatch.setattr(led.guide, "forward", constant(1.0))
    monkeypatch.setattr(alone.network, "forward", constant(3.0 + 1.5 * (3.0 - 1.0)))
    assert torch.allclose(led(first, labels), alone(first, labels), atol=1e-4)
    monkeypatch.setattr(led.guide, "forward", constant(3.0))
    monkeypatch.setattr(alone.network, "forward", constant(3.0))
    assert torch.allclose(led(first, labels), alone(first, labels), atol=1e-4)


def test_what_kept_no_guide_is_not_led_anywhere():
    model = generator()
    model.sampler = model.sampler.model_copy(update={"autoguidance": 1.0})
    with pytest.raises(InputError, match=r"autoguidance: 1, but this generator kept no guide .*; pass 0, or train"):
        drawn(model)


def test_a_sampler_without_autoguidance_is_written_as_it_always_was():
    assert "autoguidance" not in SamplerConfig().model_dump()
    again = SamplerConfig.model_validate(SamplerConfig(autoguidance=0.5).model_dump(mode="json"))
    assert again.autoguidance == 0.5


def test_temperature_scales_the_first_noise():
    model, labels = generator(), torch.tensor([0, 1])
    first = model.draw_latent(2, torch.Generator().manual_seed(4))
    halved = (model.pixels(model(0.5 * first, labels)) * 255).round().to(torch.uint8)
    assert torch.equal(model.sample(labels, torch.Generator().manual_seed(4), temperature=0.5), halved)
    cold = model.sample(torch.zeros(3).long(), torch.Generator().manual_seed(4), temperature=0.0)
    assert torch.equal(cold[0], cold[1])


def test_its_config_is_read_back_with_its_sampler():
    config = generator(churn=4.0, guidance=0.5).config
    again = read_generator_config(config.model_dump(mode="json"))
    assert again == config
    assert isinstance(build_generator(again), DiffusionGenerator)


def test_images_and_pixels_meet_in_the_middle():
    """-1 is black and 1 is white; what lies outside is cut off."""
    model = generator()
    assert model.pixels(torch.tensor([-1.5, -1.0, 0.0, 1.0, 2.0])).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_a_floor_makes_what_is_nearly_black_black():
    """Pixels below it alone, and after the walk: what the network is shown on the way does not change."""
    model = generator(floor=0.25)
    assert model.pixels(torch.tensor([-1.0, -0.6, -0.4, 0.0, 1.0])).tolist() == pytest.approx([0.0, 0.0, 0.3, 0.5, 1.0])
    plain, floored = drawn(generator()), drawn(model)
    assert 0 < int((plain < 63).sum()) < plain.numel()
    assert torch.equal(floored, plain.where(plain >= 64, 0))
