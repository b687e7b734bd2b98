"""Whether the events of a certificate are those that the released config plans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from understudy.errors import InputError
from understudy.methods.registry import get_method, method_names
from understudy.privacy.certificate import Certificate
from understudy.privacy.events import Event
from understudy.release import folders
from understudy.release.annotated import ANNOTATED, planned_events
from understudy.release.meaning import event_in_words


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
    from understudy.methods.configuration import build_config
    from understudy.privacy.budget import Budget
    from understudy.release.config import read_config

    config, headline = read_config(place / folders.CONFIG), certificate.headline
    budget = Budget(max(headline.epsilon, 1e-6), headline.delta)
    if config.method == ANNOTATED:
        return uncharged(planned_events(config, budget), certificate.events)
    method = get_method(config.method)
    plan = method.plan(build_config(method.config_type, config.method_config), config.domain, budget)
    if any(guarantee.limits != plan.limits for guarantee in certificate.guarantees):
        raise InputError("a guarantee states other limits for the answers of a client than the config sets")
    return uncharged(plan.events, certificate.events)


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
