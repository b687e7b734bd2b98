"""The annotator: a classifier that is trained privately names the images of a generator without labels.

It is a method with a base: a release without labels, with events of its own. The annotator learns from labelled records
of the same people. Whoever sees the annotated release sees the outcome of both, so its guarantee is that of all events
together. It needs that base, so it is not among the registered methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from understudy.configs import Config, MethodConfig, Size, exactly
from understudy.data.domain import Domain
from understudy.data.sampling import sampling_rate
from understudy.engines.teacher.config import Calibrate, PrivateTeacherConfig, TaughtPrivacy
from understudy.errors import BudgetError, InputError
from understudy.methods.base import Method, SampledPrivacy, finish_plan, of_people
from understudy.methods.config import build_config, left_open, refuse_runtime
from understudy.methods.registry import ANNOTATED, get_method, method_names
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Certificate
from understudy.privacy.claims import statements
from understudy.privacy.events import Event
from understudy.privacy.meaning import plural
from understudy.privacy.plan import RECORDS_ONLY, Costs, Plan
from understudy.runs.loop import Resumable
from understudy.runs.run import Run

if TYPE_CHECKING:
    import torch
    from torch import nn

    from understudy.engines.dpsgd.gradients import Loss
    from understudy.engines.dpsgd.sharing import Assistance
    from understudy.engines.dpsgd.step import Inputs, PrivateStep
    from understudy.engines.records import Examples
    from understudy.models.annotator import AnnotatedGenerator
    from understudy.models.generator import AnnotatedGeneratorConfig, Generator, GeneratorConfig

PURPOSE = "the annotator's gradients"
_COUNTED = 10_000  # images drawn for the law of labels
_ALIKE = {  # by whom the generator protects and whom the annotator would: the way out
    ("record", "person"): "leave --declare person=... out, or train a generator that protects people",
    ("person", "record"): "say whose images these are with --declare person=... and nominal_people=N",
}


class AnnotatorPrivacy(SampledPrivacy):
    """What changes epsilon; ``noise_multiplier`` is calibrated to what the generator leaves of the budget."""

    clip: Annotated[float, Field(gt=0)] = 1.0


class AnnotatorMethodConfig(Config):
    """The classifier: a ``teacher``, which new runs take, or a small ``network`` on pixels of this width and rate.

    Configs that name no kind are from a time when there was the network alone. Only a teacher's kind changes epsilon.
    """

    kind: Literal["network", "teacher"] = "network"
    width: Size = 16
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    teacher: PrivateTeacherConfig = PrivateTeacherConfig()


class AnnotatorConfig(MethodConfig):
    """The config of ``understudy annotate``."""

    privacy: AnnotatorPrivacy = AnnotatorPrivacy()
    method: AnnotatorMethodConfig = AnnotatorMethodConfig()


NEW_ANNOTATOR = {"method": {"kind": "teacher"}}  # what a run starts with, below what its owner sets


@dataclass(frozen=True)
class Base:
    """The release that is annotated: its generator, its guarantee, and how it was made."""

    method: str
    generator: Generator
    certificate: Certificate
    domain: Domain
    config: dict[str, Any]


class Annotation(Method):
    """Labels for what a generator draws, within one budget for both."""

    name: ClassVar[str] = ANNOTATED
    summary: ClassVar[str] = "names the images of a generator without labels by a classifier that is trained privately"
    paper: ClassVar[str] = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016"
    config_type: ClassVar[type[MethodConfig]] = AnnotatorConfig
    protects_people: ClassVar[bool] = True
    shared_by_processes: ClassVar[bool] = True

    def __init__(self, base: Base | None) -> None:
        self._base = base

    @property
    def base(self) -> Base:
        """The release that is annotated; a process that helps with the private steps knows of none."""
        assert self._base is not None, "only the leader plans, trains and certifies"
        return self._base

    def plan(self, config: MethodConfig, domain: Domain, budget: Budget) -> Plan:
        """Decide batch, steps and noise so that the generator's events and the annotator's together keep the budget.

        Privacy: public facts only (the declared domain and the certificate of the generator).
        """
        assert isinstance(config, AnnotatorConfig)
        before = self.base.certificate.events
        alone = accounting.certified_epsilon(before, budget.delta)
        if alone >= budget.epsilon:
            raise BudgetError(
                f"budget: the generator alone costs epsilon {alone:g} at delta {budget.delta:g}, so nothing of "
                f"{budget.epsilon:g} is left for an annotator; pass a larger --epsilon, which is that of both together"
            )
        decided = _decided(
            config, domain, lambda event: accounting.calibrate(lambda noise: (*before, event(noise)), budget)
        )

        def events(noise_multiplier: float) -> tuple[Event, ...]:
            return (*before, _event(decided, domain, noise_multiplier))

        plan = finish_plan(self, decided, domain, budget, events, _costs(decided, domain))
        plan = replace(plan, config=_with_teacher_settings(plan.config_as(AnnotatorConfig), domain))
        if plan.epsilon > budget.epsilon:
            raise BudgetError(
                f"budget: generator and annotator together cost epsilon {plan.epsilon:g} at delta {budget.delta:g}, "
                f"but only {budget.epsilon:g} is allowed; raise privacy.noise_multiplier or leave it out to have it "
                "calibrated"
            )
        remarks = [f"the generator alone costs epsilon {alone:.4g}; the annotator gets the rest of the budget"]
        if domain.nominal_clients is not None:
            remarks.append(RECORDS_ONLY)
        return replace(plan, events=plan.events[-1:], remarks=tuple(remarks))

    def generator_config(self, config: MethodConfig, domain: Domain) -> AnnotatedGeneratorConfig:
        """The generator that is annotated, and the classifier beside it."""
        assert isinstance(config, AnnotatorConfig)
        return _annotated(config, self.base.generator.config, domain)

    def train(self, run: Run) -> Generator:
        """The classifier; where a crash lost reserved steps there are fewer of them, never more.

        Privacy: all private reads are those of ``train_teacher`` or ``PrivateStep``; what is reported are steps and
        spending.
        """
        config = run.plan.config_as(AnnotatorConfig)
        if config.method.kind == "teacher":
            return _with_label_weights(self._taught(run, config))
        return _with_label_weights(self._network(run, config))

    def _taught(self, run: Run, config: AnnotatorConfig) -> AnnotatedGenerator:
        from understudy.engines.teacher.training import model_config, train_teacher
        from understudy.models.annotator import named_by

        settings = config.method.teacher
        teacher = train_teacher(run, settings, run.plan.events[0], config.privacy.clip)
        run.report(run.plan.steps, annotator_steps=run.plan.steps)
        return named_by(teacher, self.base.generator, model_config(settings), run.plan.domain.classes)

    def _network(self, run: Run, config: AnnotatorConfig) -> AnnotatedGenerator:
        generator = self._generator(config, run.plan.domain).to(run.device)
        stepping = _annotator_step(run, generator.annotator)
        for step in Resumable(run, generator, {"annotator_optimizer": stepping.optimizer}).steps(run.plan.steps):
            if stepping.remaining:
                stepping.take()
            if run.report_due(step):
                stepping.check_finite()
                run.report(step, annotator_steps=step)
        run.lost_steps += run.plan.steps - stepping.optimizer.steps
        return generator.cpu()

    def assist(self, run: Run, told: Mapping[str, Any]) -> Assistance:
        """The steps of a network on pixels; a teacher's are those of any teacher."""
        from understudy.models.annotator import Annotator

        domain, width = run.plan.domain, run.plan.config_as(AnnotatorConfig).method.width
        return _annotator_step(run, Annotator(domain.shape, domain.classes or 1, width).to(run.device))

    def _generator(self, config: AnnotatorConfig, domain: Domain) -> AnnotatedGenerator:
        from understudy.models.annotator import AnnotatedGenerator

        generator = AnnotatedGenerator(self.generator_config(config, domain))
        generator.base.load_state_dict(self.base.generator.state_dict())
        generator.base.requires_grad_(False)
        return generator

    def all_events(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """The generator's events and the annotator's."""
        return (*self.base.certificate.events, *events)

    def certificate_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What the certificates of both parts say; data-dependent figures of the generator are not taken over."""
        from understudy.privacy.randomness.streams import OS_ENTROPY

        of_base = self.base.certificate
        not_covered = dict.fromkeys((*fields["not_covered"], *of_base.not_covered))
        return {
            **fields,
            "assumed_public": list(dict.fromkeys((*fields["assumed_public"], *of_base.assumed_public))),
            "randomness": fields["randomness"] if of_base.randomness == OS_ENTROPY else of_base.randomness,
            "runs_on_this_data": fields["runs_on_this_data"] + of_base.runs_on_this_data,
            "plan_raised": fields["plan_raised"] or of_base.plan_raised,
            "remarks": [*of_base.remarks, *fields["remarks"]],
            "not_covered": [item for item in not_covered if item != statements.NOT_COVERED],
        }

    def released_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """How both parts were made."""
        base = self.base
        return {
            "generator": {"method": base.method, "domain": base.domain.model_dump(mode="json"), "config": base.config},
            "annotator": super().released_config(config),
        }


def check_base(base: Base, domain: Domain) -> None:
    """Refuse a release that an annotator adds nothing to, or whose guarantee cannot be composed with its own."""
    certificate = base.certificate
    if certificate.not_private is not None:
        raise InputError(f"annotate: the release is {certificate.not_private}; train a private generator first")
    if base.domain.labelled:
        raise InputError(
            f"annotate: the generator draws {base.domain.classes} classes by itself; annotate one that was trained "
            "without labels (--declare unlabelled=true)"
        )
    if domain.classes is None:
        raise InputError("labels: an annotator learns from labelled records; pass --data with labels and --classes")
    if domain.shape != base.domain.shape:
        shapes = ["x".join(str(side) for side in shape) for shape in (domain.shape, base.domain.shape)]
        raise InputError(
            f"shape: the data are {shapes[0]} and the generator draws {shapes[1]}; pass --shape {shapes[1]}"
        )
    if any(event.unit != domain.unit for event in certificate.events):
        unit = next(event.unit for event in certificate.events if event.unit != domain.unit)
        raise InputError(
            f"annotate: the generator protects {plural(unit)} and the annotator {plural(domain.unit)}, which do not "
            f"compose; {_ALIKE.get((unit, domain.unit), 'annotate a release of a central method')}"
        )
    if set(certificate.headline.delta_parts or {}) - {"accountant"}:
        raise InputError("annotate: the generator's delta pays for more than its events; such a claim is not composed")


def planned(config: Mapping[str, Any], domain: Domain, budget: Budget) -> tuple[list[Event], GeneratorConfig]:
    """What the config of an annotated release plans: the events of generator and annotator, and both together.

    A generator by a method that is not private, or not known here, is refused: nothing says what it cost.
    """
    made, annotator = _parts(config)
    if annotator.privacy.noise_multiplier is None:
        raise InputError("config: the noise of the annotator is not stated")
    if made.domain.labelled:
        raise InputError("config: the generator has labels of its own, so there was nothing to annotate")
    if made.method not in method_names():
        raise InputError(f"config: the generator was made by {made.method!r}, which is not known here")
    method = get_method(made.method)
    if not method.private:
        raise InputError(f"config: the generator was made by {made.method!r}, which is not private")
    settings = build_config(method.config_type, made.config, exact=True)
    if settings.privacy.noise_multiplier is None:
        raise InputError("config: the noise of the generator is not stated, so it plans any")
    plan, decided = method.plan(settings, made.domain, budget), _decided(annotator, domain, _nothing_to_calibrate)
    if noise := left_open(settings.model_dump(), plan.config.model_dump()):
        raise InputError(f"config: {noise} of the generator is not stated, so it plans any")
    events = [of_people(_event(decided, domain, annotator.privacy.noise_multiplier), domain), *plan.events]
    return events, _annotated(annotator, method.generator_config(plan.config, made.domain), domain)


def generator_domain(config: Mapping[str, Any]) -> Domain:
    """What the config of an annotated release declares of the generator's data."""
    return _parts(config)[0].domain


class _Made(BaseModel):
    """How the generator of an annotated release was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: str
    domain: Domain
    config: dict[str, Any]


def _parts(config: Mapping[str, Any]) -> tuple[_Made, AnnotatorConfig]:
    if further := sorted(config.keys() - {"generator", "annotator"}):
        raise InputError(f"config: it says {further[0]!r}, which nobody asked how generator and annotator were made")
    try:
        made = exactly(_Made, config["generator"])
        for part in (made.config, config["annotator"]):
            refuse_runtime(part)
        return made, build_config(AnnotatorConfig, config["annotator"], exact=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"config: it does not say how generator and annotator were made ({error})") from None


def _annotated(config: AnnotatorConfig, base: GeneratorConfig, domain: Domain) -> AnnotatedGeneratorConfig:
    """A generator and the classifier that a decided config puts beside it."""
    from understudy.models.generator import AnnotatedGeneratorConfig, TeacherModelConfig

    if config.method.kind == "teacher":
        teacher = TeacherModelConfig.model_validate(config.method.teacher.released())
        return AnnotatedGeneratorConfig.taught(base, teacher, domain.classes)
    return AnnotatedGeneratorConfig(shape=domain.shape, classes=domain.classes, width=config.method.width, base=base)


def _decided(config: AnnotatorConfig, domain: Domain, calibrate: Calibrate) -> AnnotatorConfig:
    """Batch and steps by the declared domain and what the generator leaves, where they were left open."""
    if config.method.kind == "teacher":
        settings = config.method.teacher.with_steps(_as_taught(config.privacy), domain, calibrate)
        decided = {"steps": settings.teacher_steps, "batch": settings.teacher_batch}
        return config.model_copy(update={"privacy": config.privacy.model_copy(update=decided)})
    records, small = domain.nominal_units, domain.small
    batch = config.privacy.batch or max(1, min(600, records // 10))
    sampling_rate(batch, records)  # refuses a batch above the declared number of records
    steps = config.privacy.steps or (400 if small else 1000)
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"batch": batch, "steps": steps})})


def _nothing_to_calibrate(event: Callable[[float], Event]) -> float:
    raise InputError("config: the steps of the annotator are not stated")


def _event(config: AnnotatorConfig, domain: Domain, noise_multiplier: float) -> Event:
    """The annotator's steps, as they are accounted."""
    if config.method.kind == "teacher":
        return config.method.teacher.event(_as_taught(config.privacy), domain, noise_multiplier)
    return config.privacy.event(domain, noise_multiplier, PURPOSE)


def _as_taught(privacy: AnnotatorPrivacy) -> TaughtPrivacy:
    """The annotator's settings in the words of a teacher."""
    return TaughtPrivacy(
        teacher_steps=privacy.steps, teacher_batch=privacy.batch, teacher_noise_multiplier=privacy.noise_multiplier
    )


def _with_teacher_settings(config: AnnotatorConfig, domain: Domain) -> AnnotatorConfig:
    """What the noise decides of a teacher."""
    if config.method.kind != "teacher":
        return config
    teacher = config.method.teacher.decided(_as_taught(config.privacy), domain)
    return config.model_copy(update={"method": config.method.model_copy(update={"teacher": teacher})})


def _costs(config: AnnotatorConfig, domain: Domain) -> Costs:
    if config.method.kind == "teacher":
        return config.method.teacher.costs(_as_taught(config.privacy), domain)
    steps, batch = config.privacy.steps or 1, config.privacy.images_in_step(domain)
    return Costs(
        steps=steps,
        memory_bytes=domain.nominal_records * domain.values + 2**29,
        seconds=steps * (0.01 + 2e-4 * batch * domain.values / 784),
        seconds_on_gpu=steps * 0.004,
    )


def _annotator_step(run: Run, network: nn.Module) -> PrivateStep:
    """The step of a network on pixels. Privacy: those of ``PrivateStep``."""
    from understudy.engines.dpsgd.sharing import Sharing
    from understudy.engines.dpsgd.step import PrivateStep, StepOptions

    config = run.plan.config_as(AnnotatorConfig)
    privacy, images = config.privacy, config.privacy.images_per_person or 1
    options = StepOptions(privacy.batch or 1, privacy.clip, config.method.learning_rate, images_per_person=images)
    return PrivateStep(run, network, _naming, options, run.plan.events[0], sharing=Sharing())


def _naming(records_private: Examples, random: torch.Generator) -> tuple[Inputs, Loss]:
    """The classifier sees images alone; its loss is the cross-entropy of each record's label."""
    from torch.nn.functional import cross_entropy

    labels = records_private.labels
    assert labels is not None, "checked by the plan"
    return (records_private.images,), lambda logits: cross_entropy(logits, labels, reduction="none")


def _with_label_weights(generator: AnnotatedGenerator) -> AnnotatedGenerator:
    """Say how common each class is among what the generator draws, as the annotator sees it: post-processing."""
    from understudy.privacy.randomness.streams import Randomness

    drawn = generator.draw(_COUNTED, Randomness().generator())
    counts = generator.annotate(drawn).argmax(dim=1).bincount(minlength=generator.config.classes or 1)
    weights = tuple(round(float(share), 6) for share in (counts + 1) / (counts + 1).sum())
    generator.config = generator.config.model_copy(update={"label_weights": weights})
    return generator
