"""PATE-GAN: teachers vote whether images are real; a student learns the votes, and the generator fools the student.

J. Jordon, J. Yoon, M. van der Schaar, "PATE-GAN: Generating Synthetic Data with Differential Privacy Guarantees", ICLR
2019. Symbols: K teachers, N queries, threshold t.

For every generated image each teacher votes "real" or "fake". The number of votes for "real" gets Gaussian noise, and
the noisy share is the label with which the student, a discriminator that sees generated images only, is trained. The
generator moves its images to where the student finds them more real.

On images the published rule is reported to stall (GS-WGAN paper, C.4): soon every teacher takes every generated image
for a fake, and a student without any "real" label has nothing to say. So a teacher's line between fake and real is set
at a share t of the way from its mean score of the asked images (of the same label) to that of its own records. The
paper's is the middle, t = 0.5 (preset ``published``, which stops with advice when it stalls). The default is t = 0: a
vote says whether an image is more real than the others asked, so about half of the votes always are. And the asked
images get some public noise, so that they differ and the student learns in which direction images become more real;
without it generated images that have become alike teach it nothing, and the generator collapses. A vote is one bit of
one teacher all the same.

Privacy: a record lies in one shard, so it changes one teacher's vote: sensitivity 1, one Gaussian event for each image,
without sampling. Student and generator are post-processing. Data-independent, in place of the paper's moments.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from understudy.configs import Config, Count, MethodConfig, Positive
from understudy.engines.config import LearnerConfig
from understudy.methods.teachers.ensemble import (
    TeacherConfig,
    TeacherMethod,
    TeacherPrivacy,
    TeachingConfig,
    shared_presets,
)
from understudy.privacy.events import Event

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.engines.critics.panel import FakePool
    from understudy.engines.learner import SlopeLearner
    from understudy.methods.teachers.teaching import Lesson, Teachers
    from understudy.runs.loop import Stateful
    from understudy.runs.run import Run


_PURPOSE = "votes for real"
_AWAY = "asked images, away from those that got most votes"
_UNANIMOUS = 0.02  # a share of votes this close to 0 or 1, over all queries between two checks, says nothing
_SURE = 0.05  # only where the noise of that share is below this


class StudentConfig(Config):
    """The student: a discriminator that learns the noisy votes on the latest queries."""

    width: Annotated[int, Field(ge=8, multiple_of=8)] = 32
    learning_rate: Positive = 1e-3
    steps: Count = 8  # for each step of the generator
    memory: Count = 20  # batches of queries that it keeps learning from


class PateGanPrivacy(TeacherPrivacy):
    """What changes epsilon."""


class PateGanMethodConfig(TeachingConfig):
    """The game between teachers, student and generator."""

    queries_per_step: Count = 50  # B
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.0  # t
    spread: Annotated[float, Field(ge=0, le=1)] = 0.3  # deviation of the noise on the pixels of asked images; 0: none
    generator: LearnerConfig = LearnerConfig(latent=4, learning_rate=1e-3, average_decay=0.95)
    student: StudentConfig = StudentConfig()


class PateGanConfig(TeacherConfig):
    """The config of ``pate-gan``."""

    privacy: PateGanPrivacy = PateGanPrivacy()
    method: PateGanMethodConfig = PateGanMethodConfig()


_PUBLISHED: Mapping[str, Any] = {"method": {"threshold": 0.5, "spread": 0.0}}


class PateGan(TeacherMethod):
    """A student between the voting teachers and the generator."""

    name: ClassVar[str] = "pate-gan"
    summary: ClassVar[str] = "teachers on disjoint shards vote real or fake; a student learns their noisy votes"
    paper: ClassVar[str] = "Jordon, Yoon, van der Schaar: PATE-GAN (ICLR 2019)"
    config_type: ClassVar[type[MethodConfig]] = PateGanConfig
    asks_for: ClassVar[Literal["slopes", "scores"]] = "scores"
    queries_per_teacher: ClassVar[int] = 100
    presets: ClassVar = shared_presets(_PUBLISHED, 100_000)

    def vote_events(self, config: TeacherConfig, noise_multiplier: float) -> tuple[Event, ...]:
        """One Gaussian for each query."""
        queries = config.privacy.queries or 1
        return (Event(noise_multiplier=noise_multiplier, sensitivity="C", count=queries, purpose=_PURPOSE),)

    def lesson(self, run: Run) -> Lesson:
        """Ask for votes, teach the student, follow it."""
        return StudentLesson(run)


class StudentLesson:
    """One step of PATE-GAN."""

    def __init__(self, run: Run) -> None:
        from understudy.methods.teachers.teaching import StallWatch
        from understudy.privacy.mechanisms import RealVotes

        config = run.plan.config_as(PateGanConfig)
        self.settings = config.method
        self.votes = RealVotes(run.ledger, run.randomness, event=run.plan.events[0])
        self._random, self._show = run.randomness.generator(run.device), run.ledger.show
        self.student = Student(run, self.settings.student)
        self._noise = run.plan.events[0].noise_multiplier / (config.privacy.teachers or 1)
        self._watch = StallWatch()
        self._shares: list[Tensor] = []

    def parts(self) -> dict[str, Stateful]:
        """The student; the queries it remembers are asked anew."""
        return {"student": self.student.network, "student_optimizer": self.student.optimizer}

    def remaining(self) -> int:
        """Queries that may still be asked."""
        return self.votes.account.remaining

    def step(self, learner: SlopeLearner, teachers: Teachers, block: int) -> None:
        """Ask all teachers about B images, teach the student, and move other images to where it likes them better."""
        pool = self._spread(learner.pool(self.settings.queries_per_step))
        share_dp = self.votes.release(teachers.count(self, pool), block=block).value_dp / teachers.subsets
        self._shares.append(share_dp)
        self._show(_AWAY, (share_dp.mean() - share_dp)[:, None] * pool.images.flatten(1).double())
        self.student.learn(pool, share_dp.float())
        drawn = learner.imagine(self.settings.queries_per_step)
        learner.learn(drawn, self.student.slopes(drawn.pool))

    def check(self) -> dict[str, float]:
        """The share of votes for "real"."""
        import torch

        self.votes.check_finite()
        shares = torch.cat(self._shares)
        share, noise = float(shares.mean()), self._noise / len(shares) ** 0.5
        self._shares.clear()
        self._watch.look(
            noise < _SURE and not _UNANIMOUS < share < 1 - _UNANIMOUS,
            f"the teachers agree that all images are {'fake' if share < 0.5 else 'real'}, so the student learns "
            "nothing; lower method.threshold (0 compares generated images with each other), train teachers less "
            "(method.teachers.learning_rate), or start from an embedding (privacy.embedding_share)",
        )
        return {"real_votes": share}

    def _spread(self, pool: FakePool) -> FakePool:
        """The images with public noise on their pixels: a student that sees differences learns where to go."""
        import torch

        noise = torch.randn(pool.images.shape, generator=self._random, device=pool.images.device)
        return dataclasses.replace(pool, images=(pool.images + self.settings.spread * noise).clamp(0, 1))

    def tally(self, teachers: Teachers, pool: FakePool, *public: Tensor) -> Tensor:
        """The exact number of votes for "real" (images,) of a process's own teachers.

        Privacy: a record changes one teacher's scores, so one vote for each image: 1.
        """
        import torch

        tally = torch.zeros(len(pool.images), dtype=torch.int64, device=pool.images.device)
        for margins_private in teachers.margins(pool, self.settings.threshold):
            self.votes.count(tally, margins_private)
        return tally


class Student:
    """A discriminator that learns noisy shares of votes as soft labels.

    Privacy: it sees generated images and sanitized votes only. A noisy share may lie outside 0..1; the logistic loss
    is linear in it, so the noise averages out, which cutting it would prevent.
    """

    def __init__(self, run: Run, settings: StudentConfig) -> None:
        from torch.optim import Adam

        from understudy.models.critic import Critic, CriticConfig

        shape = CriticConfig(shape=run.plan.domain.shape, classes=run.plan.domain.classes, width=settings.width)
        self.settings, self.network = settings, Critic(shape).to(run.device)
        self.optimizer = Adam(self.network.parameters(), settings.learning_rate, betas=(0.5, 0.9))
        self._memory: deque[tuple[FakePool, Tensor]] = deque(maxlen=settings.memory)
        self._random = run.randomness.generator("cpu")

    def learn(self, pool: FakePool, shares_dp: Tensor) -> None:
        """Remember the newest votes, and learn from them and from some earlier ones."""
        import torch

        self._memory.append((pool, shares_dp))
        self.network.train()
        chosen = [len(self._memory) - 1]
        chosen += torch.randint(len(self._memory), (self.settings.steps - 1,), generator=self._random).tolist()
        for place in chosen:
            known, target = self._memory[place]
            scores = self.network(known.images, known.labels)
            loss = torch.nn.functional.softplus(scores).mean() - (target * scores).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        self.network.eval()

    def slopes(self, pool: FakePool) -> Tensor:
        """Where the student finds each image less real (images, values), scaled to a mean length of one."""
        from torch.autograd import grad

        images = pool.images.clone().requires_grad_()
        (slopes,) = grad(-self.network(images, pool.labels).sum(), images)
        slopes = slopes.flatten(1)
        return slopes / slopes.norm(dim=1).mean().clamp(min=1e-12)
