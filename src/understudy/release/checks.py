"""Checks of a certificate that need more than its events: the plan of its config, viewers, audits, Bayesian claims.

Of a claim of kind ``bayesian-dp`` it can be checked that it fits the events, not that it is true: its gradients are
private, so nobody can recompute ``epsilon_mu`` from a release. It can be too small or too large for the events
beside it, and that is looked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from understudy.data.domain import Domain
from understudy.engines.teacher.config import TaughtConfig
from understudy.errors import BudgetError, InputError, UnderstudyError
from understudy.methods.config import build_config, left_open, refuse_runtime
from understudy.methods.registry import ANNOTATED, get_method, method_names
from understudy.privacy import accounting, filters
from understudy.privacy.audits import AuditRecord
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import NOT_COVERED, Certificate, ClientLimits, Guarantee
from understudy.privacy.claims import statements
from understudy.privacy.claims.statements import BayesianClaim, rounded
from understudy.privacy.events import EMBEDDINGS, Event
from understudy.privacy.meaning import event_in_words, plural
from understudy.privacy.viewers import Viewer, viewer_of

if TYPE_CHECKING:
    from understudy.methods.base import Method
    from understudy.models.generator import GeneratorConfig
    from understudy.privacy.plan import Plan
    from understudy.release.contents import ReleaseConfig

Value = TypeVar("Value")
MOST_EVENTS = 20  # each takes seconds; releases have three at most
_NOISE_LEFT_OPEN = "the config leaves the noise open, so it plans any"
_ANNOTATED_KIND = "annotated"  # of a generator with a classifier beside it (``models/generator.py``)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: its name, whether it holds, and what was found.

    What does not hold because it is ``missing`` contradicts nothing: it keeps a release from being *verified*, while
    any other failure refuses it.
    """

    name: str
    passed: bool
    detail: str
    missing: bool = False


class Missing(InputError):
    """Something that the word *verified* needs is not there, or nothing ties it to the release."""


def attempt(name: str, action: Callable[[], Value], detail: str = "in order") -> tuple[Value | None, Check]:
    """The value of an action and a check that it worked; hostile input may fail in any way, so all are caught."""
    try:
        return action(), Check(name, True, detail)
    except Missing as error:
        return None, Check(name, False, str(error), missing=True)
    except UnderstudyError as error:
        return None, Check(name, False, str(error))
    except Exception as error:
        return None, Check(name, False, f"it cannot be checked ({type(error).__name__}: {error})")


def outcome(name: str, action: Callable[[], str]) -> Check:
    """The check of an action that says what it found, or raises."""
    found, check = attempt(name, action)
    return check if found is None else Check(name, True, found)


# The plan


@dataclass(frozen=True)
class Promise:
    """What the config of a release plans and its method promises, by the method's own plan."""

    events: tuple[Event, ...]
    viewers: tuple[Viewer, ...]
    not_covered: tuple[str, ...]
    limits: ClientLimits | None = None
    publishes: bool = False  # data-dependent claims
    claims: Callable[[], Sequence[Guarantee]] | None = None  # what the method itself would state


