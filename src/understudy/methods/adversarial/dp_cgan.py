"""DP-CGAN: the DP-SGD GAN that earlier papers compare with, as a configuration of the loop of ``dpgan``.

R. Torkzadehmahani, P. Kairouz, B. Paten, "DP-CGAN: Differentially Private Synthetic Data and Label Generation", CVPR
workshops 2019, with the settings of Chen, Orekondy, Fritz (2020): clip 1.1, noise multiplier 2.1, batch 600, 30,000
steps, one discriminator step for each generator step. Those settings cost less than they were reported at: the preset
``paper`` shows it. Networks, Poisson batches and accounting are those of ``dpgan``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from understudy.configs import Count, MethodConfig, Positive, Share
from understudy.methods.adversarial.dpgan import DpGan, DpGanConfig, DpGanMethodConfig, DpGanPrivacy


class DpCganPrivacy(DpGanPrivacy):
    """What changes epsilon; the noise is calibrated unless it is given."""

    clip: Positive = 1.1
    embedding_share: Share | None = 0.0


class DpCganMethodConfig(DpGanMethodConfig):
    """The game with one discriminator step for each generator step."""

    discriminator_steps: Count | Literal["adaptive"] | None = 1


class DpCganConfig(DpGanConfig):
    """The config of ``dp-cgan``."""

    privacy: DpCganPrivacy = DpCganPrivacy()
    method: DpCganMethodConfig = DpCganMethodConfig()


class DpCgan(DpGan):
    """DP-SGD on the discriminator, one of its steps for each generator step."""

    name: ClassVar[str] = "dp-cgan"
    summary: ClassVar[str] = (
        "DP-SGD on the discriminator, step by step with the generator: a baseline of earlier papers"
    )
    paper: ClassVar[str] = "Torkzadehmahani, Kairouz, Paten: DP-CGAN (CVPR workshops 2019)"
    config_type: ClassVar[type[MethodConfig]] = DpCganConfig
    presets: ClassVar = {"paper": {"privacy": {"noise_multiplier": 2.1, "batch": 600, "steps": 30_000}}}
