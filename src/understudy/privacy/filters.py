"""Filters: when runs on the same data must stop, although each is planned by whoever has seen the ones before.

Plans that depend on earlier results are *adaptive*. Composing what happened to be chosen by a numerical accountant is
not sound then: whoever may choose among plans that each fit can make the sum of all miss its delta. What is sound is a
filter that is fixed before the first run, and that every run is charged to in full before it begins:

- ``renyi``: Renyi divergences at one order add up (Feldman and Zrnic 2021), for any mechanism that has one;
- ``gaussian``: the sum of 1 / noise_multiplier^2 of Gaussians without sampling, which is then as tight as can be;
- ``sum``: epsilons and deltas add up, whatever they were claimed for.

One run alone was chosen by nobody who had seen anything of the data, so it may be composed by the numerical
accountants. Proofs and a counterexample: docs/privacy.md. Nothing here reads a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from understudy.configs import Count, Fraction, NonNegative, Strict, validated
from understudy.errors import BudgetError, InputError
from understudy.privacy import accounting
from understudy.privacy.accounting.figures import round_up
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, Unit

Filter = Literal["renyi", "gaussian", "sum"]
Adjacency = Literal["add-remove", "replace-one"]
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_BEYOND = 1e300  # an amount beyond all others; files hold no infinity
_TOLERANCE = 1.01  # between two machines, or two accountants that each round up


class Terms(Strict):
    """What an account fixes when it is opened, and what never changes afterwards.

    All runs that are charged to it, past and future, are together (``epsilon``, ``delta``)-differentially private for
    ``unit`` and ``adjacency``, against whoever sees their releases. ``order`` is that of the ``renyi`` filter.
    """

    epsilon: Annotated[float, Field(gt=0)]
    delta: Fraction
    unit: Unit = "record"
    adjacency: Adjacency = "add-remove"
    filter: Filter = "renyi"
    order: Annotated[float, Field(gt=1.01, le=1024)] | None = None

    @model_validator(mode="after")
    def _order_of_renyi_alone(self) -> Terms:
        if (self.order is not None) != (self.filter == "renyi"):
            raise ValueError("order: a renyi filter has one, and no other filter has")
        return self


class Charge(Strict):
    """What one run takes of an account: its whole plan.

    ``amount`` is in the measure of the filter: a Renyi divergence, a sum of 1 / noise_multiplier^2, or an epsilon with
    its ``delta``. ``alone`` is the epsilon of the run by the numerical accountants, at the delta of the account: it
    counts where no other run is charged; None where the plan follows from an earlier release.
    """

    amount: NonNegative
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    alone: NonNegative | None = None


class Statement(Strict):
    """What a certificate says of its account: the terms, and what was charged when the certificate was written.

    ``total_epsilon`` at ``total_delta`` is what ``runs`` runs may reveal together, that of the certificate among them
    (``stated``). Later runs add to it; what stays is that they never exceed the terms.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    identity: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    terms: Terms
    runs: Count
    total_epsilon: NonNegative
    total_delta: Fraction

    @model_validator(mode="after")
    def _within_its_terms(self) -> Statement:
        if self.total_epsilon > self.terms.epsilon or self.total_delta > self.terms.delta:
            raise ValueError(f"{self.total_epsilon:g} at {self.total_delta:g} is more than the account allows")
        return self

    def in_words(self) -> str:
        """One sentence; that nothing else touched the data is the trainer's word."""
        terms, runs = self.terms, "this run alone" if self.runs == 1 else f"{self.runs} runs together"
        return (
            f"account {self.name}: {runs} at epsilon {self.total_epsilon:g}, delta "
            f"{self.total_delta:g}, when this was written; all that will ever be charged to it stay within epsilon "
            f"{terms.epsilon:g}, delta {terms.delta:g} (unit {terms.unit}, {terms.adjacency}, filter {_named(terms)})"
        )


def _named(terms: Terms) -> str:
    return terms.filter if terms.order is None else f"{terms.filter} at order {terms.order:g}"


def terms_of(
    budget: Budget, unit: str = "record", adjacency: str = "add-remove", rule: str = "renyi", order: float | None = None
) -> Terms:
    """The terms of a new account, with the order decided where it was left open; what leaves no room is refused."""
    chosen = {"unit": (unit, Unit), "adjacency": (adjacency, Adjacency), "filter": (rule, Filter)}
    for option, (word, known) in chosen.items():
        if word not in get_args(known):
            raise InputError(f"--{option}: {word!r} is unknown; choose {', '.join(get_args(known))}")
    epsilon, delta = budget.epsilon, budget.delta
    if rule == "renyi" and order is None:
        order = _best_order(epsilon, delta)
    words = {"unit": unit, "adjacency": adjacency, "filter": rule}
    fields = {"epsilon": float(epsilon), "delta": float(delta), "order": order, **words}
    terms = validated(Terms, fields, "account", "see `understudy data account --help`")
    if terms.order is not None:
        _divergence((), terms)  # refuses an order that nobody accounts
        if _capacity(terms) <= 0:
            raise InputError(
                f"order: at {terms.order:g} nothing fits into epsilon {epsilon:g} at delta {delta:g}; leave --order "
                "out, or choose --filter sum"
            )
    return terms


