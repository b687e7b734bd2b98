"""White-box audits: the real steps or rounds of a method on data with canaries, with a witness at every noisy sum."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from understudy.audit.attacks import AuditedRun
from understudy.audit.bounds import Numbers
from understudy.audit.canaries import Units, presence, with_canaries
from understudy.engines.critics.panel import Home
from understudy.engines.dpsgd.gradients import FlatParameters
from understudy.engines.learner import SlopeLearner
from understudy.engines.records import load_rows
from understudy.federated.fedavg_gan import FedAvgConfig, FedAvgGan, average
from understudy.federated.messages import Images
from understudy.federated.updates import SimulatedUpdates, Weights, make_discriminator
from understudy.files import make_folder
from understudy.methods.adversarial.discriminator import Fakes, discriminator_step
from understudy.methods.adversarial.dpgan import DpGan, DpGanConfig
from understudy.methods.base import Method
from understudy.methods.embedding.dp_merf_ae import DpMerfAe, DpMerfAeConfig, autoencoder_steps
from understudy.models.autoencoder import Autoencoder, DecoderGenerator, Encoder
from understudy.models.generator import build_generator
from understudy.privacy.events import PoissonSampling
from understudy.privacy.ledger import Ledger
from understudy.privacy.mechanisms import GaussianSum, clip_rows
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.folder import RunFolder
from understudy.runs.run import Run


class WatchedUpdates(SimulatedUpdates):
    """Clients who answer as ever; what they were asked is kept, which is public."""

    asked: tuple[int, Weights, Images]

    def of(self, clients: Sequence[int], number: int, weights: Weights, pool: Images) -> Tensor:
        """What changed at each of the clients. Privacy: private, not sanitized."""
        self.asked = number, weights, pool
        return super().of(clients, number, weights, pool)


def audited_rounds(run: Run, audited: AuditedRun) -> tuple[Callable[[], object], Callable[[], list[Units]]]:
    """What takes a round, and what every client, whether it takes part or not, may add to its sum.

    The generator stays as it began. A client's update is repeated by the attack with random draws of its own.
    """
    config, sampling = run.plan.config, run.plan.events[0].sampling
    assert isinstance(config, FedAvgConfig)
    assert isinstance(sampling, PoissonSampling)
    assert isinstance(audited.implementation, FedAvgGan)
    contract, home = audited.implementation.contract(run.plan), Home(run.randomness, run.device)
    discriminator, generator = make_discriminator(contract, home), SlopeLearner(run, config.method.generator)
    clients = WatchedUpdates(run.data, contract, home)
    everybody = replace(audited.canaries, included=np.ones(len(audited.canaries), dtype=bool))
    imagined = SimulatedUpdates(with_canaries(audited.data, everybody, as_clients=True), contract, home)
    mechanism = GaussianSum(run.ledger, run.randomness, clip=contract.clip, event=run.plan.events[0])
    known, enrolled = audited.data.nominal_units("client"), contract.limits.clients

    def rows() -> list[Units]:
        changes = clip_rows(imagined.of(range(enrolled), *clients.asked), contract.clip)
        return [Units.by_coin(changes[known:], sampling.rate / 2), Units.by_coin(changes[:known], sampling.rate)]

    return lambda: average(run, config, discriminator, clients, mechanism, generator), rows


_CPU = torch.device("cpu")
_FAKES = 64  # of the generator, to know what those of a step add on average and how that varies
_AT_ONCE = 256
Loss = Callable[[Tensor, Tensor], Tensor]  # outputs and images -> losses, each of its own example alone
Steps = tuple[Callable[[], object], Callable[[], list[Units]]]  # takes a step; what everybody may add to the next sum


def trains_by_steps(method: Method) -> bool:
    """Whether a method trains a network by noisy sums of gradients, or of clients' updates, as audited here."""
    return isinstance(method, DpGan | DpMerfAe | FedAvgGan)


def step_scores(audited: AuditedRun) -> Numbers:
    """Scores of canaries from all the method's noisy sums, in steps of their own with the same settings.

    Privacy: executions are on record in a ledger of their own; nothing of them is released.
    """
    folder = audited.folder / "steps"
    make_folder(folder, "audit")
    run = Run(folder, audited.plan(), audited.audited, Ledger.create(RunFolder(folder).ledger), Randomness(), _CPU)
    event = run.plan.events[0]
    witness = StepWitness(str(event.purpose), event.noise_multiplier * _clip(run))
    run.ledger.witness = witness
    make = {DpMerfAe: _autoencoder, FedAvgGan: audited_rounds}.get(type(audited.implementation), _discriminator)
    take, witness.rows = make(run, audited)
    for _ in range(event.count):
        take()
    scores: Numbers = witness.total.numpy()
    return scores


def _clip(run: Run) -> float:
    assert isinstance(run.plan.config, DpGanConfig | DpMerfAeConfig | FedAvgConfig)
    return run.plan.config.privacy.clip


