"""BDP-GAN: a Wasserstein critic trained by DP-SGD, accounted under Bayesian differential privacy beside plain DP.

A. Triastcyn, B. Faltings, "Generating Higher-Fidelity Synthetic Datasets with Privacy Guarantees", Algorithms 2022.
Symbols: T critic steps on Poisson batches of B expected reals and exactly B fakes, C the clip bound, m sampled pairs.

The mechanism is that of ``dpgan``: each image's gradient is clipped to C, noise is added once to their sum. So the
epsilon of every release is a worst-case epsilon like any other. Beside it the Bayesian accountant looks at m units in
each step and states ``epsilon_mu``, a claim of another kind about records like those in the data (docs/bayesian.md). It
never steers, stops or prices the run.

Where this deviates from the authors' code: every example is clipped, not the mean of a batch; no BatchNorm; batches are
Poisson samples, as they are accounted; a pair differs by one unit drawn independently of the batch. The embedding to
start from and the average of the weights are those of ``dpgan`` and can be turned off, as the presets do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from understudy.configs import Count, MethodConfig, Positive
from understudy.data.domain import Domain
from understudy.errors import InputError
from understudy.methods.adversarial.dpgan import (
    Adversary,
    DpGan,
    DpGanConfig,
    DpGanMethodConfig,
    DpGanPrivacy,
    discriminator_config,
)
from understudy.privacy.budget import Budget
from understudy.privacy.claims.statements import BayesianClaim, BayesianConfig
from understudy.privacy.events import Event, NoSampling
from understudy.privacy.plan import Plan
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from understudy.engines.dpsgd.step import PrivateStep, StepOptions
    from understudy.models.generator import GeneratorConfig
    from understudy.runs.loop import Stateful
    from understudy.runs.run import Run

_CRITIC_STEPS = 5  # for each generator step, as in the first Wasserstein GAN
_REMARKS = {
    False: "epsilon_mu is computed from the data without noise and stays in the private folder of the run: "
    "method.bayesian.publish=true would put it into the certificate, which is a disclosure",
    True: "the certificate will hold epsilon_mu, which is computed from the data without noise: publishing it is a "
    "disclosure that the guarantee does not cover",
}


class BdpGanPrivacy(DpGanPrivacy):
    """What changes epsilon: as for ``dpgan``, with the clip bound of the paper."""

    clip: Positive = 0.5  # C


class BdpGanMethodConfig(DpGanMethodConfig):
    """The game, and how it is accounted beside its guarantee; none of it changes epsilon.

    ``networks`` are those of the paper (``selu``) or of ``dpgan``. ``weight_bound`` cuts every weight of the critic
    after a step, as the first Wasserstein GAN does: post-processing of the noisy update. Without a bound the scores
    grow until they drown what ties the generator to its embedding.
    """

    loss: Adversary = "wasserstein"
    networks: Literal["selu", "dpgan"] = "selu"
    discriminator_steps: Count | Literal["adaptive"] | None = None  # n_D
    weight_bound: Positive | None = 0.05
    gradient_penalty: Annotated[float, Field(ge=0)] = 0.0
    bayesian: BayesianConfig = BayesianConfig()

    @field_validator("gradient_penalty")
    @classmethod
    def _penalty_reads_real_images(cls, penalty: float) -> float:
        if penalty:
            raise ValueError(
                "a gradient penalty is taken between real and generated images, so it reads real images a second time, "
                "outside the clipped unit that is accounted; leave it at 0 and use weight_bound"
            )
        return penalty

    @model_validator(mode="after")
    def _scores_have_no_threshold(self) -> BdpGanMethodConfig:
        if self.loss == "wasserstein" and self.discriminator_steps == "adaptive":
            raise ValueError(
                "discriminator_steps: the adaptive schedule follows how many fakes fall below zero, and a Wasserstein "
                "critic's scores have no such zero; pass a number such as 5, or loss=logistic"
            )
        return self


class BdpGanConfig(DpGanConfig):
    """The config of ``bdp-gan``."""

    privacy: BdpGanPrivacy = BdpGanPrivacy()
    method: BdpGanMethodConfig = BdpGanMethodConfig()


def _paper(noise_multiplier: float) -> dict[str, Any]:
    """400 epochs of batches of 64 expected records (of 60,000) at clip 0.5, Adam at 1e-4, and nothing of ours.

    The paper adds noise of 0.01 (MNIST) and 0.02 (Fashion-MNIST) to a mean gradient; on a sum over 64 that is 0.64 and
    1.28, so 1.28 and 2.56 clip bounds. It does not say the batch; 64 is ours.
    """
    privacy = {"noise_multiplier": noise_multiplier, "batch": 64, "steps": 375_000, "clip": 0.5, "embedding_share": 0.0}
    method = {"width": 64, "latent": 100, "learning_rate": 1e-4, "generator_learning_rate": 1e-4}
    game = {"discriminator_steps": 5, "average_decay": 0.0, "head_start": 0}
    return {"privacy": privacy, "method": {**method, **game}}


def _gpu(share: float, **method: Any) -> dict[str, Any]:
    """For 28x28 images at a small epsilon on a graphics card: most of it for the embedding, few generator steps."""
    privacy = {"steps": 15_000, "batch": 512, "embedding_share": share}
    embedding = {"embedding": {"steps": 3000, "batch": 500}, "embedding_pull": 100.0}
    return {"privacy": privacy, "method": {**embedding, **method}, "runtime": {"precision": "bf16"}}


class BdpGan(DpGan):
    """The loop of ``dpgan`` with a Wasserstein critic, and the Bayesian accountant beside it."""

    name: ClassVar[str] = "bdp-gan"
    summary: ClassVar[str] = "a Wasserstein critic trained by DP-SGD, with a Bayesian figure beside the worst-case one"
    paper: ClassVar[str] = (
        "Triastcyn, Faltings: Generating Higher-Fidelity Synthetic Datasets with Privacy Guarantees (Algorithms 2022)"
    )
    config_type: ClassVar[type[MethodConfig]] = BdpGanConfig
    shared_by_processes: ClassVar[bool] = False  # its accountant looks at units of all processes
    protects_people: ClassVar[bool] = False  # its Bayesian figure is one of records
    presets: ClassVar = {
        "paper-mnist": _paper(1.28),
        "paper-fashion": _paper(2.56),
        "gpu": _gpu(0.7, networks="dpgan", loss="logistic", weight_bound=None, schedule={"ladder": [20, 50, 100, 200]}),
        "gpu-critic": _gpu(0.7, discriminator_steps=20),
    }

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """The events of ``dpgan``: what the Bayesian accountant looks at costs nothing under DP until it is shown."""
        settings = _settings(config)
        if settings.discriminator_steps is None and settings.loss == "wasserstein":
            settings = settings.model_copy(update={"discriminator_steps": _CRITIC_STEPS})
        plan = super().plan(config.model_copy(update={"method": settings}), domain, budget)
        beside = _settings(plan.config).bayesian
        if not beside.enabled:
            return plan
        if any(not isinstance(event.sampling, NoSampling) for event in plan.events[1:]):
            raise InputError(
                "teacher: kind=network learns from sampled batches, which the Bayesian figure of bdp-gan cannot be "
                "composed with; choose kind=linear, or pass method.bayesian.enabled=false"
            )
        return replace(plan, remarks=(*plan.remarks, _REMARKS[beside.publish]), seconds=1.3 * plan.seconds)

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator of the paper: SELU, pooling and tanh."""
        network = super().generator_config(config, domain)
        if _settings(config).networks == "dpgan":
            return network
        return network.model_copy(update={"kind": "selu", "output": "tanh"})

    def discriminator(self, config: DpGanConfig, domain: Domain) -> nn.Module:
        """The critic of the paper."""
        from understudy.models.selu import SeluCritic

        if _settings(config).networks == "dpgan":
            return super().discriminator(config, domain)
        return SeluCritic(discriminator_config(config, domain))

    def step_options(self, config: DpGanConfig) -> StepOptions:
        """Clip, noise, Adam, and then the bound on the weights."""
        return replace(super().step_options(config), weight_bound=_settings(config).weight_bound)

    def accompany(self, run: Run, step_of: PrivateStep) -> dict[str, Stateful]:
        """The Bayesian accountant listens to the steps.

        Privacy: it reads further private records at the same weights; what it finds stays in the private folder until a
        claim is made of it, which stays there too unless ``publish`` asks for it in the certificate.
        """
        from understudy.methods.adversarial.bayesian import BayesianWatch
        from understudy.privacy.claims.bayesian import BayesianAccountant

        config = run.plan.config
        assert isinstance(config, BdpGanConfig)
        beside = config.method.bayesian
        if not beside.enabled:
            return {}
        accountant = BayesianAccountant(beside, run.plan.events[0], run.plan.events[1:])
        return {"bayesian": BayesianWatch(run, step_of, accountant, beside.pairs, config.privacy.clip)}

    def data_dependent_claims(
        self, config: MethodConfig, events: Sequence[Event], budget: Budget, files: RunFolder
    ) -> list[BayesianClaim]:
        """What the record of the run says; steps that are not on record count at their worst case."""
        from understudy.privacy.claims.bayesian import BayesianAccountant

        beside = _settings(config).bayesian
        if not beside.enabled:
            return []
        accountant = BayesianAccountant(beside, events[0], events[1:])
        accountant.restore(files.bayesian)
        return [accountant.claim()]

    def publishes_data_dependent_claims(self, config: MethodConfig) -> bool:
        """Only where ``method.bayesian.publish`` says so."""
        return _settings(config).bayesian.publish


def _settings(config: MethodConfig) -> BdpGanMethodConfig:
    assert isinstance(config, BdpGanConfig)
    return config.method
