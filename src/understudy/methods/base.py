"""The method protocol: a method plans from public facts alone, then trains a generator inside a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from understudy.configs import Count, MethodConfig, Positive, PrivacyConfig
from understudy.data.domain import Domain, refuse_people
from understudy.data.sampling import check_sum, sampling_rate
from understudy.engines.teacher.config import IMAGES_PER_PERSON, teacher_costs, with_teacher
from understudy.errors import InputError
from understudy.methods.config import ConfigType, build_config, overlay
from understudy.privacy import accounting
from understudy.privacy.budget import Budget, NoBudget
from understudy.privacy.certificate import Guarantee
from understudy.privacy.claims.statements import DataDependentClaim
from understudy.privacy.events import Event, PoissonSampling, Sensitivity
from understudy.privacy.plan import Costs, Plan
from understudy.privacy.viewers import Viewer

if TYPE_CHECKING:
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.models.generator import Generator, GeneratorConfig
    from understudy.runs.folder import RunFolder
    from understudy.runs.run import Run


_IN_ONE_PROCESS = (
    "processes: {} trains in one process; leave --processes out and start it once, or choose a method that several "
    "can share (docs/many-machines.md)"
)


class SampledPrivacy(PrivacyConfig):
    """What changes epsilon of steps on Poisson batches; ``None`` is decided from the declared domain."""

    batch: Count | None = None  # B: expected units a step
    steps: Count | None = None  # T
    clip: Positive = 1.0  # C
    images_per_person: Count | None = None  # where people are declared: so many of each, at most, in a step

    def images_in_step(self, domain: Domain) -> int:
        """How many images a step is expected to look at, at most: what its time and memory follow."""
        return (self.batch or 1) * (1 if domain.unit == "record" else self.images_per_person or IMAGES_PER_PERSON)

    def event(self, domain: Domain, noise_multiplier: float, purpose: str, sensitivity: Sensitivity = "C") -> Event:
        """All steps, as they are accounted: the rate is that of the declared number of records."""
        check_sum(self.batch or 1)
        return Event(
            noise_multiplier=noise_multiplier,
            sensitivity=sensitivity,
            sampling=PoissonSampling(rate=sampling_rate(self.batch or 1, domain.nominal_units)),
            count=self.steps or 1,
            purpose=purpose,
        )


class Method(ABC):
    """One paper's way to a private generator. Adding one: see docs/adding-a-method.md."""

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    config_type: ClassVar[type[MethodConfig]]
    private: ClassVar[bool] = (
        True  # False: a reference without any guarantee; its releases are stamped and never verify
    )
    protects_people: ClassVar[bool] = False  # True: where people are declared, a person with all images is the unit
    shared_by_processes: ClassVar[bool] = False  # True: several processes may share its private steps (``assist``)
    federated: ClassVar[bool] = False  # True: it needs data with clients, and can be deployed with real ones
    not_covered: ClassVar[tuple[str, ...]] = ()  # what its guarantees do not cover, beside what holds for all methods
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})  # named configs, for ``--preset``

    @abstractmethod
    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Decide noise and steps from public facts; raises BudgetError when the budget does not allow the method."""

    @abstractmethod
    def generator_config(self, config: MethodConfig, domain: Domain) -> GeneratorConfig:
        """The generator that a decided config means, but for its law of labels: what ``train`` releases.

        ``verify`` compares it with what a release holds, so that nothing rides along that nobody planned.
        """

    @abstractmethod
    def train(self, run: Run) -> Generator:
        """Train inside the run: all private reads through mechanisms on the run's ledger; returns the generator."""

    def assist(self, run: Run, told: Mapping[str, Any]) -> Assistance:
        """In a process that follows: the private work that the leader begins with, to help with; from what it told.

        Privacy: as the steps of ``train``, of which each process sums the units that it owns.
        """
        raise InputError(_IN_ONE_PROCESS.format(self.name))

    def check_processes(self, config: MethodConfig, processes: int) -> None:
        """Refuse to share what one process alone would do: the others would wait, and the user would not know."""
        if processes == 1:
            return
        if not self.shared_by_processes:
            raise InputError(_IN_ONE_PROCESS.format(self.name))

    def memory_of_device(self, plan: Plan, processes: int) -> int:
        """What the plan needs on a device of one of several processes; less than in all where these divide it."""
        return plan.memory_bytes

    def claims(self, config: MethodConfig, events: Sequence[Event], budget: Budget) -> list[Guarantee]:
        """What the events of a run guarantee, the headline first; a method with several viewers says so here."""
        epsilon = accounting.certified_epsilon(events, budget.delta)
        parts = {"accountant": budget.delta}
        return [Guarantee(epsilon=epsilon, delta=budget.delta, unit=events[0].unit, delta_parts=parts)]

    def viewers(self, config: MethodConfig, domain: Domain) -> tuple[Viewer, ...]:
        """Against whom its certificates state a guarantee, the headline first; ``verify`` asks for every one."""
        return (Viewer(),)

    def data_dependent_claims(
        self, config: MethodConfig, events: Sequence[Event], budget: Budget, files: RunFolder
    ) -> Sequence[DataDependentClaim]:
        """Claims of another kind, from what the run kept in its private folder; never instead of ``claims``."""
        return []

    def publishes_data_dependent_claims(self, config: MethodConfig) -> bool:
        """Whether the owner asked for them in the certificate; they stay in the private folder otherwise."""
        return False

    def all_events(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """The events that a release rests on: those of its run, and of what the run began with."""
        return tuple(events)

    def certificate_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What a certificate says: what its run knows, and what must be known of what the run began with."""
        return dict(fields)

    def released_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What the config of a release says of how it was made; where it was made is nobody's business."""
        return {key: value for key, value in config.items() if key != "runtime"}


def finish_plan(
    method: Method,
    config: MethodConfig,
    domain: Domain,
    budget: Budget,
    events: Callable[[float], tuple[Event, ...]],
    costs: Costs,
) -> Plan:
    """The tail of every private plan: the noise that was given, or the least that the budget allows, and its price.

    ``events`` are those of a method at a noise multiplier; a larger one makes none of them dearer. Where the config
    gives a share to a teacher, its event comes last.
    """
    if not method.protects_people:
        refuse_people(domain, method.name, "clients" if method.federated else "single records")
    config, planned = with_least_noise(_with_people(config, domain), domain, budget, events)
    return Plan(
        method=method.name,
        config=config,
        domain=domain,
        budget=budget,
        events=planned,
        epsilon=accounting.certified_epsilon(planned, budget.delta),
        **asdict(teacher_costs(config, domain, costs)),
    )


def with_least_noise(
    config: ConfigType, domain: Domain, budget: Budget, events: Callable[[float], tuple[Event, ...]]
) -> tuple[ConfigType, tuple[Event, ...]]:
    """The config with its noise decided, its teacher's too, and all events of the run; what is decided stays."""
    config, teacher = with_teacher(config, domain, budget)

    def together(noise_multiplier: float) -> tuple[Event, ...]:
        return tuple(of_people(event, domain) for event in (*events(noise_multiplier), *teacher))

    noise_multiplier = config.privacy.noise_multiplier or accounting.calibrate(together, budget)
    return config.with_noise(noise_multiplier), together(noise_multiplier)


def of_people(event: Event, domain: Domain) -> Event:
    """The event of a central method, whose unit is a person where people are declared."""
    return event if domain.nominal_people is None else event.model_copy(update={"unit": domain.unit})


def _with_people(config: ConfigType, domain: Domain) -> ConfigType:
    """The config with a number of images of a person in a step, where there are people and steps."""
    if not isinstance(config.privacy, SampledPrivacy):
        return config
    images = config.privacy.images_per_person
    if domain.nominal_people is None and images is not None:
        raise InputError(
            f"config: privacy.images_per_person={images}, but no people are declared; leave it out, or pass --declare "
            "person=... and nominal_people=N"
        )
    if domain.nominal_people is None:
        return config
    privacy = config.privacy.model_copy(update={"images_per_person": images or IMAGES_PER_PERSON})
    return config.model_copy(update={"privacy": privacy})


def configure(method: Method, values: Mapping[str, Any], preset: str | None = None) -> MethodConfig:
    """The config of a method: its defaults, a named preset over them, and the given values over both."""
    if preset is not None and preset not in method.presets:
        known = f"choose one of {', '.join(sorted(method.presets))}" if method.presets else "it has none"
        raise InputError(f"preset: {preset!r} is unknown for {method.name}; {known}")
    below = {} if preset is None else method.presets[preset]
    return build_config(method.config_type, overlay(below, values))


def check_budget(method: Method, budget: Budget | None) -> Budget:
    """The budget to plan with: a private method needs one, and a method without privacy cannot keep any."""
    if method.private and (budget is None or isinstance(budget, NoBudget)):
        raise InputError(
            "budget: --epsilon is needed to start a run; pass for example --epsilon 10 (and --delta, if not the usual)"
        )
    if not method.private and not (budget is None or isinstance(budget, NoBudget)):
        raise InputError(
            f"budget: {method.name} is not private, so it keeps no budget; leave --epsilon and --delta out, or choose "
            "a private method"
        )
    return NoBudget() if budget is None else budget
