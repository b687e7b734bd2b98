"""DP-MERF: one noisy mean embedding of the data, and a generator that is fitted to it.

F. Harder, K. Adamczewski, M. Park, "DP-MERF: Differentially Private Mean Embeddings with Random Features for Practical
Privacy-preserving Data Generation", AISTATS 2021.

The embedding is the class-wise mean of random Fourier features (``engines/embedding/means.py``); the generator
minimises the distance between the noisy embedding and that of its own images, which is post-processing.

Departures from the paper: the length scale is a public constant times the square root of the number of pixels (the
median heuristic would read private data), several length scales are mixed, and class sizes cost no budget of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from understudy.configs import MethodConfig, Size
from understudy.data.domain import Domain
from understudy.engines.embedding.config import EmbeddingConfig, embedding_event
from understudy.engines.teacher.config import TaughtConfig
from understudy.methods.base import Method, finish_plan, with_least_noise
from understudy.privacy.budget import Budget
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.runs.run import Run


class DpMerfMethodConfig(EmbeddingConfig):
    """The embedding, the fit and the generator; none of it changes epsilon."""

    latent: Size = 16
    width: Size = 32


class DpMerfConfig(TaughtConfig):
    """The config of ``dp-merf``."""

    method: DpMerfMethodConfig = DpMerfMethodConfig()


# For 32x32 images in colour on a graphics card, in minutes: more frequencies, a wider generator, a longer fit. Chosen
# by what a card has room for; not measured yet.
_GPU_COLOUR = {
    "method": {"frequencies": 10_000, "steps": 6000, "batch": 1000, "width": 64, "latent": 64},
    "runtime": {"precision": "bf16"},
}


class DpMerf(Method):
    """One Gaussian release of the class-wise mean embedding; the generator is fitted to it by MMD."""

    name: ClassVar[str] = "dp-merf"
    summary: ClassVar[str] = "one noisy release of the mean embedding; a generator is fitted to it. Seconds to minutes"
    paper: ClassVar[str] = "Harder, Adamczewski, Park: DP-MERF (AISTATS 2021)"
    config_type: ClassVar[type[MethodConfig]] = DpMerfConfig
    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True
    presets: ClassVar = {"gpu-colour": _GPU_COLOUR}

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """One execution of an unsampled Gaussian, with the least noise that the budget allows."""
        assert isinstance(config, DpMerfConfig)
        config, events = with_least_noise(config, domain, budget, lambda noise: (embedding_event(noise),))
        assert isinstance(config, DpMerfConfig)
        settings = config.method.decided(domain, events[0].noise_multiplier)
        config = config.model_copy(update={"method": settings})
        pixels, frequencies = domain.values, settings.frequencies or 0
        work = 12.0 * settings.steps * settings.batch * pixels * frequencies
        drawn = settings.steps * settings.batch * pixels * settings.width / 32  # on a processor the network takes most
        costs = Costs(
            steps=settings.steps,
            memory_bytes=int(8 * frequencies * (pixels + 4 * config.runtime.micro_batch)) + 500 * 2**20,
            seconds=drawn * 1.3e-6 + work / 3e11 + settings.steps * 5e-3,
            seconds_on_gpu=work / 5e13 + settings.steps * 1.2e-2,
        )
        return finish_plan(self, config, domain, budget, lambda noise: (embedding_event(noise),), costs)

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that is fitted."""
        from understudy.engines.embedding.means import fitted_network

        assert isinstance(config, DpMerfConfig)
        return fitted_network(config.method, domain)

    def train(self, run: Run) -> Generator:
        """Release the embedding once, then fit the generator to it; only the first of the two touches the data."""
        from understudy.engines.embedding.means import Embedding, fitted_generator, release_means

        settings, random = run.plan.config_as(DpMerfConfig).method, run.randomness.generator(run.device)
        embedding = Embedding.of_run(run, settings)
        target = release_means(run, embedding, run.plan.events[0], embedding.sharing)
        return fitted_generator(run, embedding, target, settings, random)
