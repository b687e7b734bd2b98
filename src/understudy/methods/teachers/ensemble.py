"""What methods with voting teachers share: their config, their plan and the way into the training loop (no torch).

K teachers on disjoint shards, N queries (generated images), B of them a step. A method adds what its teachers vote on
and which events that costs. Everything is charged for the whole plan beforehand and whatever the votes are, so epsilon
does not depend on the data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from understudy.configs import Config, Count, MethodConfig, Positive, Share
from understudy.data.domain import Domain
from understudy.engines.config import CriticsConfig, LearnerConfig
from understudy.engines.embedding.config import EmbeddingConfig, with_embedding
from understudy.engines.teacher.config import TaughtConfig, TaughtPrivacy
from understudy.errors import InputError
from understudy.methods.base import Method, finish_plan
from understudy.methods.config import overlay
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event
from understudy.privacy.meaning import plural
from understudy.privacy.plan import Costs, Plan

if TYPE_CHECKING:
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.methods.teachers.teaching import Lesson
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.runs.run import Run


class TeachingConfig(Config):
    """The game between the generator and its teachers; nothing here changes epsilon."""

    queries_per_step: Count = 16  # B
    teachers: CriticsConfig = CriticsConfig(learning_rate=2e-3, batch=16, per_step=200, warm_iterations=80)
    generator: LearnerConfig = LearnerConfig(latent=4, learning_rate=2e-3, average_decay=0.95)
    embedding: EmbeddingConfig = EmbeddingConfig(steps=2000, batch=300)


class RehearsingConfig(TeachingConfig):
    """The same for methods whose teachers answer with gradients."""

    memory: Count = 48  # steps whose answers the generator learns from together


_MOST_TEACHERS = 2000
_FEW_TEACHERS = 500

# A noisy mean embedding to start from, as in gs-wgan: votes of few teachers hardly carry a start from random weights.
_EMBEDDING_START: Mapping[str, Any] = {
    "privacy": {"embedding_share": 0.4},
    "method": {"generator": {"learning_rate": 3e-4, "average_decay": 0.98}},
}
# Two thousand steps of the generator: minutes on a graphics card, days without one.
_GPU: Mapping[str, Any] = {
    "method": {
        "teachers": {"per_step": 100, "warm_iterations": 100},
        "generator": {"latent": 10, "learning_rate": 5e-4, "average_decay": 0.99},
    },
    "runtime": {"precision": "bf16"},
}


# After such a start the figures of docs/results.md were had with few votes; more of them need more noise each.
_GPU_EMBEDDING: Mapping[str, Any] = {
    "privacy": {"queries": 8000},
    "method": {"embedding": {"steps": 3000, "batch": 500}},
}


class TeacherPrivacy(TaughtPrivacy):
    """What changes epsilon; ``None`` is decided from the declared number of records."""

    teachers: Count | None = None  # K
    queries: Count | None = None  # N
    embedding_share: Share = 0.0  # of epsilon, for a noisy mean embedding to start from; 0: from random weights
    embedding_noise_multiplier: Positive | None = None  # decided by the share


class TeacherConfig(TaughtConfig):
    """The config of a method with teachers; each narrows ``privacy`` and ``method``."""

    privacy: TeacherPrivacy = TeacherPrivacy()
    method: TeachingConfig = TeachingConfig()


def shared_presets(published: Mapping[str, Any], queries_on_gpu: int) -> Mapping[str, Mapping[str, Any]]:
    """The presets of a method: what was published, the starts from an embedding, and long runs on a graphics card."""
    gpu = overlay(_GPU, {"privacy": {"queries": queries_on_gpu}})
    embedded = overlay(overlay(gpu, _EMBEDDING_START), _GPU_EMBEDDING)
    presets = {"published": published, "embedding-start": _EMBEDDING_START, "gpu": gpu, "gpu-embedding-start": embedded}
    return MappingProxyType(presets)


class TeacherMethod(Method):
    """A method whose generator learns from the noisy votes of teachers."""

    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True
    records_per_teacher: ClassVar[int] = 10  # at least, where the number of teachers is not given
    queries_per_teacher: ClassVar[int] = 32  # where the number of queries is not given
    asks_for: ClassVar[Literal["slopes", "scores"]] = "slopes"

    @abstractmethod
    def vote_events(self, config: TeacherConfig, noise_multiplier: float) -> tuple[Event, ...]:
        """The events of all votes: the first has ``noise_multiplier``; a larger one makes none of them dearer."""

    @abstractmethod
    def lesson(self, run: Run) -> Lesson:
        """What is done with the votes, inside a run."""

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Votes without any sampling, with the least noise that the budget allows."""
        assert isinstance(config, TeacherConfig)
        config, embedding = with_embedding(self._decided(config, domain), domain, budget)

        def events(multiplier: float) -> tuple[Event, ...]:
            return (*self.vote_events(config, multiplier), *embedding)

        costs = Costs(
            steps=(config.privacy.queries or 1) // config.method.queries_per_step,
            memory_bytes=config.method.teachers.memory_bytes(domain, config.privacy.teachers or 1),
            seconds=self._seconds(config, domain, speed=0.25),
            seconds_on_gpu=self._seconds(config, domain, speed=1500.0),
        )
        return replace(finish_plan(self, config, domain, budget, events, costs), remarks=_remarks(config))

    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that learns from votes."""
        assert isinstance(config, TeacherConfig)
        return config.method.generator.network(domain)

    def train(self, run: Run) -> Generator:
        """Teachers train on their shards and public images, vote on generated images, and the generator follows."""
        from understudy.methods.teachers.teaching import teach

        config = run.plan.config
        assert isinstance(config, TeacherConfig)
        return teach(run, self.lesson(run), config.method, config.privacy.teachers or 1)

    def assist(self, run: Run, told: Mapping[str, Any]) -> Assistance:
        """The teachers of this process, which train and vote when the leader says so."""
        from understudy.methods.teachers.teaching import help_teach

        config = run.plan.config
        assert isinstance(config, TeacherConfig)
        return help_teach(run, self.lesson(run), config.method, config.privacy.teachers or 1)

    def memory_of_device(self, plan: Plan, processes: int) -> int:
        """Teachers that vote are divided among the devices of all processes; what another teacher needs is not."""
        from understudy.devices import cards_of

        config = plan.config
        assert isinstance(config, TeacherConfig)
        count, devices = config.privacy.teachers or 1, cards_of(processes)
        return config.method.teachers.memory_of_device(plan.memory_bytes, plan.domain, count, devices)

    def check_processes(self, config: MethodConfig, processes: int) -> None:
        """Refuse processes that would have no teacher."""
        super().check_processes(config, processes)
        assert isinstance(config, TeacherConfig)
        config.method.teachers.check_processes(processes, config.privacy.teachers or 1, "privacy.teachers")

    def _decided(self, config: TeacherConfig, domain: Domain) -> TeacherConfig:
        """The config with everything filled in that was left to the declared domain."""
        method, rows = config.method, config.method.queries_per_step
        most = max(1, min(_MOST_TEACHERS, domain.nominal_units // self.records_per_teacher))
        teachers = config.privacy.teachers or most
        if teachers > domain.nominal_units:
            raise InputError(
                f"teachers: {teachers}, but only {domain.nominal_units} nominal {plural(domain.unit)} are declared; "
                f"pass privacy.teachers of at most {domain.nominal_units}"
            )
        steps = max(1, (config.privacy.queries or self.queries_per_teacher * teachers) // rows)
        decided = {
            "width": method.teachers.width or (8 if domain.small else 32),
            "per_step": min(method.teachers.per_step, teachers),
        }
        settings = {
            "teachers": method.teachers.model_copy(update=decided),
            "generator": method.generator.decided(64, from_embedding=config.privacy.embedding_share > 0),
        }
        privacy = config.privacy.model_copy(update={"teachers": teachers, "queries": steps * rows})
        return config.model_copy(update={"privacy": privacy, "method": method.model_copy(update=settings)})

    def _seconds(self, config: TeacherConfig, domain: Domain, *, speed: float) -> float:
        """A rough time: ``speed`` is that of critic steps of 32 images at 28x28 and width 64 a second, over two."""
        settings, teachers = config.method.teachers, config.privacy.teachers or 1
        relative = (domain.shape[1] * domain.shape[2] / 784) * ((settings.width or 64) / 64) ** 2
        queries = config.privacy.queries or 1
        steps = queries // config.method.queries_per_step
        training = (teachers * settings.warm_iterations + steps * settings.per_step) * settings.batch / 32
        votes = queries * teachers / 32 / (4 if self.asks_for == "slopes" else 8)
        return (training + votes) * relative / (2 * speed) + 10


def _remarks(config: TeacherConfig) -> tuple[str, ...]:
    teachers = config.privacy.teachers or 1
    if config.privacy.embedding_share or teachers >= _FEW_TEACHERS:
        return ()
    return (
        f"the votes of {teachers} teachers hardly carry a generator from random weights to good images; the preset "
        "embedding-start spends a part of epsilon on a better start",
    )