def replay(config: ReleaseConfig, certificate: Certificate) -> Promise:
    """The plan of the released config, made again by its method; ``Missing`` where nothing ties it to the certificate.

    An annotated release is always compared: only its config says what it holds.
    """
    name = certificate.method
    if name in method_names() and not get_method(name).private:
        raise InputError(f"method {name!r} is not private: nothing it made has a guarantee")
    if certificate.config_sha256 is None and name == ANNOTATED:
        raise InputError("the certificate is not tied to a config, so nothing says which generator was annotated")
    if name not in (*method_names(), ANNOTATED):
        raise Missing(f"method {name!r} is not known here, so its plan is not compared")
    budget = Budget(max(certificate.headline.epsilon, 1e-6), certificate.headline.delta)
    if name == ANNOTATED:
        return _annotated_promise(config, budget)
    method = get_method(name)
    refuse_runtime(config.method_config)
    settings = build_config(method.config_type, config.method_config, exact=True)
    try:
        plan = method.plan(settings, config.domain, budget)
    except BudgetError:
        if settings.privacy.noise_multiplier is None:
            raise Missing(_NOISE_LEFT_OPEN) from None
        raise
    _check_generator(config.generator, _planned_generator(method, plan), plan.events)
    if certificate.config_sha256 is None:
        raise Missing("the certificate is not tied to a config, so no plan is compared")
    if settings.privacy.noise_multiplier is None:
        raise Missing(_NOISE_LEFT_OPEN)
    if noise := left_open(settings.model_dump(), plan.config.model_dump()):
        raise Missing(f"the config leaves {noise} open, so it plans any")
    return Promise(
        events=plan.events,
        viewers=method.viewers(plan.config, config.domain),
        not_covered=(*NOT_COVERED, *method.not_covered),
        limits=plan.limits,
        publishes=method.publishes_data_dependent_claims(plan.config),
        claims=lambda: method.claims(plan.config, plan.events, budget),
    )


def _planned_generator(method: Method, plan: Plan) -> GeneratorConfig:
    """The generator of a plan, with the classifier beside it that the plan pays for."""
    from understudy.models.generator import AnnotatedGeneratorConfig, TeacherModelConfig

    alone, config = method.generator_config(plan.config, plan.domain), plan.config
    if not (isinstance(config, TaughtConfig) and config.privacy.teacher_share):
        return alone
    teacher = TeacherModelConfig.model_validate(config.teacher.released())
    return AnnotatedGeneratorConfig.taught(alone, teacher)


def _check_generator(held: GeneratorConfig, planned: GeneratorConfig, events: Sequence[Event]) -> None:
    """That the generator is the one that the config plans, and the classifier beside it the one that events paid for.

    How common each class is may be told only by a noisy embedding that the plan pays for.
    """
    alone = getattr(held, "base", held)
    if alone.model_copy(update={"label_weights": None}) != getattr(planned, "base", planned):
        raise InputError("the generator has other networks or another sampler than the config plans")
    if alone.label_weights is not None and not any(event.purpose in EMBEDDINGS for event in events):
        raise InputError("the generator says how common its classes are, which no event that the config plans tells")
    if held is not alone:
        _check_classifier(held, planned)


def _check_classifier(held: GeneratorConfig, planned: GeneratorConfig) -> None:
    """That a generator and its classifier are together what the config plans, but for what came out on samples."""
    from understudy.models.generator import AnnotatedGeneratorConfig

    assert isinstance(held, AnnotatedGeneratorConfig)
    if not isinstance(planned, AnnotatedGeneratorConfig):
        raise InputError("there is a classifier beside the generator, which the config does not plan")
    if held.teacher != planned.teacher:
        raise InputError("the classifier beside the generator is another than the config plans")
    found: dict[str, Any] = {"base": held.base, "label_weights": held.base.label_weights}
    if held.base.classes is None:  # how often the classifier gives each class was counted on what is drawn
        found["label_weights"] = held.label_weights
    if held.teacher is not None:  # it was tried before it names samples
        found |= {"names": held.names, "shifts": held.shifts, "drawn_weight": held.drawn_weight}
    if held != planned.model_copy(update=found):
        raise InputError("generator and classifier are described otherwise together than the config plans")


def _annotated_promise(config: ReleaseConfig, budget: Budget) -> Promise:
    from understudy.methods.annotation import planned

    if config.generator.kind != _ANNOTATED_KIND:
        raise InputError("the release is annotated, but there is no classifier beside the generator")
    events, generator = planned(config.method_config, config.domain, budget)
    _check_generator(config.generator, generator, events)
    drawing = get_method(config.method_config["generator"]["method"])
    return Promise(tuple(events), (Viewer(),), (*NOT_COVERED, *drawing.not_covered))


