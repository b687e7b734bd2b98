"""White-box audits of DP-SGD: the real steps of a method on data with canaries, with a witness at every noisy sum."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from understudy.audit.attacks import StepWitness
from understudy.audit.bounds import Numbers
from understudy.audit.canaries import Canaries
from understudy.data.dataset import ImageDataset
from understudy.files import make_folder
from understudy.methods.base import Plan
from understudy.methods.configuration import build_config
from understudy.methods.dp_merf_ae import DpMerfAe, DpMerfAeConfig
from understudy.methods.dpgan import DpGan, DpGanConfig
from understudy.methods.registry import get_method
from understudy.models.autoencoder import Autoencoder, Encoder
from understudy.models.decoder_generator import DecoderGenerator
from understudy.models.generator import GeneratorConfig, build_generator
from understudy.privacy.budget import Budget
from understudy.privacy.ledger import Ledger
from understudy.privacy.randomness import Randomness
from understudy.release.release import Release
from understudy.training.private_autoencoder import AutoencoderSteps, AutoencoderStepSettings
from understudy.training.private_step import DiscriminatorStep
from understudy.training.run import Run

_CPU = torch.device("cpu")


def trains_by_steps(method: str) -> bool:
    """Whether a method trains a network by DP-SGD whose steps can be audited here."""
    return isinstance(get_method(method), DpGan | DpMerfAe)


def step_scores(method: str, data: ImageDataset, canaries: Canaries, release: Release, folder: Path) -> Numbers:
    """Scores of canaries from all the method's noisy sums of gradients, in steps of their own with the same settings.

    Privacy: executions are on record in a ledger of their own; nothing of them is released.
    """
    run = _run(method, data, release, folder)
    make = _autoencoder if isinstance(get_method(method), DpMerfAe) else _discriminator
    take, witness = make(run, canaries)
    for _ in range(run.plan.events[0].count):
        take()
    assert witness.total is not None, "a plan has at least one step"
    scores: Numbers = witness.total.numpy()
    return scores


def _run(method: str, data: ImageDataset, release: Release, folder: Path) -> Run:
    implementation, headline = get_method(method), release.certificate.headline
    config = build_config(implementation.config_type, {**release.method_config, "runtime": {"device": "cpu"}})
    plan: Plan = implementation.plan(config, data.domain, Budget(headline.epsilon, headline.delta))
    make_folder(folder, "audit")
    return Run(folder, plan, data, Ledger.create(folder / "ledger.jsonl"), Randomness(), _CPU)


def _inputs(canaries: Canaries) -> tuple[Tensor, Tensor | None]:
    images = torch.from_numpy(canaries.images).double() / 255
    return images, None if canaries.labels is None else torch.from_numpy(canaries.labels)


def _discriminator(run: Run, canaries: Canaries) -> tuple[Callable[[], None], StepWitness]:
    """The networks and settings of the method itself; the generator stays as it began."""
    method, config, domain = get_method(run.plan.method), run.plan.config, run.plan.domain
    assert isinstance(method, DpGan)
    assert isinstance(config, DpGanConfig)
    settings = method.step_settings(config)
    network = method.discriminator(config, domain)
    generator = build_generator(method.network(config, domain, None))
    images, labels = _inputs(canaries)

    def loss(seen: nn.Module) -> Tensor:
        scores = seen(images, labels)
        return softplus(-scores) if settings.loss == "logistic" else -scores

    witness = StepWitness(network, loss)
    run.ledger.witness = witness
    return DiscriminatorStep(run, network, generator, settings, run.plan.events[0]).take, witness


def _autoencoder(run: Run, canaries: Canaries) -> tuple[Callable[[], None], StepWitness]:
    config, domain = run.plan.config, run.plan.domain
    assert isinstance(config, DpMerfAeConfig)
    settings, width = config.method.autoencoder, config.method.autoencoder.width or 16
    drawing = GeneratorConfig(
        kind="decoder", shape=domain.shape, classes=domain.classes, latent=settings.code, width=width
    )
    network = Autoencoder(Encoder(domain.shape, settings.code, width), DecoderGenerator(drawing).decoder)
    images, _ = _inputs(canaries)

    def loss(seen: nn.Module) -> Tensor:
        return binary_cross_entropy_with_logits(seen(images), images, reduction="none").flatten(1).mean(dim=1)

    witness = StepWitness(network, loss)
    run.ledger.witness = witness
    steps = AutoencoderStepSettings(
        config.privacy.batch or 1, config.privacy.clip, settings.learning_rate, settings.betas
    )
    return AutoencoderSteps(run, network, steps, run.plan.events[0]).take, witness