def charge(terms: Terms, events: Sequence[Event], claim: tuple[float, float], first: bool = True) -> Charge:
    """What the plan of a run costs by the filter; InputError or BudgetError where the filter cannot tell.

    ``claim`` is the epsilon and delta of the run by itself, which a ``sum`` charges. ``first`` is False where the plan
    follows from what an earlier release showed.

    Privacy: public facts only. The plan is charged in full, whatever becomes of it.
    """
    _check_neighbours(terms, events)
    if terms.filter == "sum":
        if not math.isfinite(claim[0]):
            raise BudgetError("account: this run has no finite epsilon, and no account can pay for that; plan less")
        return Charge(amount=claim[0], delta=claim[1])
    if terms.filter == "renyi":
        amount = _divergence(events, terms)
    else:
        amount = _squared_distance(events)
    alone = accounting.certified_epsilon(events, terms.delta) if first else math.inf
    if not math.isfinite(amount) and not math.isfinite(alone):
        raise BudgetError("account: this run has no finite epsilon, and no account can pay for that; plan less")
    finite = amount if math.isfinite(amount) else _BEYOND
    return Charge(amount=finite, alone=alone if math.isfinite(alone) else None)


def total(terms: Terms, charges: Sequence[Charge]) -> tuple[float, float]:
    """The epsilon and delta of all that is charged together: an upper bound, rounded up; inf where there is none."""
    if not charges:
        return 0.0, 0.0
    together = math.fsum(each.amount for each in charges)
    if terms.filter == "sum":
        return round(together, 9), math.fsum(each.delta for each in charges)
    figure = _epsilon(terms, together)
    if len(charges) == 1 and charges[0].alone is not None:
        figure = min(figure, charges[0].alone)
    return figure, terms.delta


def stated(terms: Terms, charges: Sequence[Charge]) -> tuple[float, float]:
    """What a certificate may say of all charges together: a guarantee, although plans followed from results.

    Privacy: of several runs the delta is that of the account, since how much of it was used may follow from the data.
    What a ``gaussian`` filter has come to is no guarantee at all: whoever stops where the loss happens to be high makes
    it miss its delta, so the terms are stated. At one order of Renyi, and by a sum, what was reached is one.
    """
    epsilon, delta = total(terms, charges)
    if len(charges) == 1:
        return epsilon, min(delta, terms.delta)  # a sum may be off by its last digit
    return terms.epsilon if terms.filter == "gaussian" else epsilon, terms.delta


def allows(terms: Terms, charges: Sequence[Charge]) -> bool:
    """Whether all charges together stay within the terms."""
    epsilon, delta = total(terms, charges)
    return epsilon <= terms.epsilon and delta <= terms.delta * (1 + 1e-12)


def room(terms: Terms, charges: Sequence[Charge]) -> float:
    """The epsilon, at the account's delta, of one more run of plain Gaussian noise that would fit; rounded down.

    A guide for whoever plans the next run: what is sampled in batches may cost more by the filter, and is told so.
    """
    together = math.fsum(each.amount for each in charges)
    if terms.filter == "sum":
        left_delta = terms.delta - math.fsum(each.delta for each in charges)
        return max(0.0, terms.epsilon - together) if left_delta > 0 else 0.0
    if not charges:
        return terms.epsilon
    left = _capacity(terms) - together
    if left <= 0:
        return 0.0
    squared = left if terms.filter == "gaussian" else 2 * left / (terms.order or 2)
    found = _halved(lambda epsilon: _gaussian_delta(epsilon, squared) > terms.delta)
    return min(terms.epsilon, math.floor(found * 100) / 100)


