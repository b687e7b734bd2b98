"""G-PATE: teachers vote on bins of their projected gradients; only confident votes move the generator.

Y. Long, B. Wang, Z. Yang, B. Kailkhura, A. Zhang, C. Gunter, B. Li, "G-PATE: Scalable Differentially Private Data
Generator via Private Aggregation of Teacher Discriminators", NeurIPS 2021. Symbols: K teachers, d projections.

For every generated image each teacher computes the gradient of its score with respect to the image, scales it to length
one, and projects it onto d random, public directions, drawn afresh. It puts each coordinate into one of a few bins. The
votes of all teachers make one histogram for each coordinate, which Confident-GNMax reads: where the largest count plus
noise reaches a share of the teachers, the bin with the largest noisy count wins, and its middle is the coordinate of
the answer; elsewhere the answer is zero. The answer is projected back to pixels.

Privacy: a record lies in one shard, so it changes one teacher's votes: one bin loses a vote and another wins one, in
each of d histograms. The checks (largest counts: sensitivity sqrt(d)) and the answers (all counts: sensitivity
sqrt(2d)) are two Gaussian events for each image, without sampling. Both are charged whether or not a check passes: the
noisy histograms of coordinates that fail are made and thrown away. Data-independent.

The smaller figure that papers on PATE report where teachers agree is kept in the private folder of the run
(``privacy/claims/votes.py``): it depends on the votes, so it is no guarantee, and no certificate holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from understudy.configs import Count, MethodConfig, Positive, Share
from understudy.methods.teachers.ensemble import (
    RehearsingConfig,
    TeacherConfig,
    TeacherMethod,
    TeacherPrivacy,
    shared_presets,
)
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    from understudy.engines.critics.panel import FakePool
    from understudy.engines.learner import SlopeLearner
    from understudy.methods.teachers.teaching import Lesson, Teachers
    from understudy.privacy.claims.statements import VoteClaim
    from understudy.runs.loop import Stateful
    from understudy.runs.run import Run


_ANSWERS, _CHECKS = "votes on projected gradients", "checks for consensus"
_SLOPES = "confident answers, projected back"


class GPatePrivacy(TeacherPrivacy):
    """What changes epsilon; ``noise_multiplier`` is that of the answers."""

    projections: Count = 10  # d
    check_noise: Positive = 2.0  # noise multiplier of the checks over that of the answers


class GPateMethodConfig(RehearsingConfig):
    """The game between the generator and its teachers, and how votes become gradients."""

    bins: Annotated[int, Field(ge=2)] = 3
    limit: Positive = 1.5  # of the bins, in deviations of a coordinate of a random direction
    consensus: Share = 0.4  # share of teachers that a winning bin needs


class GPateConfig(TeacherConfig):
    """The config of ``g-pate``."""

    privacy: GPatePrivacy = GPatePrivacy()
    method: GPateMethodConfig = GPateMethodConfig()


# What the comparison of the GS-WGAN paper ran: 2000 teachers with batches of 30, deviations 600 and 100, threshold 0.5,
# 10 projections. Its number of queries is the largest that keeps within (10, 1e-5) without looking at the votes.
_PUBLISHED: Mapping[str, Any] = {
    "privacy": {
        "teachers": 2000,
        "projections": 10,
        "noise_multiplier": 100 / 20**0.5,
        "check_noise": 6 * 2**0.5,
        "queries": 1800,
    },
    "method": {"consensus": 0.5, "queries_per_step": 30, "teachers": {"batch": 30}},
}


class GPate(TeacherMethod):
    """Confident-GNMax on the bins of projected gradients."""

    name: ClassVar[str] = "g-pate"
    summary: ClassVar[str] = "teachers on disjoint shards vote on bins of projected gradients; confident votes count"
    paper: ClassVar[str] = "Long, Wang, Yang, Kailkhura, Zhang, Gunter, Li: G-PATE (NeurIPS 2021)"
    config_type: ClassVar[type[MethodConfig]] = GPateConfig
    presets: ClassVar = shared_presets(_PUBLISHED, 32_000)

    def vote_events(self, config: TeacherConfig, noise_multiplier: float) -> tuple[Event, ...]:
        """An answer and a check for each query."""
        assert isinstance(config, GPateConfig)
        queries, check = config.privacy.queries or 1, noise_multiplier * config.privacy.check_noise
        return (
            Event(noise_multiplier=noise_multiplier, sensitivity="sqrt(2)C", count=queries, purpose=_ANSWERS),
            Event(noise_multiplier=check, sensitivity="C", count=queries, purpose=_CHECKS),
        )

    def data_dependent_claims(
        self, config: MethodConfig, events: Sequence[Event], budget: Budget, files: RunFolder
    ) -> list[VoteClaim]:
        """What the votes on record cost; planned queries that are not on record count at their worst case."""
        from understudy.privacy.claims.votes import VoteRecord

        answers = next(event for event in events if event.purpose == _ANSWERS)
        others = [event for event in events if event is not answers]
        return [VoteRecord(files.votes).claim(answers, others, budget.delta)]

    def lesson(self, run: Run) -> Lesson:
        """Project, ask for bins, check, answer, project back."""
        return BinLesson(run)


class BinLesson:
    """One step of G-PATE."""

    def __init__(self, run: Run) -> None:
        from understudy.methods.teachers.teaching import Rehearsal, StallWatch, VoteWatch
        from understudy.privacy.mechanisms import BinVotes, PeakVotes

        self.config, (answers, checks, *_) = run.plan.config_as(GPateConfig), run.plan.events
        self.values = run.plan.domain.values
        self.directions = min(self.config.privacy.projections, self.values)
        self.votes = BinVotes(
            run.ledger,
            run.randomness,
            coordinates=self.directions,
            bins=self.config.method.bins,
            limit=self.config.method.limit * self.values**-0.5,
            event=answers,
        )
        self.peaks = PeakVotes(run.ledger, run.randomness, coordinates=self.directions, event=checks)
        self._random, self._show = run.randomness.generator(run.device), run.ledger.show
        self.watch = VoteWatch(run, self.votes.reach * answers.noise_multiplier)
        self._stall, self._rehearsal = StallWatch(), Rehearsal(self.config.method.memory)
        self._passed: list[Tensor] = []

    def parts(self) -> dict[str, Stateful]:
        """What is on record of the votes."""
        return {"votes": self.watch}

    def remaining(self) -> int:
        """Queries that may still be asked: a crash may have lost more of the one kind than of the other."""
        return min(self.votes.account.remaining, self.peaks.account.remaining)

    def step(self, learner: SlopeLearner, teachers: Teachers, block: int) -> None:
        """Ask all teachers about B images and follow the confident answers."""
        import torch

        drawn = learner.imagine(self.config.method.queries_per_step)
        directions = self._draw_directions(len(drawn.pool.images))
        coordinates_dp = self._confident(teachers.count(self, drawn.pool, directions), teachers.subsets, block)
        slopes_dp = torch.einsum("ndp,np->nd", directions, coordinates_dp.float())
        self._show(_SLOPES, slopes_dp)
        self._rehearsal.learn(learner, drawn, slopes_dp * (self.values / self.directions) ** 0.5)

    def check(self) -> dict[str, float]:
        """The share of coordinates on which the teachers agreed."""
        import torch

        self.votes.check_finite()
        confident = float(torch.stack(self._passed).mean())
        self._passed.clear()
        self._stall.look(
            confident == 0,
            f"no vote reached the consensus of {self.config.method.consensus:g} of the teachers; lower "
            "method.consensus, use fewer privacy.queries or raise method.teachers.warm_iterations",
        )
        return {"confident": confident}

    def _draw_directions(self, images: int) -> Tensor:
        """For each image d orthonormal directions (images, values, d), drawn without looking at anything; public."""
        import torch

        shape = (images, self.values, self.directions)
        gaussian = torch.randn(shape, generator=self._random, device=self._random.device)
        return torch.linalg.qr(gaussian)[0]

    def tally(self, teachers: Teachers, pool: FakePool, *public: Tensor) -> Tensor:
        """Exact histograms (images, d, bins) of the votes of a process's own teachers, given the public directions.

        Privacy: a record changes one teacher's gradients, so in each of the d histograms one vote moves.
        """
        import torch

        shape = (len(pool.images), self.directions, self.config.method.bins)
        tally = torch.zeros(shape, dtype=torch.int64, device=pool.images.device)
        (directions,) = public
        for slopes_private in teachers.slopes(pool):
            lengths = slopes_private.norm(dim=2, keepdim=True)
            units = slopes_private / torch.where(lengths > 0, lengths, 1.0)
            self.votes.count(tally, torch.einsum("knd,ndp->knp", units, directions))
        return tally

    def _confident(self, tally: Tensor, teachers: int, block: int) -> Tensor:
        """Confident-GNMax: coordinates (images, d) from noisy histograms, zero where the check fails.

        Privacy: both mechanisms run on every histogram, whatever the checks say.
        """
        import torch

        peaks_dp = self.peaks.release(self.peaks.peaks(tally), block=block).value_dp
        counts_dp = self.votes.release(tally, block=block).value_dp
        passed = peaks_dp >= self.config.method.consensus * teachers
        self._passed.append(passed.double().mean())
        self.watch.hear(tally, passed)
        return torch.where(passed, self.votes.middles(tally.device)[counts_dp.argmax(dim=2)], 0.0)