def compare_events(promise: Promise, certificate: Certificate) -> str:
    """That the events are the planned ones, each charged in full, and no others; a raised plan is said aloud."""
    missing, further = uncharged(promise.events, certificate.events), uncharged(certificate.events, promise.events)
    if missing:
        raise InputError(f"the config plans {event_in_words(missing[0])}; no event in the certificate is that")
    if len(certificate.events) > len(promise.events) or (further and not certificate.plan_raised):
        event = further[0] if further else certificate.events[-1]
        raise InputError(f"the certificate has {event_in_words(event)}, which the config does not plan")
    raised = "; the plan was raised during the run" if certificate.plan_raised else ""
    return f"the events are the ones that the config plans{raised}"


def compare_viewers(promise: Promise, certificate: Certificate) -> str:
    """That a guarantee is stated against everybody whom the method answers to, the headline first, and no one else."""
    stated = [viewer_of(guarantee) for guarantee in certificate.guarantees]
    if any(guarantee.limits != promise.limits for guarantee in certificate.guarantees):
        raise InputError("a guarantee states other limits for the answers of a client than the config sets")
    foreign = [viewer for viewer in stated if viewer not in promise.viewers]
    if foreign:
        raise InputError(f"a guarantee against {foreign[0]} is none that {certificate.method} makes")
    left_out = [viewer for viewer in promise.viewers if viewer not in stated]
    if left_out and promise.claims is not None:
        possible = [viewer_of(claim) for claim in promise.claims()]  # none where an epsilon would be infinite
        left_out = [viewer for viewer in left_out if viewer in possible]
    if left_out:
        raise Missing(f"no guarantee is stated against {left_out[0]}, which {certificate.method} states")
    if stated[0] != promise.viewers[0]:
        raise InputError(f"the first guarantee is one against {stated[0]}, not against {promise.viewers[0]}")
    others = ("server", "client") if certificate.headline.unit == "client" else ()
    silent = [name for name in others if name not in {viewer.viewer for viewer in stated}]
    return "; ".join(
        [*(f"against {viewer}" for viewer in stated), *(f"NO guarantee against {name}" for name in silent)]
    )


def check_not_covered(required: Sequence[str], certificate: Certificate) -> str:
    """That the certificate says what it does not cover, in the words that are known here."""
    missing = [item for item in required if item not in certificate.not_covered]
    if missing:
        raise Missing(f"the certificate does not say that it does not cover {missing[0]!r}")
    return f"all {len(required)} reservations are stated"


# Declared facts


def declared_domains(config: ReleaseConfig) -> list[Domain]:
    """Every domain that a release declares: its own and, where it is annotated, that of the generator's data."""
    if config.method != ANNOTATED:
        return [config.domain]
    from understudy.methods.annotation import generator_domain

    return [config.domain, generator_domain(config.method_config)]


def compare_facts(config: ReleaseConfig, certificate: Certificate) -> str:
    """That config and certificate name one method and declare the same facts, whatever else is assumed."""
    if config.method != certificate.method:
        raise InputError(f"the config says method {config.method!r}, but the certificate {certificate.method!r}")
    declared = [item for domain in declared_domains(config) for item in domain.assumed_public()]
    unstated = [item for item in declared if item not in certificate.assumed_public]
    if unstated:
        raise InputError(f"the config declares {unstated[0]!r}, but the certificate does not list it as assumed public")
    for item in certificate.assumed_public:
        if item not in declared and item.partition(":")[0].strip().lower() in _DECLARED:
            raise InputError(f"the certificate assumes {item!r}, but the config declares otherwise")
    return f"{len(declared)} declared facts are listed as assumed public"


_NUMBERS = ("nominal_records", "nominal_clients", "nominal_people", "skip_broken")
_DECLARED = (*_NUMBERS, "classes", "class names", "shape", "range")


def units_protected(guarantee: Guarantee, config: ReleaseConfig) -> int:
    """How many units a guarantee speaks of: the declared number of records, clients or people."""
    declared = [
        {"record": domain.nominal_records, "client": domain.nominal_clients, "person": domain.nominal_people}
        for domain in declared_domains(config)
    ]
    numbers = [each[guarantee.unit] for each in declared]
    if None in numbers:
        raise Missing(
            f"no number of {plural(guarantee.unit)} is declared, so nothing says whether delta is small enough"
        )
    return max(number or 1 for number in numbers)


