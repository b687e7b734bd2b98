"""The private side of GS-WGAN: critics on disjoint subsets that train on a public schedule and answer queries.

A subset is what one draw assigned to it (``Critics.of_run``, in one place) or what one client holds (``federated``,
where a client has one critic and a simulation as many critics as there are clients).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from understudy.configs import Precision
from understudy.data.dataset import ImageDataset
from understudy.data.partition import Partition
from understudy.data.sampling import uniform_integers
from understudy.engines.config import CriticsConfig
from understudy.engines.critics.bank import AdamConfig, CriticBank, CriticBankConfig, CriticBankOptions, CriticReport
from understudy.engines.critics.subsets import PrivateRecords, SubsetTable, take
from understudy.engines.critics.warm_start import WarmStartConfig, warm_start
from understudy.engines.records import load_all
from understudy.models.critic import CriticBatch, CriticConfig
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

_POOL = 512  # generated images for growing up


@dataclass(frozen=True)
class FakePool:
    """Generated images (P, C, H, W) in [0, 1] with their labels: public, and the same for every critic."""

    images: Tensor
    labels: Tensor | None


@dataclass(frozen=True)
class Home:
    """Where critics live: their randomness, their device and the precision of their products."""

    randomness: Randomness
    device: torch.device
    precision: Precision = "fp32"


class Critics:
    """K critics, each with the records that ``assignment`` gives it.

    Privacy: everything in here is private except the schedule. Critic k reads subset k, its own randomness and public
    images. The only way out is ``answer``, whose rows must go into a mechanism before anything else sees them.
    """

    def __init__(
        self, data: ImageDataset, assignment: Tensor, subsets: int, settings: CriticsConfig, home: Home
    ) -> None:
        self.subsets, self.settings, self._randomness = subsets, settings, home.randomness
        assert settings.width is not None, "decided by the plan"
        self._random = home.randomness.generator(home.device)
        table = SubsetTable.from_assignment(assignment, subsets)
        self._records_private = PrivateRecords(
            *load_all(data, home.device), SubsetTable(table.members.to(home.device), table.sizes.to(home.device))
        )
        bank_config = CriticBankConfig(
            critic=CriticConfig(shape=data.domain.shape, classes=data.domain.classes, width=settings.width),
            critics=subsets,
            adam=AdamConfig(learning_rate=settings.learning_rate),
        )
        runtime = CriticBankOptions(precision=home.precision)
        active = self._records_private.table.nonempty
        self.bank = CriticBank(bank_config, runtime, active, home.device, self._random)
        self._next = 0

    @classmethod
    def of_run(cls, run: Run, subsets: int, settings: CriticsConfig) -> Self:
        """The critics of a run in one place: an independent, uniform draw assigns every record to one of them."""
        assignment = torch.from_numpy(_partition(run, subsets).assignment)
        home = Home(run.randomness, run.device, run.plan.config.runtime.precision)
        return cls(run.data, assignment, subsets, settings, home)

    def records_private(self, critic: int = 0) -> tuple[Tensor, Tensor | None]:
        """The images and labels of one critic's subset. Privacy: private; for a mechanism and nothing else."""
        records = self._records_private
        own = records.table.members[critic, : int(records.table.sizes[critic])]
        return records.images[own], None if records.labels is None else records.labels[own]

    def grow(self, pool: Callable[[int], FakePool] | None) -> None:
        """What comes before the first step, also of a resumed run: critics are never written to disk.

        They learn from the images of a generator (``pool`` draws so many) that is worth learning from, or, where there
        is none yet, from a warm start.
        """
        if pool is None:
            self.warm_start()
            return
        for _ in range(self.settings.warm_iterations):
            self.train_all(pool(_POOL))

    def warm_start(self) -> None:
        """Train each critic against a throw-away generator of its own, on its own subset."""
        config = WarmStartConfig(
            iterations=self.settings.warm_iterations,
            batch=self.settings.batch,
            learning_rate=self.settings.warm_learning_rate,
        )
        warm_start(self.bank, self._records_private, config, self._random)

    def train_scheduled(self, pool: FakePool) -> CriticReport:
        """Train the next critics in turn: the schedule is public and does not know who was asked what."""
        stop = min(self._next + self.settings.per_step, self.subsets)
        turn = slice(self._next, stop)
        self._next = stop % self.subsets
        return self.train(turn, pool)

    def train_all(self, pool: FakePool) -> None:
        """Train every critic once on the pool."""
        for _ in range(-(-self.subsets // self.settings.per_step)):
            self.train_scheduled(pool)

    def train(self, critics: slice | list[int], pool: FakePool) -> CriticReport:
        """One step of the named critics, each on its own records and its own random part of the pool."""
        index = critics if isinstance(critics, slice) else torch.tensor(critics, device=self.bank.device)
        drawn = self._records_private.table.draw(index, self.settings.batch, self._random)
        real, labels = take(self._records_private.images, self._records_private.labels, drawn)
        picked = torch.randint(len(pool.images), drawn.shape, generator=self._random, device=drawn.device)
        fake_labels = None if pool.labels is None else pool.labels[picked]
        return self.bank.train_step(critics, CriticBatch(real, pool.images[picked], labels, fake_labels), self._random)

    def draw_routing(self, count: int) -> Tensor:
        """A critic for each query: secret, independent, exactly uniform over all K.

        Privacy: the draw stays in this process; amplification rests on its secrecy (docs/privacy.md).
        """
        drawn = uniform_integers(count, self.subsets, self._randomness.bits)
        return torch.from_numpy(drawn).to(self.bank.device)

    def answer(self, pool: FakePool, routing: Tensor) -> Tensor:
        """The asked critics' gradients (queries, values), unsanitized, in query order; changes no critic."""
        return self.bank.query(pool.images, pool.labels, routing).flatten(1)

    def answer_messages(self, pool: FakePool, critic: Tensor, slot: Tensor, slots: int) -> Tensor:
        """The same gradients where every critic gets one message of ``slots`` images; a query without a critic has -1.

        Privacy: as ``answer``; every critic looks at all its slots, empty or not, so no shape depends on the routing.
        """
        asked = critic >= 0
        places = (critic * slots + slot)[asked]
        images = pool.images.new_zeros(self.subsets * slots, *pool.images.shape[1:])
        images[places] = pool.images[asked]
        labels = None
        if pool.labels is not None:
            labels = pool.labels.new_zeros(self.subsets * slots)
            labels[places] = pool.labels[asked]
            labels = labels.view(self.subsets, slots)
        slopes = self.bank.input_gradients(
            slice(0, self.subsets), images.view(self.subsets, slots, *images.shape[1:]), labels
        )
        rows = slopes.new_zeros(len(critic), slopes[0, 0].numel())
        rows[asked] = slopes.flatten(0, 1).flatten(1)[places]
        return rows


def _partition(run: Run, subsets: int) -> Partition:
    """The partition of this run: drawn once and kept in the private folder, because subsets must stay fixed."""
    path = run.files.partition
    if not path.exists():
        Partition.draw(run.data, subsets, unit=run.plan.domain.unit, bits=run.randomness.bits).save(path, run.data)
    return Partition.load(path, run.data)
