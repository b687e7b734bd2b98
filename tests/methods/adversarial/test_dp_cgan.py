"""DP-CGAN: the networks and optimisers of its paper, on the loop and the events of ``dpgan``."""

import pytest
import torch

from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.methods.base import configure
from understudy.methods.registry import get_method
from understudy.models.dpgan import DpganDiscriminatorConfig
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.models.perceptron import PerceptronDiscriminator
from understudy.privacy.budget import Budget

MNIST = Domain(shape=(1, 28, 28), classes=10, nominal_records=60_000)
METHOD = get_method("dp-cgan")


def plan_of(preset: str | None, **method: object):
    config = {"privacy": {"noise_multiplier": 10.0, "batch": 600, "steps": 30_000}, "method": method}
    return METHOD.plan(configure(METHOD, config, preset), MNIST, Budget(10, 1e-5))


def test_the_published_networks_have_one_hidden_layer_of_128():
    """The input is an image with its class, or 100 values with a class."""
    network = PerceptronDiscriminator(DpganDiscriminatorConfig(shape=(1, 28, 28), classes=10, width=128))
    assert sum(each.numel() for each in network.parameters()) == (784 + 10) * 128 + 128 + 128 + 1
    config = METHOD.generator_config(plan_of("published").config, MNIST)
    assert (config.kind, config.latent, config.width, config.latent_law) == ("perceptron", 100, 128, "uniform")
    assert sum(each.numel() for each in build_generator(config).parameters()) == (100 + 10) * 128 + 128 + 129 * 784


def test_published_networks_and_descent_cost_what_all_others_do():
    published, usual = plan_of("published"), plan_of(None)
    assert published.events == usual.events
    assert METHOD.step_options(published.config).descent is not None
    assert METHOD.step_options(usual.config).descent is None
    assert published.seconds < usual.seconds / 100


def test_a_config_without_them_is_written_as_earlier_versions_read_it():
    young = {"networks", "optimiser", "last_rate", "falling_steps"}
    assert not young & set(plan_of(None).config.model_dump()["method"])
    assert young <= set(plan_of("published", falling_steps=7).config.model_dump()["method"])


def test_a_rate_to_fall_to_is_for_descent():
    with pytest.raises(InputError, match=r"last_rate: 0\.1 is for optimiser=descent"):
        plan_of(None, last_rate=0.1)
    with pytest.raises(InputError, match="falling_steps: 7 without last_rate"):
        plan_of(None, optimiser="descent", falling_steps=7)


def test_a_plan_of_perceptrons_pays_for_all_else_as_any_other():
    """A teacher, a start, and the records in memory."""
    taught = {"privacy": {"teacher_share": 0.3, "embedding_share": 0.3}}
    plans = [METHOD.plan(configure(METHOD, more, "published"), MNIST, Budget(10, 1e-5)) for more in ({}, taught)]
    usual = [METHOD.plan(configure(METHOD, more, None), MNIST, Budget(10, 1e-5)) for more in ({}, taught)]
    assert plans[1].seconds - plans[0].seconds == pytest.approx(usual[1].seconds - usual[0].seconds, rel=1e-6)
    many = MNIST.model_copy(update={"shape": (3, 64, 64), "nominal_records": 5_000_000})
    plan = METHOD.plan(configure(METHOD, {"privacy": {"noise_multiplier": 1.0}}, "published"), many, Budget(10, 1e-5))
    assert plan.memory_bytes > 5_000_000 * many.values


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13)])
@pytest.mark.parametrize("classes", [None, 3])
def test_every_form_goes_through_both_networks(shape, classes):
    config = GeneratorConfig(kind="perceptron", shape=shape, classes=classes, width=4, latent=5, latent_law="uniform")
    generator, random = build_generator(config), torch.Generator().manual_seed(0)
    latent = generator.draw_latent(1000, random)
    assert -1 <= float(latent.min()) < -0.99
    assert 0.99 < float(latent.max()) <= 1
    labels = torch.tensor([0, 2])
    images = generator.pixels(generator(latent[:2], labels))
    assert images.shape == (2, *shape)
    discriminator = PerceptronDiscriminator(DpganDiscriminatorConfig(shape=shape, classes=classes, width=4))
    assert discriminator(images, labels if classes else None).shape == (2,)