def check_delta_size(guarantee: Guarantee, units: int) -> str:
    """That delta is at most one over the number of units: more would allow to publish one of them as it is."""
    words = (
        f"delta {guarantee.delta:g} times {units:,} declared {plural(guarantee.unit)} is {guarantee.delta * units:.3g}"
    )
    if guarantee.delta * units > 1:
        raise Missing(f"{words}, more than one: such a promise allows a {guarantee.unit} to be published as it is")
    return words


def delta_remark(guarantee: Guarantee, units: int) -> str | None:
    """What a reader must know where delta is large for so many units; above one over them nothing is verified."""
    exposed, unit = guarantee.delta * units, guarantee.unit
    if exposed <= _LARGE_DELTA:
        return None
    return (
        f"delta {guarantee.delta:g} times {units:,} declared {plural(unit)} is {exposed:.2g}: within this guarantee "
        f"(against {guarantee.viewer}) that many {plural(unit)} may be exposed outright, in expectation; a delta of at "
        f"most {_LARGE_DELTA / units:.1g} promises more"
    )


_LARGE_DELTA = 0.1  # times the number of units: above it a remark says so


# Events


def uncharged(plan: Sequence[Event], charged: Sequence[Event]) -> list[Event]:
    """Planned events for which none is charged; an event pays for one of them only."""
    left, missing = sorted(charged, key=lambda event: event.count), []
    for planned in sorted(plan, key=lambda event: -event.count):
        paying = next((place for place, event in enumerate(left) if _charges(event, planned)), None)
        if paying is None:
            missing.append(planned)
        else:
            del left[paying]
    return missing


def _charges(event: Event, planned: Event) -> bool:
    """Whether an event is the planned one in all but its counts and its name, and is charged in full."""
    told = {"count", "planned", "executed", "purpose"}
    return event.model_dump(exclude=told) == planned.model_dump(exclude=told) and event.count >= planned.count


# Audits

_MOST_AUDITS, _MOST_AUDITED_EVENTS = 100, 200


def check_audits(certificate: Certificate) -> Iterator[Check]:
    """One check for each recorded audit."""
    audits = certificate.audits or ()
    if len(audits) > _MOST_AUDITS:
        yield Check("audits", False, f"{len(audits)} audits; at most {_MOST_AUDITS} are checked")
        return
    events = sum(len(audit.events) for audit in audits)
    if events > _MOST_AUDITED_EVENTS:
        yield Check("audits", False, f"{events} events of audits; at most {_MOST_AUDITED_EVENTS} are accounted")
        return
    for number, audit in enumerate(audits, start=1):
        yield outcome(f"audit {number}", partial(_standing, audit, certificate))


def check_account(certificate: Certificate, config: ReleaseConfig | None) -> Iterator[Check]:
    """Whether the total that an account is stated to have reached can be that of the events in this certificate."""
    account, headline = certificate.account, certificate.headline
    if account is None or len(certificate.events) > MOST_EVENTS:
        return

    def compare() -> str:
        said = filters.check_statement(account, certificate.events, (headline.epsilon, headline.delta))
        if config is not None:
            terms = headline.model_copy(update={"delta": account.terms.delta})
            check_delta_size(terms, units_protected(headline, config))
        return said

    yield outcome("account", compare)


def _standing(audit: AuditRecord, certificate: Certificate) -> str:
    problem = _problem(audit, certificate)
    if problem is not None:
        raise InputError(problem)
    return f"nothing contradicts it; what it says of itself: {audit.in_words()}"


