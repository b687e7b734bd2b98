"""What can be checked of a claim of kind ``bayesian-dp``: that it fits the events, not that it is true.

The gradients it rests on are private, so nobody can recompute ``epsilon_mu`` from a release. It can be too small or too
large for the events beside it, and that is looked for here.
"""

from __future__ import annotations

from understudy.errors import InputError, UnderstudyError
from understudy.privacy.bayesian_claim import NOT_COVERED, BayesianClaim, rounded
from understudy.privacy.certificate import Certificate
from understudy.privacy.events import Event

_DIGITS = 2e-4  # the claim is rounded up to four decimals

Found = tuple[str, bool, str]  # name, whether it holds, what was found


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

    from understudy.privacy.accounting.bayesian_moments import price_of_delta
    from understudy.privacy.bayesian import BayesianAccountant, unsampled_moments
    from understudy.privacy.bayesian_settings import BayesianSettings

    sampled = [event for event in events if event.sampling.kind == "poisson"]
    if len(sampled) != 1 or sampled[0].count != claim.steps:
        raise InputError(f"the claim is about {claim.steps} steps, but no event is")
    settings = BayesianSettings(
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
