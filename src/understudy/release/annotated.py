"""Releases whose images were named by a private annotator: config, plan, and the certificate of both together.

The generator was trained without labels and has its own events. The annotator is a classifier trained by DP-SGD on
labelled records of the same people. Whoever sees the annotated release sees the outcome of both, so its guarantee is
that of all events together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from understudy.configs import MethodConfig, PrivacyConfig
from understudy.data.domain import Domain
from understudy.data.sampling import sampling_rate
from understudy.errors import BudgetError, InputError
from understudy.methods.config import build_config
from understudy.methods.registry import get_method, method_names
from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.certificate import Certificate
from understudy.privacy.events import Event, PoissonSampling
from understudy.privacy.plan import RECORDS_ONLY, Plan

if TYPE_CHECKING:
    from understudy.release.config import ReleaseConfig
    from understudy.release.release import Release


ANNOTATED = "annotated"
PURPOSE = "the annotator's gradients"
_Count = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0)]
_SMALL_IMAGE = 16 * 16


class AnnotatorPrivacy(PrivacyConfig):
    """What changes epsilon; ``noise_multiplier`` is calibrated to what the generator leaves of the budget."""

    batch: _Count | None = None  # expected records a step; decided by the declared number of records
    steps: _Count | None = None
    clip: _Positive = 1.0


class AnnotatorMethodConfig(BaseModel):
    """The classifier; none of it changes epsilon."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    width: _Count = 16
    learning_rate: _Positive = 2e-3


class AnnotatorConfig(MethodConfig):
    """The config of ``understudy annotate``."""

    privacy: AnnotatorPrivacy = AnnotatorPrivacy()
    method: AnnotatorMethodConfig = AnnotatorMethodConfig()


def plan_annotation(config: AnnotatorConfig, domain: Domain, base: Certificate, budget: Budget) -> Plan:
    """Decide batch, steps and noise so that the generator's events and the annotator's together keep the budget.

    Privacy: public facts only (the declared domain and the certificate of the generator).
    """
    alone = accounting.certified_epsilon(base.events, budget.delta)
    if alone >= budget.epsilon:
        raise BudgetError(
            f"budget: the generator alone costs epsilon {alone:g} at delta {budget.delta:g}, so nothing of "
            f"{budget.epsilon:g} is left for an annotator; pass a larger --epsilon, which is that of both together"
        )
    config = _decided(config, domain)

    def events(multiplier: float) -> tuple[Event, ...]:
        return (*base.events, annotator_event(config, domain, multiplier))

    planned = events(config.privacy.noise_multiplier or accounting.calibrate(events, budget))
    epsilon = accounting.certified_epsilon(planned, budget.delta)
    if epsilon > budget.epsilon:
        raise BudgetError(
            f"budget: generator and annotator together cost epsilon {epsilon:g} at delta {budget.delta:g}, but only "
            f"{budget.epsilon:g} is allowed; raise privacy.noise_multiplier or leave it out to have it calibrated"
        )
    steps, batch = config.privacy.steps or 1, config.privacy.batch or 1
    work = steps * (0.01 + 2e-4 * batch * math.prod(domain.shape) / 784)
    return Plan(
        method=ANNOTATED,
        config=config.with_noise(planned[-1].noise_multiplier),
        domain=domain,
        budget=budget,
        events=planned[-1:],
        epsilon=epsilon,
        steps=steps,
        memory_bytes=domain.nominal_records * math.prod(domain.shape) + 2**29,
        seconds=work,
        seconds_on_gpu=steps * 0.004,
        remarks=(
            f"the generator alone costs epsilon {alone:.4g}; the annotator gets the rest of the budget",
            *([] if domain.nominal_clients is None else [RECORDS_ONLY]),
        ),
    )


def annotator_event(config: AnnotatorConfig, domain: Domain, noise_multiplier: float) -> Event:
    """All steps of the annotator, as they are accounted."""
    return Event(
        noise_multiplier=noise_multiplier,
        sensitivity="C",
        sampling=PoissonSampling(rate=sampling_rate(config.privacy.batch or 1, domain.nominal_records)),
        count=config.privacy.steps or 1,
        purpose=PURPOSE,
    )


def check_base(base: Release, domain: Domain) -> None:
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
    if any(event.unit != "record" for event in certificate.events):
        raise InputError("annotate: the generator protects clients and the annotator records; they do not compose")
    if set(certificate.headline.delta_parts or {}) - {"accountant"}:
        raise InputError("annotate: the generator's delta pays for more than its events; such a claim is not composed")


def annotated_config(base: Release, config: AnnotatorConfig) -> dict[str, Any]:
    """What ``config.json`` of an annotated release says of how both parts were made."""
    return {
        "generator": {
            "method": base.method,
            "domain": base.domain.model_dump(mode="json"),
            "config": base.method_config,
        },
        "annotator": config.model_dump(mode="json", exclude={"runtime"}),
    }


def planned_events(config: ReleaseConfig, budget: Budget) -> list[Event]:
    """The events that the config of an annotated release plans: the generator's and the annotator's.

    A generator by a method that is not private, or not known here, is refused: nothing says what it cost.
    """
    made, annotator = _parts(config)
    if annotator.privacy.noise_multiplier is None:
        raise InputError("config: the noise of the annotator is not stated")
    if made.method not in method_names():
        raise InputError(f"config: the generator was made by {made.method!r}, which is not known here")
    method = get_method(made.method)
    if not method.private:
        raise InputError(f"config: the generator was made by {made.method!r}, which is not private")
    plan = method.plan(build_config(method.config_type, made.config), made.domain, budget)
    return [annotator_event(annotator, config.domain, annotator.privacy.noise_multiplier), *plan.events]


def declared_domains(config: ReleaseConfig) -> list[Domain]:
    """Every domain that a release declares: its own and, where it is annotated, that of the generator's data."""
    return [config.domain, _parts(config)[0].domain] if config.method == ANNOTATED else [config.domain]


class _Made(BaseModel):
    """How the generator of an annotated release was made."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: str
    domain: Domain
    config: dict[str, Any]


def _parts(config: ReleaseConfig) -> tuple[_Made, AnnotatorConfig]:
    try:
        values = config.method_config["annotator"]
        return _Made.model_validate(config.method_config["generator"]), build_config(AnnotatorConfig, values)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"config: it does not say how generator and annotator were made ({error})") from None


def _decided(config: AnnotatorConfig, domain: Domain) -> AnnotatorConfig:
    """Batch and steps by the declared domain, where they were left open."""
    records, small = domain.nominal_records, domain.shape[1] * domain.shape[2] <= _SMALL_IMAGE
    batch = config.privacy.batch or max(1, min(600, records // 10))
    sampling_rate(batch, records)  # refuses a batch above the declared number of records
    steps = config.privacy.steps or (400 if small else 1000)
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"batch": batch, "steps": steps})})