def check_statement(statement: Statement, events: Sequence[Event], claim: tuple[float, float]) -> str:
    """What a certificate's own events say against the statement of its account; ``claim`` is its headline.

    Nobody but the owner sees the other runs. But the total covers the runs of this release, so it cannot be below what
    their events cost by the account's own filter.
    """
    terms = statement.terms
    _check_neighbours(terms, events)
    alone = terms.filter == "sum" and statement.runs == 1
    if (alone and statement.total_delta < claim[1]) or (not alone and statement.total_delta != terms.delta):
        raise InputError(
            f"the total of the account is stated at delta {statement.total_delta:g}, but that of its terms is "
            f"{terms.delta:g}, and that of this release {claim[1]:g}"
        )
    if terms.filter == "gaussian" and statement.runs > 1 and statement.total_epsilon != terms.epsilon:
        raise InputError(f"a gaussian filter promises its terms, {terms.epsilon:g}, and nothing below for several runs")
    if terms.filter == "sum":
        spent = claim[0]
    else:
        amount = _divergence(events, terms) if terms.filter == "renyi" else _squared_distance(events)
        spent = _epsilon(terms, amount)
        if statement.runs == 1:
            spent = min(spent, _fourier(events, terms.delta))
    if not spent <= statement.total_epsilon * _TOLERANCE:
        raise InputError(
            f"the events of this release alone cost epsilon {spent:g} by the filter of the account, but the total of "
            f"all its runs is stated as {statement.total_epsilon:g}"
        )
    return (
        f"the events of this release fit into the total of its account ({spent:.6g} of {statement.total_epsilon:.6g})"
    )


def _fourier(events: Sequence[Event], delta: float) -> float:
    return accounting.epsilon(events, delta, accountant="fourier")


# The three filters


def _check_neighbours(terms: Terms, events: Sequence[Event]) -> None:
    """Refuse a plan that protects others than the account, or against other neighbours."""
    other = next((event.unit for event in events if event.unit != terms.unit), None)
    if other is not None:
        raise InputError(
            f"account: it counts what is revealed about a {terms.unit}, but this run protects a {other}; open another "
            f"account with --unit {other}"
        )
    replaced = all(event.sampling.kind == "none" and event.sensitivity == "2C" for event in events)
    if terms.adjacency == "replace-one" and not replaced:
        raise InputError(
            "account: its neighbours are replace-one, but this run is accounted for add-remove only; open another "
            "account with --adjacency add-remove"
        )


def _divergence(events: Sequence[Event], terms: Terms) -> float:
    from understudy.privacy.accounting import renyi

    assert terms.order is not None, "checked by the terms"
    return renyi.divergence(events, terms.order)


def _squared_distance(events: Sequence[Event]) -> float:
    """Sum of 1 / noise_multiplier^2, for Gaussians without sampling alone."""
    if any(event.sampling.kind != "none" for event in events):
        raise InputError(
            "account: its filter is gaussian, which counts noise without sampling, but this run samples its batches; "
            "open another account with --filter renyi"
        )
    return math.fsum(event.count / event.noise_multiplier**2 for event in events)


def _epsilon(terms: Terms, amount: float) -> float:
    """Epsilon at the account's delta of an amount by its filter, rounded up."""
    if amount >= _BEYOND:
        return math.inf
    if terms.filter == "gaussian":
        return _gaussian_epsilon(amount, terms.delta)
    from understudy.privacy.accounting import renyi

    assert terms.order is not None, "checked by the terms"
    return round_up(renyi.converted(amount, terms.order, terms.delta))


def _gaussian_epsilon(squared_distance: float, delta: float) -> float:
    """Epsilon of one Gaussian at distance ``sqrt(squared_distance)``: of all of them together."""
    if squared_distance <= 0:
        return 0.0
    return accounting.certified_epsilon([Event(noise_multiplier=squared_distance**-0.5, count=1)], delta)


def _capacity(terms: Terms) -> float:
    """The largest amount that the terms allow, nearly."""
    if terms.filter == "gaussian":
        return _halved(lambda squared: _gaussian_delta(terms.epsilon, squared) <= terms.delta)
    from understudy.privacy.accounting import renyi

    assert terms.order is not None, "checked by the terms"
    return terms.epsilon - renyi.converted(0.0, terms.order, terms.delta, floor=-math.inf)


def _gaussian_delta(epsilon: float, squared_distance: float) -> float:
    """Delta of one Gaussian at distance ``sqrt(squared_distance)``, in closed form: for what is told as a guide."""
    from scipy.special import log_ndtr, ndtr

    distance = math.sqrt(squared_distance)
    if distance == 0:
        return 0.0
    scaled = epsilon / distance
    return float(ndtr(distance / 2 - scaled) - math.exp(min(700.0, epsilon + log_ndtr(-distance / 2 - scaled))))


def _halved(holds: Callable[[float], bool]) -> float:
    """The largest positive number up to which ``holds`` is true, nearly; it is true from zero up to there."""
    low, high = 0.0, 1.0
    while holds(high) and high < _BEYOND:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _best_order(epsilon: float, delta: float) -> float:
    """The order at which the most Gaussian noise without sampling fits; nothing about any data decides it."""
    from understudy.privacy.accounting import renyi

    usable = [order for order in renyi.ORDERS if order > 1.01]
    rooms = [(epsilon - renyi.converted(0.0, order, delta, floor=-math.inf)) / order for order in usable]
    return usable[rooms.index(max(rooms))]