def _problem(audit: AuditRecord, certificate: Certificate) -> str | None:
    """Why an audit does not speak for the release, or speaks against it.

    What it claims is recomputed from its events, so that a claim that was raised afterwards hides nothing.
    """
    if audit.method != certificate.method:
        return f"it audits {audit.method}, not {certificate.method}"
    units = [{event.unit for event in events} for events in (audit.events, certificate.events)]
    if audit.kind == "run" and units[0] != units[1]:
        return f"it is about a {'/'.join(sorted(units[0]))}, not a {'/'.join(sorted(units[1]))}"
    if not audit.declared_public:
        return "it was not made on declared-public data"
    if (audit.generator_sha256 is None) != (audit.kind == "mechanism"):
        return "the audit of a run names the generator it made, and no other audit does"
    if audit.generator_sha256 == certificate.generator_sha256:
        return "it was made on the run that is released, not on one of its own"
    claimed = accounting.certified_epsilon(audit.events, audit.delta)
    if audit.claimed > claimed:
        return f"it says that its events cost {audit.claimed:g}, but they cost {claimed:g}"
    if audit.epsilon_lower > claimed:
        return (
            f"epsilon is at least {audit.epsilon_lower:.4g} with confidence {audit.confidence:.4%}, above the "
            f"{claimed:.4g} that follows from its events: the method does not keep its word"
        )
    return None


# Claims that depend on the data

_DIGITS = 2e-4  # the claim is rounded up to four decimals


def check_data_dependent(promise: Promise | None, certificate: Certificate) -> list[Check]:
    """One check for each claim; a claim that holds is still no guarantee of differential privacy."""
    return [
        outcome(f"{claim.kind} {number}", partial(_fitting, claim, promise, certificate))
        for number, claim in enumerate(certificate.data_dependent or (), start=1)
    ]


def _fitting(claim: BayesianClaim, promise: Promise | None, certificate: Certificate) -> str:
    low, high = figures_possible(claim, certificate.events)
    if statements.NOT_COVERED not in certificate.not_covered:
        covered = f"not_covered does not list {statements.NOT_COVERED!r}"
        raise InputError(f"{covered}, so the guarantee seems to cover the claim")
    shown = f"epsilon_mu {rounded(claim.epsilon_mu)} at delta_mu {claim.delta_mu:g}"
    if not low - _DIGITS <= claim.epsilon_mu <= high + _DIGITS:
        raise InputError(f"{shown} is impossible: the events allow {low:.4f} to {high:.4f} at order {claim.order}")
    if promise is not None and not promise.publishes:
        raise InputError(f"{shown} is stated, but the config does not say that such claims are published")
    if claim.warning != statements.WARNING or not set(statements.ASSUMPTIONS) <= set(claim.assumptions):
        raise Missing(f"{shown} is stated without what it assumes, or without its warning")
    doubt = "" if claim.trusted else "; by its own samples its confidence bound fails"
    return f"{shown} fits the events, but is not recomputed and is no epsilon of differential privacy{doubt}"


def figures_possible(claim: BayesianClaim, events: tuple[Event, ...]) -> tuple[float, float]:
    """The smallest and largest epsilon_mu that the events allow: gradients of length zero, or of the clip bound."""
    import numpy as np

    from understudy.privacy.claims.bayesian import BayesianAccountant, unsampled_moments
    from understudy.privacy.claims.bayesian_moments import price_of_delta
    from understudy.privacy.claims.statements import BayesianConfig

    sampled = [event for event in events if event.sampling.kind == "poisson"]
    if len(sampled) != 1 or sampled[0].count != claim.steps:
        raise InputError(f"the claim is about {claim.steps} steps, but no event is")
    settings = BayesianConfig(
        orders=(claim.order,),
        delta_mu=claim.delta_mu,
        failure_share=claim.failure / claim.delta_mu,
        percentile_delta=claim.percentile.delta,
        formulas=claim.formulas,
    )
    others = [event for event in events if event is not sampled[0]]
    most = float(BayesianAccountant(settings, sampled[0], others).costs()[0])
    fixed = float(sum(unsampled_moments(event, (claim.order,))[0] for event in others))
    each = (most - fixed) / claim.steps
    least = most - each * claim.estimated_steps
    needed = float(price_of_delta(np.array([float(claim.order)]), claim.delta_mu - claim.failure, claim.formulas)[0])
    return (least + needed) / claim.order, (most + needed) / claim.order
