"""Checks of a certificate that need more than its events: the plan of its config, audits, Bayesian claims.

Of a claim of kind ``bayesian-dp`` it can be checked that it fits the events, not that it is true: its gradients are
private, so nobody can recompute ``epsilon_mu`` from a release. It can be too small or too large for the events
beside it, and that is looked for here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.data.domain import Domain
from understudy.errors import InputError, UnderstudyError
from understudy.methods.registry import ANNOTATED, get_method, method_names
from understudy.privacy import accounting
from understudy.privacy.audits import AuditRecord
from understudy.privacy.certificate import Certificate
from understudy.privacy.claims.statements import NOT_COVERED, BayesianClaim, rounded
from understudy.privacy.events import Event
from understudy.privacy.meaning import event_in_words
from understudy.release import folders

if TYPE_CHECKING:
    from understudy.release.contents import ReleaseConfig


def compare_plan(place: Path, certificate: Certificate) -> tuple[str, bool]:
    """What was found, and whether a plan was compared at all; InputError where the events are not the planned ones.

    A plan that was raised is said aloud. An annotated release is always compared: only its config says what it holds.
    """
    method = certificate.method
    if method in method_names() and not get_method(method).private:
        raise InputError(f"method {method!r} is not private: nothing it made has a guarantee")
    if certificate.config_sha256 is None and method == ANNOTATED:
        raise InputError("the certificate is not tied to a config, so nothing says which generator was annotated")
    if certificate.config_sha256 is None:
        return "the certificate is not tied to a config, so no plan is compared", False
    if method not in (*method_names(), ANNOTATED):
        return f"method {method!r} is not known here, so its plan is not compared", False
    missing = _missing_events(place, certificate)
    if missing:
        raise InputError(f"the config plans {event_in_words(missing[0])}; no event in the certificate is that")
    raised = "; the plan was raised during the run" if certificate.plan_raised else ""
    return f"the events are the ones that the config plans{raised}", True


def _missing_events(place: Path, certificate: Certificate) -> list[Event]:
    """Planned events that the certificate does not charge in full."""
    from understudy.methods.config import build_config
    from understudy.privacy.budget import Budget
    from understudy.release.contents import read_config

    config, headline = read_config(place / folders.CONFIG), certificate.headline
    budget = Budget(max(headline.epsilon, 1e-6), headline.delta)
    if config.method == ANNOTATED:
        from understudy.methods.annotation import planned_events

        return uncharged(planned_events(config.method_config, config.domain, budget), certificate.events)
    method = get_method(config.method)
    plan = method.plan(build_config(method.config_type, config.method_config), config.domain, budget)
    if any(guarantee.limits != plan.limits for guarantee in certificate.guarantees):
        raise InputError("a guarantee states other limits for the answers of a client than the config sets")
    return uncharged(plan.events, certificate.events)


def declared_domains(config: ReleaseConfig) -> list[Domain]:
    """Every domain that a release declares: its own and, where it is annotated, that of the generator's data."""
    if config.method != ANNOTATED:
        return [config.domain]
    from understudy.methods.annotation import generator_domain

    return [config.domain, generator_domain(config.method_config)]


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


_MOST_AUDITS = 100
Found = tuple[str, bool, str]


def check_audits(certificate: Certificate) -> Iterator[Found]:
    """Name, outcome and detail of one check for each recorded audit."""
    audits = certificate.audits or ()
    if len(audits) > _MOST_AUDITS:
        yield "audits", False, f"{len(audits)} audits; at most {_MOST_AUDITS} are checked"
        return
    for number, audit in enumerate(audits, start=1):
        try:
            problem = _problem(audit, certificate)
        except (UnderstudyError, ValueError, ArithmeticError, MemoryError) as error:
            problem = f"its claim cannot be recomputed ({error})"
        yield f"audit {number}", problem is None, problem or audit.in_words()


def _problem(audit: AuditRecord, certificate: Certificate) -> str | None:
    """Why an audit does not speak for the release, or speaks against it.

    What it claims is recomputed from its events, so that a claim that was raised afterwards hides nothing.
    """
    if audit.method != certificate.method:
        return f"it audits {audit.method}, not {certificate.method}"
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


_DIGITS = 2e-4  # the claim is rounded up to four decimals


def check_data_dependent(certificate: Certificate) -> list[Found]:
    """One check for each claim; a claim that holds is still no guarantee of differential privacy."""
    return [
        _check(number, claim, certificate) for number, claim in enumerate(certificate.data_dependent or (), start=1)
    ]


def _check(number: int, claim: BayesianClaim, certificate: Certificate) -> Found:
    name = f"{claim.kind} {number}"
    try:
        low, high = figures_possible(claim, certificate.events)
    except (UnderstudyError, ArithmeticError, ValueError) as error:
        return name, False, str(error)
    if NOT_COVERED not in certificate.not_covered:
        return name, False, f"not_covered does not list {NOT_COVERED!r}, so the guarantee seems to cover the claim"
    shown = f"epsilon_mu {rounded(claim.epsilon_mu)} at delta_mu {claim.delta_mu:g}"
    if not low - _DIGITS <= claim.epsilon_mu <= high + _DIGITS:
        return name, False, f"{shown} is impossible: the events allow {low:.4f} to {high:.4f} at order {claim.order}"
    doubt = "" if claim.trusted else "; by its own samples its confidence bound fails"
    return (
        name,
        True,
        f"{shown} fits the events, but is not recomputed and is no epsilon of differential privacy{doubt}",
    )


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
