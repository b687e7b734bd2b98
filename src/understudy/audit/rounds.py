"""White-box audits of federated averaging: the real rounds of ``fedavg-gan`` with canaries as clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from understudy.audit.attacks import AuditedRun
from understudy.audit.canaries import with_canaries
from understudy.audit.presence import Units
from understudy.federated.messages import Images
from understudy.federated.player import RoundPlayer
from understudy.federated.updates import SimulatedUpdates, Weights, make_discriminator
from understudy.methods.fedavg_gan import FedAvgConfig, average
from understudy.privacy.events import PoissonSampling
from understudy.privacy.mechanisms import GaussianSum, clip_rows
from understudy.training.critic_panel import Home
from understudy.training.run import Run


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
    contract, home = audited.implementation.contract(run.plan), Home(run.randomness, run.device)
    discriminator, generator = make_discriminator(contract, home), RoundPlayer(run, config.method.generator)
    clients = WatchedUpdates(run.data, contract, home)
    everybody = replace(audited.canaries, included=np.ones(len(audited.canaries), dtype=bool))
    imagined = SimulatedUpdates(with_canaries(audited.data, everybody, as_clients=True), contract, home)
    mechanism = GaussianSum(run.ledger, run.randomness, clip=contract.clip, event=run.plan.events[0])
    known, enrolled = audited.data.nominal_units("client"), contract.limits.clients

    def rows() -> list[Units]:
        changes = clip_rows(imagined.of(range(enrolled), *clients.asked), contract.clip)
        return [Units.by_coin(changes[known:], sampling.rate / 2), Units.by_coin(changes[:known], sampling.rate)]

    return lambda: average(run, config, discriminator, clients, mechanism, generator), rows
