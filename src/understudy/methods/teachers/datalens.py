"""DataLens: teachers vote with the signs of their largest gradient entries; the noisy vote is cut and followed.

B. Wang, F. Wu, Y. Long, L. Rimanic, C. Zhang, B. Li, "DataLens: Scalable Privacy Preserving Training via Gradient
Compression and Aggregation", CCS 2021. Symbols: K teachers, k entries of each gradient, threshold beta.

For every generated image x each teacher computes the gradient of its score with respect to x, keeps the k entries that
are largest in size and of these the sign: a vote in {-1, 0, 1}^D of norm at most sqrt(k). Votes are summed, Gaussian
noise is added, and an entry of the sum that stays below beta * K becomes zero; the others pull the pixel up or down.

Privacy: a record lies in one shard, so it changes one teacher's vote, by at most 2 sqrt(k); one Gaussian event for each
image, without sampling. Cutting and all that follows is post-processing. Data-independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.configs import Count, MethodConfig, Share
from understudy.data.domain import Domain
from understudy.methods.teachers.ensemble import (
    RehearsingConfig,
    TeacherConfig,
    TeacherMethod,
    TeacherPrivacy,
    shared_presets,
)
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.engines.critics.panel import FakePool
    from understudy.engines.learner import SlopeLearner
    from understudy.methods.teachers.teaching import Lesson, Teachers
    from understudy.runs.loop import Stateful
    from understudy.runs.run import Run


_PURPOSE = "votes of gradient signs"


class DataLensPrivacy(TeacherPrivacy):
    """What changes epsilon; ``top`` does so through the sensitivity, at a fixed deviation of the noise."""

    top: Count | None = None  # k, entries that a teacher votes on; a quarter of them where it is not given


class DataLensMethodConfig(RehearsingConfig):
    """The game between the generator and its teachers, and how votes become gradients."""

    threshold: Share = 0.0  # beta; 0: nothing is cut and the noisy vote is followed
    stochastic: bool = False  # draw signs with the probability that the gradient gives them


class DataLensConfig(TeacherConfig):
    """The config of ``datalens``."""

    privacy: DataLensPrivacy = DataLensPrivacy()
    method: DataLensMethodConfig = DataLensMethodConfig()


# The authors' settings for Fashion-MNIST; the noise is calibrated to the budget.
_PUBLISHED: Mapping[str, Any] = {
    "privacy": {"teachers": 4000, "top": 200},
    "method": {"threshold": 0.7, "stochastic": True, "queries_per_step": 30},
}


class DataLens(TeacherMethod):
    """Teachers vote on the signs of their largest gradient entries."""

    name: ClassVar[str] = "datalens"
    summary: ClassVar[str] = "teachers on disjoint shards vote with the signs of their largest gradient entries"
    paper: ClassVar[str] = "Wang, Wu, Long, Rimanic, Zhang, Li: DataLens (CCS 2021)"
    config_type: ClassVar[type[MethodConfig]] = DataLensConfig
    presets: ClassVar = shared_presets(_PUBLISHED, 32_000)

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """As for all methods with teachers, with the number of entries decided from the image size."""
        assert isinstance(config, DataLensConfig)
        top = min(config.privacy.top or max(1, domain.values // 4), domain.values)
        privacy = config.privacy.model_copy(update={"top": top})
        return super().plan(config.model_copy(update={"privacy": privacy}), domain, budget)

    def vote_events(self, config: TeacherConfig, noise_multiplier: float) -> tuple[Event, ...]:
        """One Gaussian for each query."""
        queries = config.privacy.queries or 1
        return (Event(noise_multiplier=noise_multiplier, sensitivity="2C", count=queries, purpose=_PURPOSE),)

    def lesson(self, run: Run) -> Lesson:
        """Ask for signs, add noise, cut, follow."""
        return SignLesson(run)


class SignLesson:
    """One step of DataLens."""

    def __init__(self, run: Run) -> None:
        from understudy.methods.teachers.teaching import Rehearsal, StallWatch
        from understudy.privacy.mechanisms import SignVotes

        self.config = run.plan.config_as(DataLensConfig)
        self.top = self.config.privacy.top or 1
        self.votes = SignVotes(run.ledger, run.randomness, top=self.top, event=run.plan.events[0])
        self._random = run.randomness.generator(run.device)
        self._watch, self._rehearsal = StallWatch(), Rehearsal(self.config.method.memory)
        self._kept: list[Tensor] = []

    def parts(self) -> dict[str, Stateful]:
        """Nothing but the generator."""
        return {}

    def remaining(self) -> int:
        """Queries that may still be asked."""
        return self.votes.account.remaining

    def step(self, learner: SlopeLearner, teachers: Teachers, block: int) -> None:
        """Ask all teachers about B images and follow the noisy vote."""
        drawn = learner.imagine(self.config.method.queries_per_step)
        tally_dp = self.votes.release(teachers.count(self, drawn.pool), block=block).value_dp
        self._rehearsal.learn(learner, drawn, self._followed(tally_dp / teachers.subsets).float())

    def check(self) -> dict[str, float]:
        """The share of entries that were kept."""
        import torch

        self.votes.check_finite()
        kept = float(torch.stack(self._kept).mean())
        self._kept.clear()
        self._watch.look(
            kept == 0,
            f"no entry of the noisy vote reached {self.config.method.threshold:g} of the teachers; lower "
            "method.threshold, use fewer privacy.queries or raise method.teachers.warm_iterations",
        )
        return {"kept": kept}

    def tally(self, teachers: Teachers, pool: FakePool, *public: Tensor) -> Tensor:
        """The exact sum (images, values) of the votes of a process's own teachers.

        Privacy: a record changes one teacher's gradients and so one vote for each image: 2 sqrt(k) an image.
        """
        import torch

        tally = torch.zeros(pool.images.flatten(1).shape, dtype=torch.int64, device=pool.images.device)
        for slopes_private in teachers.slopes(pool):
            coins = None
            if self.config.method.stochastic:
                coins = torch.rand(slopes_private.shape, generator=self._random, device=tally.device)
            self.votes.count(tally, slopes_private, coins)
        return tally

    def _followed(self, share_dp: Tensor) -> Tensor:
        """Cut the noisy shares (images, values), and scale them so that a unanimous vote has length one."""
        import torch

        threshold, scale = self.config.method.threshold, self.top**-0.5
        if threshold == 0:
            self._kept.append(torch.ones((), device=share_dp.device))
            return share_dp * scale
        kept = share_dp.abs() >= threshold
        self._kept.append(kept.double().mean())
        return torch.where(kept, share_dp.sign(), 0.0) * scale
