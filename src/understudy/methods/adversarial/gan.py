"""GAN: the loop and the networks of ``dpgan`` without clipping and without noise, as a reference. It is not private.

There is no event, no budget and no guarantee. The release carries the stamp ``not private``, ``verify`` refuses it, and
it cannot be copied out of its run folder with ``understudy release``.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from understudy.configs import Count, MethodConfig
from understudy.data.domain import Domain
from understudy.engines.teacher.config import check_no_teacher_set
from understudy.methods.adversarial.dpgan import DpGan, DpGanConfig, DpGanMethodConfig, DpGanPrivacy, decided
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import NOT_PRIVATE
from understudy.privacy.plan import Plan


class GanPrivacy(DpGanPrivacy):
    """Batch and steps, as for ``dpgan``; there is no noise and nothing to spend."""

    noise_multiplier: None = None
    embedding_share: Annotated[float, Field(ge=0, le=0)] = 0.0
    teacher_share: Annotated[float, Field(ge=0, le=0)] = 0.0


class GanMethodConfig(DpGanMethodConfig):
    """The game of ``dpgan`` with as many discriminator as generator steps, unless told otherwise."""

    discriminator_steps: Count | Literal["adaptive"] | None = 1


class GanConfig(DpGanConfig):
    """The config of ``gan``."""

    privacy: GanPrivacy = GanPrivacy()
    method: GanMethodConfig = GanMethodConfig()


class Gan(DpGan):
    """The reference without privacy."""

    name: ClassVar[str] = "gan"
    summary: ClassVar[str] = "not private: the loop of dpgan without clipping or noise, for comparisons only"
    paper: ClassVar[str] = "Bie, Kamath, Zhang: Private GANs, Revisited (TMLR 2023), their non-private baseline"
    config_type: ClassVar[type[MethodConfig]] = GanConfig
    private: ClassVar[bool] = False
    shared_by_processes: ClassVar[bool] = False
    presets: ClassVar = {
        "paper": {
            "privacy": {"batch": 128, "steps": 45_000},
            "method": {"width": 64, "latent": 128, "learning_rate": 2e-4, "generator_learning_rate": 2e-4},
        }
    }

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """No events, and an infinite epsilon."""
        assert isinstance(config, GanConfig)
        check_no_teacher_set(config)
        config = decided(config, domain)
        return Plan(
            method=self.name,
            config=config,
            domain=domain,
            budget=budget,
            events=(),
            epsilon=math.inf,
            remarks=(NOT_PRIVATE,),
            **asdict(self.costs(config, domain)),
        )
