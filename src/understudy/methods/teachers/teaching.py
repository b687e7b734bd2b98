"""Teaching: teachers on their own shards train on public images and vote, and the generator learns from the votes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from understudy.engines.critics.panel import Critics, CriticsHelp, FakePool
from understudy.engines.critics.subsets import take
from understudy.engines.embedding.start import EmbeddingStart
from understudy.engines.learner import Drawn, Inputs, SlopeLearner
from understudy.errors import CheckError
from understudy.methods.teachers.ensemble import TeachingConfig
from understudy.models.generator import Generator
from understudy.privacy.claims.votes import VoteRecord
from understudy.privacy.mechanisms import VoteMechanism
from understudy.runs.loop import Resumable, Stateful
from understudy.runs.run import Run

_MOST_VALUES = 2**24  # of one block of answers; fixed by public shapes alone


class Teachers(Critics):
    """K teachers that answer together; of several processes each asks and counts its own of them.

    Privacy: shards are disjoint (checked whenever they are loaded) and fixed; teacher k reads shard k, its own
    randomness and public images, and when it is trained is a public schedule. So a record changes what one teacher
    says. What the teachers say must go into a mechanism for votes before anything else sees it.
    """

    def count(self, lesson: Lesson, pool: FakePool, *public: Tensor) -> Tensor:
        """The exact votes of all teachers on a pool, counted as the lesson does.

        Privacy: private, to be released by the lesson's mechanism. A teacher is one process's and votes there once, so
        the sum of all tallies is the tally of all teachers: whole numbers, and no rounding. Every teacher is asked
        about every image, so there is nothing to tell about who is asked.
        """
        counted = (lesson.votes.counts_private(self.bank.device),)
        return self.ask(partial(lesson.tally, self), pool, *public, counts=counted)

    def slopes(self, pool: FakePool) -> Iterator[Tensor]:
        """Gradients (teachers, images, values) of -D_k at every image, some teachers at a time; changes no teacher."""
        for block, images, labels in self._blocks(pool):
            yield self.bank.input_gradients(block, images, labels).flatten(2)

    def margins(self, pool: FakePool, threshold: float) -> Iterator[Tensor]:
        """By how much (teachers, images) each image is above a teacher's line between fake and real.

        The line lies at ``threshold`` of the way from the teacher's mean score of the pool's images with the same label
        (0) to the mean score of its own records (1). A teacher without records says zero.
        """
        for block, images, labels in self._blocks(pool):
            scores = self.bank.scores(block, images, labels)
            fakes = _mean_of_label(scores, pool.labels)
            gap = self._real_mean(block) - scores.mean(dim=1)
            yield scores - fakes - threshold * gap.unsqueeze(1)

    def _real_mean(self, block: slice) -> Tensor:
        """Each teacher's mean score of a batch of its own records."""
        drawn = self._records_private.table.draw(block, self.settings.batch, self._random)
        images, labels = take(self._records_private.images, self._records_private.labels, drawn)
        return self.bank.scores(block, images, labels).mean(dim=1)

    def _blocks(self, pool: FakePool) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Teachers in blocks that fit into memory, each with the whole pool (as views)."""
        size = max(1, _MOST_VALUES // pool.images.numel())
        for start in range(0, self.own, size):
            block = slice(start, min(start + size, self.own))
            count = block.stop - block.start
            labels = None if pool.labels is None else pool.labels.expand(count, -1)
            yield block, pool.images.expand(count, *pool.images.shape), labels


def _mean_of_label(scores: Tensor, labels: Tensor | None) -> Tensor:
    """The mean score (teachers, images) of the images that share an image's label."""
    if labels is None:
        return scores.mean(dim=1, keepdim=True).expand_as(scores)
    same = (labels.unsqueeze(0) == labels.unsqueeze(1)).to(scores.dtype)
    return scores @ (same / same.sum(dim=0, keepdim=True))


_POOL = 512  # generated images for progress
_RESERVATIONS = 200  # the ledger is written about so often in a run
_STALL_CHECKS = 5
ADVICE = "raise method.teachers.warm_iterations or use fewer privacy.teachers"


