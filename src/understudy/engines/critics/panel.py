"""The private side of GS-WGAN: critics on disjoint subsets that train on a public schedule and answer queries.

A subset is what one draw assigned to it (``Critics.of_run``, in one place) or what one client holds (``federated``,
where a client has one critic and a simulation as many critics as there are clients). Several processes may share the
critics of a run (``sharing.py``): then each holds some of them, and the leader speaks for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from understudy.configs import Precision
from understudy.data.dataset import ImageDataset
from understudy.data.partition import Partition
from understudy.data.sampling import uniform_integers
from understudy.distributed import ALONE, Team
from understudy.engines.config import CriticsConfig
from understudy.engines.critics.bank import AdamConfig, CriticBank, CriticBankConfig, CriticBankOptions
from understudy.engines.critics.sharing import Shard, Words
from understudy.engines.critics.subsets import PrivateRecords, SubsetTable, take
from understudy.engines.critics.warm_start import WarmStartConfig, warm_start
from understudy.engines.dpsgd.sharing import Sharing
from understudy.engines.records import load_all
from understudy.models.critic import CriticBatch, CriticConfig
from understudy.privacy.randomness.streams import Randomness
from understudy.runs.run import Run

_POOL = 512  # generated images for growing up
_WARM, _TRAIN, _ASK = "warm start", "train", "ask"


@dataclass(frozen=True)
class FakePool:
    """Generated images (P, C, H, W) in [0, 1] with their labels: public, and the same for every critic."""

    images: Tensor
    labels: Tensor | None

    def repeated(self, queries: int) -> FakePool:
        """Each image, and its label, once for each of its queries, one after the other."""
        times, rest = divmod(queries, len(self.images))
        if times <= 1:
            return self
        assert rest == 0, "as many queries for each image"
        labels = None if self.labels is None else self.labels.repeat_interleave(times)
        return FakePool(self.images.repeat_interleave(times, dim=0), labels)


Part = Callable[..., Tensor]  # of a pool, and of what else is asked: what one process answers


@dataclass(frozen=True)
class Home:
    """Where critics live: their randomness, their device and the precision of their products."""

    randomness: Randomness
    device: torch.device
    precision: Precision = "fp32"


class Critics:
    """K critics, each with the records that ``assignment`` gives it; of a team every process holds its own of them.

    Whoever leads calls these methods; ``help`` does the same in the other processes.

    Privacy: everything in here is private except the schedule. Critic k reads subset k, its own randomness and public
    images. The only way out is ``answer``, whose rows must go into a mechanism before anything else sees them.
    """

    def __init__(
        self,
        data: ImageDataset,
        assignment: Tensor,
        subsets: int,
        settings: CriticsConfig,
        home: Home,
        team: Team = ALONE,
    ) -> None:
        self.subsets, self.settings, self._randomness = subsets, settings, home.randomness
        assert settings.width is not None, "decided by the plan"
        self._random = home.randomness.generator(home.device)
        self._shard, self._words = Shard(subsets, team), Words(team, home.device)
        self.own = len(self._shard.critics)
        self._records_private = _own_records(data, assignment, self._shard, home.device)
        bank_config = CriticBankConfig(
            critic=CriticConfig(shape=data.domain.shape, classes=data.domain.classes, width=settings.width),
            critics=self.own,
            adam=AdamConfig(learning_rate=settings.learning_rate),
        )
        runtime = CriticBankOptions(precision=home.precision)
        active = self._records_private.table.nonempty
        self.bank = CriticBank(bank_config, runtime, active, home.device, self._random)
        self._next = 0
        self._pool: FakePool | None = None  # the last that was told of

    @classmethod
    def of_run(cls, run: Run, subsets: int, settings: CriticsConfig) -> Self:
        """The critics of a run in one place: an independent, uniform draw assigns every record to one of them."""
        home = Home(run.randomness, run.device, run.plan.config.runtime.precision)
        return cls(run.data, _assignment(run, subsets), subsets, settings, home, run.team)

    def records_private(self, critic: int = 0) -> tuple[Tensor, Tensor | None]:
        """The images and labels of one critic's subset. Privacy: private; for a mechanism and nothing else."""
        records = self._records_private
        own = records.table.members[critic, : int(records.table.sizes[critic])]
        return records.images[own], None if records.labels is None else records.labels[own]

    # --- training

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
        if self._shard.team.leads:
            self._words.say({"do": _WARM}, ())
        config = WarmStartConfig(
            iterations=self.settings.warm_iterations,
            batch=self.settings.batch,
            learning_rate=self.settings.warm_learning_rate,
        )
        warm_start(self.bank, self._records_private, config, self._random)

    def train_scheduled(self, pool: FakePool) -> None:
        """Train the next critics in turn: the schedule is public and does not know who was asked what."""
        stop = min(self._next + self.settings.per_step, self.subsets)
        turn = slice(self._next, stop)
        self._next = stop % self.subsets
        self.train(turn, pool)

    def train_all(self, pool: FakePool) -> None:
        """Train every critic once on the pool."""
        for _ in range(-(-self.subsets // self.settings.per_step)):
            self.train_scheduled(pool)

    def train(self, critics: slice | list[int], pool: FakePool) -> None:
        """One step of the named critics, each on its own records and its own random part of the pool."""
        named = [critics.start, critics.stop] if isinstance(critics, slice) else critics
        self._tell(pool, {"do": _TRAIN, "range": isinstance(critics, slice), "critics": named})
        self._train_rows(self._shard.rows(critics), pool)

    def _train_rows(self, rows: slice | list[int], pool: FakePool) -> None:
        """The same of this process's own critics, by their rows in its bank."""
        if rows == [] or (isinstance(rows, slice) and rows.start >= rows.stop):
            return
        index = rows if isinstance(rows, slice) else torch.tensor(rows, device=self.bank.device)
        drawn = self._records_private.table.draw(index, self.settings.batch, self._random)
        real, labels = take(self._records_private.images, self._records_private.labels, drawn)
        picked = torch.randint(len(pool.images), drawn.shape, generator=self._random, device=drawn.device)
        fake_labels = None if pool.labels is None else pool.labels[picked]
        self.bank.train_step(rows, CriticBatch(real, pool.images[picked], labels, fake_labels), self._random)

    # --- questions

    def draw_routing(self, count: int) -> Tensor:
        """A critic for each query: secret, independent, exactly uniform over all K.

        Privacy: the draw stays with the owner's processes; amplification rests on its secrecy (docs/privacy.md).
        """
        drawn = uniform_integers(count, self.subsets, self._randomness.bits)
        return torch.from_numpy(drawn).to(self.bank.device)

    def answer(self, pool: FakePool, routing: Tensor) -> Tensor:
        """The asked critics' gradients (queries, values), unsanitized, in query order; changes no critic.

        With several queries for each image, those of the first come first.
        """
        return self.ask(self.own_answers, pool, routing)

    def own_answers(self, pool: FakePool, routing: Tensor) -> Tensor:
        """The same, with zeros for the critics of other processes.

        Privacy: this process works through as many queries whoever is asked, and drops what nobody asked of it.
        """
        pool = pool.repeated(len(routing))
        if self._shard.team.size > 1:
            return self._answers_among_others(pool, routing)
        return self.bank.query(pool.images, pool.labels, routing).flatten(1)

    def _answers_among_others(self, pool: FakePool, routing: Tensor) -> Tensor:
        team, at_once = self._shard.team, self._shard.at_once(len(routing))
        mine = torch.nonzero(routing % team.size == team.rank)[:, 0]
        answers = torch.zeros(len(routing), pool.images[0].numel(), device=routing.device)
        for start in range(0, max(1, len(mine)), at_once):
            asked = mine[start : start + at_once]
            places = torch.cat([asked, asked.new_zeros(at_once - len(asked))])
            rows = torch.cat([routing[asked] // team.size, places[len(asked) :]])
            labels = None if pool.labels is None else pool.labels[places]
            answers[asked] = self.bank.query(pool.images[places], labels, rows).flatten(1)[: len(asked)]
        return answers

    def ask(self, part: Part, pool: FakePool, *asked: Tensor, counts: Sequence[Tensor] = ()) -> Tensor:
        """What all processes answer about the images, added up: each computes its ``part`` of it.

        ``asked`` is what a part needs to know beside the images; ``counts`` are brought together in place.

        Privacy: unsanitized; to be given to a mechanism and nowhere else.
        """
        self._tell(pool, {"do": _ASK}, *asked)
        self._shard.team.expect(parts=True)
        return self._words.sum(part(pool, *asked), counts)

    # --- several processes

    def _tell(self, pool: FakePool, deed: dict[str, Any], *tensors: Tensor) -> None:
        """Say to the others what to do with a pool, which is sent unless it is the last that was."""
        new = pool is not self._pool
        self._pool = pool
        sent = () if not new else (pool.images,) if pool.labels is None else (pool.images, pool.labels)
        self._words.say({**deed, "pool": len(sent)}, (*sent, *tensors))

    def help(self, part: Part, counts: Callable[[], Sequence[Tensor]] = tuple) -> dict[str, Any] | None:
        """Of a process that follows: do with its own critics what the leader says; what that tells when it is done.

        Privacy: critics learn from their own subsets, and what they answer goes to the leader, who sanitizes it;
        nothing is spent or released here.
        """
        while (heard := self._words.hear()) is not None:
            deed, tensors = heard
            if deed["do"] == _WARM:
                self.warm_start()
                continue
            if deed["pool"]:
                self._pool = FakePool(tensors[0], tensors[1] if deed["pool"] > 1 else None)
            assert self._pool is not None, "the leader sends the first"
            if deed["do"] == _TRAIN:
                critics = slice(*deed["critics"]) if deed["range"] else deed["critics"]
                self._train_rows(self._shard.rows(critics), self._pool)
            else:
                self._words.sum(part(self._pool, *tensors[deed["pool"] :]), counts())
        return self._words.heard

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


@dataclass(frozen=True)
class CriticsHelp:
    """What a process that follows does with its critics: its ``part`` of every answer, and what it counts by the way.

    Privacy: as ``Critics.help``.
    """

    critics: Critics
    part: Part
    counts: Callable[[], Sequence[Tensor]] = tuple

    def help(self) -> dict[str, Any] | None:
        """Do what the leader says, until it begins with other work."""
        return self.critics.help(self.part, self.counts)


def _own_records(data: ImageDataset, assignment: Tensor, shard: Shard, device: torch.device) -> PrivateRecords:
    """The records of a process's own critics, and which of them belong to which.

    Privacy: no other records are loaded. That they are disjoint, and all of their subsets, is checked.
    """
    if shard.team.size == 1:
        table = SubsetTable.from_assignment(assignment, shard.subsets)
        return PrivateRecords(*load_all(data, device), table.to(device))
    own = shard.records(assignment)
    table = SubsetTable.from_assignment(assignment[own] // shard.team.size, len(shard.critics))
    return PrivateRecords(*load_all(data, device, of=own.numpy()), table.to(device))


def _assignment(run: Run, subsets: int) -> Tensor:
    """The subset of each record, which the leader of a team tells the others.

    Privacy: private, told to processes of the owner alone. That no unit lies in two subsets is checked by everybody.
    """
    if run.team.size == 1:
        return torch.from_numpy(_partition(run, subsets).assignment)
    told = torch.zeros(len(run.data) + 1, dtype=torch.int32)  # a data set may be empty, and a message may not
    if run.team.leads:
        told[:-1] = torch.from_numpy(_partition(run, subsets).assignment)
        Sharing({"critics": subsets}).announce(run.team)
    run.team.give(told)
    assignment = told[:-1].long()
    Partition(assignment.numpy(), subsets, run.plan.domain.unit).check(run.data)
    return assignment


def _partition(run: Run, subsets: int) -> Partition:
    """The partition of this run: drawn once and kept in the private folder, because subsets must stay fixed."""
    path = run.files.partition
    if not path.exists():
        Partition.draw(run.data, subsets, unit=run.plan.domain.unit, bits=run.randomness.bits).save(path, run.data)
    return Partition.load(path, run.data)
