"""DP-CGAN: the DP-SGD GAN that earlier papers compare with, as a configuration of the loop of ``dpgan``.

R. Torkzadehmahani, P. Kairouz, B. Paten, "DP-CGAN: Differentially Private Synthetic Data and Label Generation", CVPR
workshops 2019: one discriminator step for each generator step. Poisson batches and accounting are those of ``dpgan``,
and so are the networks unless a preset says otherwise: ``published`` takes those of the paper, one hidden layer each,
with its optimisers; ``paper`` takes clip, noise, batch and steps as Chen, Orekondy, Fritz (2020) report them, which
cost less than they were reported at.

Where ``published`` deviates from the authors' code: that clips each of the discriminator's four tensors to C; here the
gradient of an image is clipped as a whole. Real and generated images are one sum over a divisor of 2B, so that the
paper's rates for means over B of each are doubled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from understudy.configs import Count, MethodConfig, Positive, Share, without_defaults
from understudy.data.domain import Domain
from understudy.methods.adversarial.dpgan import (
    DpGan,
    DpGanConfig,
    DpGanMethodConfig,
    DpGanPrivacy,
    discriminator_config,
)

if TYPE_CHECKING:
    from torch import nn

    from understudy.engines.dpsgd.step import StepOptions
    from understudy.models.generator import GeneratorConfig


_FALLING_STEPS = 10_000  # of the paper


class DpCganPrivacy(DpGanPrivacy):
    """What changes epsilon; the noise is calibrated unless it is given."""

    clip: Positive = 1.1
    embedding_share: Share | None = 0.0


class DpCganMethodConfig(DpGanMethodConfig):
    """The game with one discriminator step for each generator step; ``width`` of a perceptron is its hidden layer."""

    discriminator_steps: Count | Literal["adaptive"] | None = 1
    networks: Literal["dpgan", "perceptron"] = "dpgan"
    optimiser: Literal["adam", "descent"] = "adam"  # of the discriminator; descent has no momentum
    last_rate: Positive | None = None  # to which the rate of descent falls; None: it stays
    falling_steps: Count = _FALLING_STEPS  # in which it does

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """With the networks and the optimiser of ``dpgan`` a config looks as it always did."""
        return without_defaults(self, write(self), ("networks", "optimiser", "last_rate", "falling_steps"))

    @model_validator(mode="after")
    def _only_descent_falls(self) -> DpCganMethodConfig:
        if self.optimiser == "adam" and self.last_rate is not None:
            raise ValueError(
                f"last_rate: {self.last_rate:g} is for optimiser=descent, but Adam was asked for; leave it out"
            )
        if self.last_rate is None and self.falling_steps != _FALLING_STEPS:
            raise ValueError(
                f"falling_steps: {self.falling_steps} without last_rate, so no rate falls; set both, or leave it out"
            )
        return self


class DpCganConfig(DpGanConfig):
    """The config of ``dp-cgan``."""

    privacy: DpCganPrivacy = DpCganPrivacy()
    method: DpCganMethodConfig = DpCganMethodConfig()


# Networks and optimisers of the paper, with the noise that the budget asks for.
_PUBLISHED = {
    "privacy": {"batch": 600, "steps": 30_000},
    "method": {
        "networks": "perceptron",
        "width": 128,
        "latent": 100,
        "optimiser": "descent",
        "learning_rate": 0.2,
        "last_rate": 0.104,
        "generator_learning_rate": 1e-3,
        "betas": [0.9, 0.999],
        "average_decay": 0.0,
        "head_start": 0,
    },
}


class DpCgan(DpGan):
    """DP-SGD on the discriminator, one of its steps for each generator step."""

    name: ClassVar[str] = "dp-cgan"
    summary: ClassVar[str] = (
        "DP-SGD on the discriminator, step by step with the generator: a baseline of earlier papers"
    )
    paper: ClassVar[str] = "Torkzadehmahani, Kairouz, Paten: DP-CGAN (CVPR workshops 2019)"
    config_type: ClassVar[type[MethodConfig]] = DpCganConfig
    presets: ClassVar = {
        "paper": {"privacy": {"noise_multiplier": 2.1, "batch": 600, "steps": 30_000}},
        "published": _PUBLISHED,
    }

    def costs_of_step(self, config: DpGanConfig, domain: Domain) -> tuple[int, float, float]:
        """Perceptrons take a fraction of what other networks do."""
        settings = _settings(config)
        if settings.networks == "dpgan":
            return super().costs_of_step(config, domain)
        examples, values = 2 * config.privacy.images_in_step(domain), domain.values * (settings.width or 1)
        return 16 * examples * (domain.values + values), 4e-3 + examples * (2e-5 + 6e-11 * values), 1.5e-3

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """A perceptron draws from uniform latent values, as in the paper."""
        network = super().generator_config(config, domain)
        if _settings(config).networks == "dpgan":
            return network
        return network.model_copy(update={"kind": "perceptron", "latent_law": "uniform"})

    def discriminator(self, config: DpGanConfig, domain: Domain) -> nn.Module:
        """The network that sees private data; it treats every example for itself."""
        from understudy.models.perceptron import PerceptronDiscriminator

        if _settings(config).networks == "dpgan":
            return super().discriminator(config, domain)
        return PerceptronDiscriminator(discriminator_config(config, domain))

    def step_options(self, config: DpGanConfig) -> StepOptions:
        """Clip, noise, then Adam or descent."""
        from understudy.engines.dpsgd.step import Descent

        options, settings = super().step_options(config), _settings(config)
        if settings.optimiser == "adam":
            return options
        return replace(options, descent=Descent(settings.last_rate or options.learning_rate, settings.falling_steps))


def _settings(config: MethodConfig) -> DpCganMethodConfig:
    assert isinstance(config, DpCganConfig)
    return config.method
