"""DP-HP: one noisy release of class-wise sums of Hermite features, and a generator that is fitted to it.

M. Vinaroz, M.-A. Charusaie, F. Harder, K. Adamczewski, M. Park, "Hermite Polynomial Features for Private Data
Generation", ICML 2022. It is DP-MERF with features that are ordered: a few Hermite polynomials say almost all that many
random frequencies would (``methods/embedding/hermite.py``).

The sum kernel describes each pixel for itself, the product kernel groups of pixels together. The release is the noisy
class-wise sum of both, and the fit reads nothing else.

Departures from the paper: order and length scale are public constants; the product kernel has many small groups of
pixels that are drawn once and released together with the sum kernel, where the paper draws new pixels in every epoch
and splits its budget; class sizes are part of the same release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from understudy.configs import Config, Count, Fraction, MethodConfig, Natural, Positive, Share, Size
from understudy.data.domain import Domain
from understudy.engines.embedding.config import embedding_event
from understudy.engines.teacher.config import TaughtConfig
from understudy.methods.base import Method, finish_plan
from understudy.privacy.budget import Budget
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.runs.run import Run


class HermiteConfig(Config):
    """Hermite features of pixels and of groups of pixels, and the fit of a generator to their means."""

    length_scale: Positive = 0.5  # of the kernel of one pixel, whose values lie in [0, 1]
    order: Annotated[int, Field(ge=1, le=200)] = 10  # highest polynomial of the sum kernel
    groups: Natural | None = None  # of the product kernel; 0: none
    group_pixels: Annotated[int, Field(ge=2, le=8)] = 2
    group_order: Annotated[int, Field(ge=1, le=20)] = 4
    group_share: Share = 0.7  # of the squared norm of the features
    size_share: Fraction = 0.02  # the part of a record's squared norm that counts its class


class DpHpMethodConfig(HermiteConfig):
    """The features, the fit and the generator; none of it changes epsilon."""

    steps: Count = 1000
    batch: Count = 300
    learning_rate: Positive = 1e-3
    latent: Size = 16
    width: Size = 32


class DpHpConfig(TaughtConfig):
    """The config of ``dp-hp``."""

    method: DpHpMethodConfig = DpHpMethodConfig()


# The fit in larger batches and more steps, for a graphics card.
_GPU = {"method": {"steps": 4000, "batch": 1000}}
# No groups of pixels: what the paper calls the sum kernel.
_SUM_KERNEL = {"method": {"groups": 0, "order": 20}}


class DpHp(Method):
    """One Gaussian release of class-wise sums of Hermite features; the generator is fitted to the means."""

    name: ClassVar[str] = "dp-hp"
    summary: ClassVar[str] = "one noisy release of Hermite features; a generator is fitted to it. Seconds to minutes"
    paper: ClassVar[str] = "Vinaroz et al.: Hermite Polynomial Features for Private Data Generation (ICML 2022)"
    config_type: ClassVar[type[MethodConfig]] = DpHpConfig
    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True
    presets: ClassVar = {"gpu": _GPU, "sum-kernel": _SUM_KERNEL}

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """One execution of an unsampled Gaussian, with the least noise that the budget allows."""
        assert isinstance(config, DpHpConfig)
        settings = _decided(config.method, domain)
        config = config.model_copy(update={"method": settings})
        features = _features(settings, domain)
        work = settings.steps * settings.batch * features
        costs = Costs(
            steps=settings.steps,
            memory_bytes=24 * features * max(settings.batch, config.runtime.micro_batch) + 500 * 2**20,
            seconds=work * 2e-8 + settings.steps * 5e-3,
            seconds_on_gpu=work * 2e-11 + settings.steps * 8e-3,
        )
        return finish_plan(self, config, domain, budget, lambda noise: (embedding_event(noise),), costs)

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that is fitted."""
        from understudy.engines.embedding.means import fitted_network

        assert isinstance(config, DpHpConfig)
        return fitted_network(config.method, domain)

    def train(self, run: Run) -> Generator:
        """Release the sums once, then fit the generator to the means; only the first of the two touches the data."""
        from understudy.engines.embedding.means import fitted_generator, release_means
        from understudy.methods.embedding.hermite import HermiteFeatures

        settings, random = run.plan.config_as(DpHpConfig).method, run.randomness.generator(run.device)
        features = HermiteFeatures.of_run(run, settings)
        target = release_means(run, features, run.plan.events[0], features.sharing)
        return fitted_generator(run, features, target, settings, random)

    def assist(self, run: Run, told: Mapping[str, Any]) -> Assistance:
        """The class-wise sum of Hermite features, with the leader's groups of pixels."""
        from understudy.engines.embedding.means import assist_means
        from understudy.methods.embedding.hermite import HermiteFeatures

        features = HermiteFeatures.of_shape(run, told["groups"], run.plan.config_as(DpHpConfig).method)
        return assist_means(run, features, features.sharing)


def _decided(settings: DpHpMethodConfig, domain: Domain) -> DpHpMethodConfig:
    """The settings with everything filled in that was left to the declared domain."""
    groups = settings.groups if settings.groups is not None else (300 if domain.small else 1500)
    return settings.model_copy(update={"groups": groups})


def _features(settings: DpHpMethodConfig, domain: Domain) -> int:
    products = (settings.groups or 0) * (settings.group_order + 1) ** settings.group_pixels
    return domain.values * (settings.order + 1) + products