class StepWitness:
    """Adds up, over all steps, how much of each canary the noisy sums hold.

    Privacy: reads the network as it stood before the step, which is sanitized, and the sanitized sum.
    """

    rows: Callable[[], list[Units]]  # what canaries may add, then what all others may

    def __init__(self, purpose: str, noise: float) -> None:
        self._purpose, self._noise, self.total = purpose, noise, torch.zeros(())

    def __call__(self, purpose: str, value_dp: Tensor) -> None:
        """One noisy sum of clipped rows, flat."""
        if purpose == self._purpose:
            self.total = self.total + presence(value_dp.flatten(), self.rows(), self._noise)


def _discriminator(run: Run, audited: AuditedRun) -> Steps:
    """The networks and settings of the method itself; the generator stays as it began."""
    method, config, domain = audited.implementation, run.plan.config, run.plan.domain
    assert isinstance(method, DpGan)
    assert isinstance(config, DpGanConfig)
    options, kind = method.step_options(config), config.method.loss
    network = method.discriminator(config, domain)
    generator = build_generator(method.generator_config(config, domain))
    step = discriminator_step(run, network, generator, options, kind, run.plan.events[0])
    fakes, random = Fakes(run, generator, _FAKES), torch.Generator()

    def gradients(images: Tensor, labels: Tensor | None, sign: float) -> Tensor:
        def loss(logits: Tensor, _: Tensor) -> Tensor:
            return softplus(-sign * logits) if kind == "logistic" else -sign * logits

        return row_gradients(network, images, labels, loss)

    together = options.images_per_person if domain.unit == "person" else 1

    def rows() -> list[Units]:
        drawn = fakes.render(*fakes.draw(_FAKES * together, random))
        alone = gradients(drawn.images, drawn.labels, -1.0)
        made = clip_rows(alone.unflatten(0, (_FAKES, together)).mean(dim=1), options.clip)
        middle = made.mean(dim=0, keepdim=True)
        spread = Units(made - middle, 0.0, (options.batch / _FAKES) ** 0.5)
        reals = _sampled(run, audited, lambda images, labels: gradients(images, labels, 1.0), options.clip)
        return [*reals, Units(middle, float(options.batch), 0.0), spread]

    return step.take, rows


def _autoencoder(run: Run, audited: AuditedRun) -> Steps:
    config, domain = run.plan.config, run.plan.domain
    assert isinstance(config, DpMerfAeConfig)
    settings, width = config.method.autoencoder, config.method.autoencoder.width or 16
    drawing = audited.implementation.generator_config(config, domain)
    network = Autoencoder(Encoder(domain.shape, settings.code, width), DecoderGenerator(drawing).decoder)
    clip = config.privacy.clip
    steps = autoencoder_steps(run, network, config)

    def loss(raw: Tensor, images: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(raw, images, reduction="none").flatten(1).mean(dim=1)

    def gradients(images: Tensor, _: Tensor | None) -> Tensor:
        return row_gradients(network, images, None, loss)

    return steps.take, lambda: _sampled(run, audited, gradients, clip)


def _sampled(
    run: Run, audited: AuditedRun, rows: Callable[[Tensor, Tensor | None], Tensor], clip: float
) -> list[Units]:
    """Canaries, of which half take part, and public units, both Poisson-sampled.

    A canary is a unit of one image. Of a person a step shows some images, which the attack takes for the mean of all.
    """
    sampling = run.plan.events[0].sampling
    assert isinstance(sampling, PoissonSampling)
    parts = ((audited.canaries, sampling.rate / 2), (audited.data, sampling.rate))
    found = []
    for part, chance in parts:
        images, labels = load_rows(part, _CPU)
        gradients = rows(images.float() / 255, labels)
        if part is audited.data and audited.data.domain.unit == "person":
            gradients = _mean_of_each(gradients, torch.from_numpy(audited.data.unit_of_record("person")))
        found.append(Units.by_coin(clip_rows(gradients, clip), chance))
    return found


def _mean_of_each(rows: Tensor, owners: Tensor) -> Tensor:
    """The mean of the rows of each owner, who are numbered from 0 without gaps."""
    sizes = torch.bincount(owners)
    return rows.new_zeros(len(sizes), rows.shape[1]).index_add_(0, owners, rows) / sizes[:, None]


def row_gradients(network: nn.Module, images: Tensor, labels: Tensor | None, loss: Loss) -> Tensor:
    """The gradient of each example's loss (examples, values) in the order of ``FlatParameters``, by ``torch.func``.

    This shares no code with the sums that methods take, so what it finds there speaks for them.
    """
    flat = FlatParameters(copy.deepcopy(network))
    weights = {name: value.detach() for name, value in network.named_parameters()}

    def of_one(weights: dict[str, Tensor], image: Tensor, label: Tensor | None) -> Tensor:
        inputs = (image[None],) if label is None else (image[None], label[None])
        return loss(functional_call(network, weights, inputs), image[None]).sum()

    each = vmap(grad(of_one), in_dims=(None, 0, None if labels is None else 0), chunk_size=_AT_ONCE)
    rows = torch.zeros(len(images), len(flat.values))
    for name, values in each(weights, images, labels).items():
        last = values.permute(0, 1, 3, 4, 2) if values.dim() == 5 else values  # kernels lie channels last
        rows[:, flat.span(name)] = last.flatten(1).float()
    return rows