class Lesson(Protocol):
    """What a method does with its teachers: ask them, sanitize their votes, and let the generator learn."""

    @property
    def votes(self) -> VoteMechanism:
        """The mechanism that turns what teachers compute into votes."""
        ...

    def tally(self, teachers: Teachers, pool: FakePool, *public: Tensor) -> Tensor:
        """The exact votes of a process's own teachers. Privacy: private, for the mechanism alone."""
        ...

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside the generator."""
        ...

    def remaining(self) -> int:
        """Queries that may still be asked."""
        ...

    def step(self, learner: SlopeLearner, teachers: Teachers, block: int) -> None:
        """One step; ``block`` executions are reserved with one write to the ledger."""
        ...

    def check(self) -> dict[str, float]:
        """Public figures of the steps since the last check; raises when the run is broken or stalls."""
        ...


def teach(run: Run, lesson: Lesson, settings: TeachingConfig, count: int) -> Generator:
    """Train teachers and generator for the planned steps.

    Privacy: teachers train on generated images and a public schedule, all of them vote on every query, and the
    generator sees sanitized votes only. Teachers are never written to disk: a resumed run grows them again.
    """
    start = EmbeddingStart.of_run(run, settings.embedding)
    learner = SlopeLearner(run, settings.generator, start)
    progress = Resumable(run, learner.released, learner.parts() | lesson.parts())
    if start and not progress.resumed:
        learner.fit_start(run, settings.embedding)
    teachers = Teachers.of_run(run, count, settings.teachers)
    teachers.grow(learner.pool if start or progress.resumed else None)
    total, rows = run.plan.steps, settings.queries_per_step
    block = max(1, total // _RESERVATIONS) * rows
    for step in progress.steps(total):
        if lesson.remaining() < rows:
            progress.end_after(step - 1)
            break
        teachers.train_scheduled(learner.pool(max(rows, settings.teachers.batch)))
        lesson.step(learner, teachers, block)
        if run.report_due(step):
            figures = lesson.check()  # first: votes that say nothing are a better reason to stop than blank images
            contrast = learner.check_alive(learner.pool(_POOL).images, ADVICE)
            run.report(step, contrast=contrast, queries=step * rows, **figures)
    return learner.released


def help_teach(run: Run, lesson: Lesson, settings: TeachingConfig, count: int) -> CriticsHelp:
    """In a process that follows: its own teachers, which train and vote when the leader says so.

    Privacy: as ``teach``; votes are counted here, and sanitized by the leader.
    """
    teachers = Teachers.of_run(run, count, settings.teachers)
    return CriticsHelp(
        teachers, partial(lesson.tally, teachers), lambda: (lesson.votes.counts_private(teachers.bank.device),)
    )


class Rehearsal:
    """The latest questions with their sanitized answers: the generator learns from all of them at every step.

    One answer is noisy, and the generator moves slowly enough that earlier ones still point the right way.

    Privacy: post-processing; an answer that is used again costs nothing.
    """

    def __init__(self, memory: int) -> None:
        self._inputs, self._slopes = deque[Inputs](maxlen=memory), deque[Tensor](maxlen=memory)

    def learn(self, learner: SlopeLearner, asked: Drawn, slopes_dp: Tensor) -> None:
        """One step of the generator along the new answers (images, values) and those that are remembered."""
        self._inputs.append(asked.inputs)
        self._slopes.append(slopes_dp)
        latent = torch.cat([each.latent for each in self._inputs])
        labels = torch.cat([each.labels for each in self._inputs])
        learner.learn(learner.render(Inputs(latent, labels)), torch.cat(list(self._slopes)))


class StallWatch:
    """Stops a run whose votes say nothing, check after check.

    Privacy: it is shown sanitized figures only, so stopping reveals nothing more than they do.
    """

    def __init__(self, checks: int = _STALL_CHECKS) -> None:
        self._silent: deque[bool] = deque(maxlen=checks)

    def look(self, silent: bool, sentence: str) -> None:
        """Record one check; raises with ``sentence`` when as many in a row as are kept were silent."""
        self._silent.append(silent)
        if len(self._silent) == self._silent.maxlen and all(self._silent):
            raise CheckError(f"votes: {sentence}, so the run stops before it spends more")


class VoteWatch:
    """Hands exact votes to the record, and puts it on disk whenever a checkpoint asks for its state."""

    def __init__(self, run: Run, deviation: float) -> None:
        self._record, self._deviation = VoteRecord(run.files.votes), deviation

    def hear(self, counts_private: Tensor, shown: Tensor) -> None:
        """Histograms (queries, coordinates, bins), and which of their winners are shown.

        Privacy: they go to the private record and nowhere else.
        """
        self._record.add(counts_private.cpu().numpy(), shown.cpu().numpy(), self._deviation)

    def state_dict(self) -> dict[str, Any]:
        """How many queries are on record."""
        self._record.save()
        return {"recorded": self._record.queries}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Nothing: the record on disk is newer than any checkpoint."""
