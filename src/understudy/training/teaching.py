"""The loop that methods with teachers share: teachers train on public images and vote; the generator learns from it."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch
from torch import Tensor

from understudy.errors import CheckError
from understudy.models.generator import Generator
from understudy.privacy.events import Event
from understudy.training.anchor import Anchor
from understudy.training.generator_player import Drawn, GeneratorPlayer
from understudy.training.run import Run
from understudy.training.settings import CriticSettings
from understudy.training.states import Resumable, Stateful
from understudy.training.teacher_panel import TeacherPanel
from understudy.training.teaching_settings import TeachingSettings

_POOL = 512  # generated images for catching up after a resume and for progress
_REPORTS = 100
_RESERVATIONS = 200  # the ledger is written about so often in a run
_STALL_CHECKS = 5
ADVICE = "raise method.teachers.warm_iterations or use fewer privacy.teachers"


class Lesson(Protocol):
    """What a method does with its teachers: ask them, sanitize their votes, and let the generator learn."""

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint must keep beside the generator."""
        ...

    def remaining(self) -> int:
        """Queries that may still be asked."""
        ...

    def step(self, player: GeneratorPlayer, panel: TeacherPanel, block: int) -> None:
        """One step; ``block`` executions are reserved with one write to the ledger."""
        ...

    def check(self) -> dict[str, float]:
        """Public figures of the steps since the last check; raises when the run is broken or stalls."""
        ...


def teach(run: Run, lesson: Lesson, settings: TeachingSettings, teachers: int, embedding: Event | None) -> Generator:
    """Train teachers and generator for the planned steps; ``embedding`` is the event of a start from an embedding.

    Privacy: teachers train on generated images and a public schedule, all of them vote on every query, and the
    generator sees sanitized votes only. Teachers are never written to disk: a resumed run grows them again.
    """
    anchor = None if embedding is None else Anchor.release(run, settings.embedding, embedding)
    player = GeneratorPlayer(run, settings.generator, anchor)
    progress = Resumable(run, player.average, player.parts() | lesson.parts())
    if anchor and not progress.resumed:
        player.fit_anchor(run, settings.embedding)
    panel = _grown_panel(run, settings.teachers, teachers, player, from_pool=bool(anchor) or progress.resumed)
    total, rows = run.plan.steps, settings.queries_per_step
    block = max(1, total // _RESERVATIONS) * rows
    for step in progress.steps(total):
        if lesson.remaining() < rows:
            progress.end_after(step - 1)
            break
        panel.train_scheduled(player.pool(max(rows, settings.teachers.batch)))
        lesson.step(player, panel, block)
        if step % max(1, total // _REPORTS) == 0 or step == total:
            figures = lesson.check()  # first: votes that say nothing are a better reason to stop than blank images
            contrast = player.check_alive(player.pool(_POOL).images, ADVICE)
            run.report(step, contrast=contrast, queries=step * rows, **figures)
    return player.average


class Rehearsal:
    """The latest questions with their sanitized answers: the generator learns from all of them at every step.

    One answer is noisy, and the generator moves slowly enough that earlier ones still point the right way.

    Privacy: post-processing; an answer that is used again costs nothing.
    """

    def __init__(self, memory: int) -> None:
        self._latent, self._labels, self._slopes = (deque[Tensor](maxlen=memory) for _ in range(3))

    def learn(self, player: GeneratorPlayer, asked: Drawn, slopes_dp: Tensor) -> None:
        """One step of the generator along the new answers (images, values) and those that are remembered."""
        assert asked.latent is not None, "drawn by the player itself"
        self._latent.append(asked.latent)
        self._slopes.append(slopes_dp)
        if asked.labels is not None:
            self._labels.append(asked.labels)
        latent = torch.cat(list(self._latent))
        labels = torch.cat(list(self._labels)) if self._labels else None
        player.learn(player.imagine(len(latent), labels, latent), torch.cat(list(self._slopes)))


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


def _grown_panel(
    run: Run, settings: CriticSettings, teachers: int, player: GeneratorPlayer, *, from_pool: bool
) -> TeacherPanel:
    """Teachers that know their shards: against the generator where it is worth learning from, else a warm start."""
    panel = TeacherPanel(run, teachers, settings)
    if from_pool:
        for _ in range(settings.warm_iterations):
            panel.train_all(player.pool(_POOL))
    else:
        panel.warm_start()
    return panel
