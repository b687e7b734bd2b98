"""Filters: what runs add up to by hand and by the filter, what is refused, and what a certificate may state."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from understudy.errors import BudgetError, InputError
from understudy.privacy import accounting, filters
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, PoissonSampling, RoutedSampling
from understudy.privacy.filters import Charge, Statement, Terms, allows, charge, check_statement, room, terms_of, total

Array = NDArray[np.float64]
TEN = Budget(epsilon=10, delta=1e-5)
PLAIN = Event(noise_multiplier=1.0, sensitivity="C", count=1)


def sampled(multiplier: float, rate: float, count: int) -> Event:
    sampling = PoissonSampling(rate=rate)
    return Event(noise_multiplier=multiplier, sensitivity="C", sampling=sampling, count=count)


def charged(terms: Terms, *events: Event, first: bool = True) -> Charge:
    return charge(terms, events, (math.nan, terms.delta), first)  # no claim: what counts is events


def few(examples: int) -> Callable[..., object]:
    return settings(max_examples=examples, deadline=None, derandomize=True)


# Golden values: by hand, at whole orders


def by_hand(divergence: float, order: float, delta: float) -> float:
    """Divergence at one order as epsilon (Canonne, Kamath, Steinke 2020)."""
    return divergence + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)


def sampled_divergence(multiplier: float, rate: float, order: int) -> float:
    """A Poisson-sampled Gaussian at a whole order: the binomial sum, exactly (Mironov, Talwar, Zhang 2019)."""
    variance = multiplier**2
    terms = [
        comb(order, drawn) * (1 - rate) ** (order - drawn) * rate**drawn * math.exp(drawn * (drawn - 1) / 2 / variance)
        for drawn in range(order + 1)
    ]
    return math.log(math.fsum(terms)) / (order - 1)


@pytest.mark.parametrize(("order", "count"), [(2.0, 3), (3.4, 2), (4.0, 5), (18.0, 1)])
def test_gaussians_without_sampling_add_up_as_by_hand(order: float, count: int) -> None:
    terms = Terms(epsilon=1000, delta=1e-5, order=order)
    found, delta = total(terms, [charged(terms, PLAIN, first=False)] * count)
    assert delta == 1e-5
    assert found == pytest.approx(by_hand(count * order / 2, order, 1e-5), abs=2e-4)
    assert found >= by_hand(count * order / 2, order, 1e-5)


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps"), [(1.5, 0.04, 2250), (0.8, 0.01, 1000), (1.1, 256 / 6e4, 14040)]
)
@pytest.mark.parametrize("order", [2, 8])
def test_sampled_batches_add_up_as_by_hand(multiplier: float, rate: float, steps: int, order: int) -> None:
    terms = Terms(epsilon=1000, delta=1e-5, order=order)
    runs = [charged(terms, sampled(multiplier, rate, steps), first=False)] * 3
    expected = by_hand(3 * steps * sampled_divergence(multiplier, rate, order), order, 1e-5)
    assert expected <= total(terms, runs)[0] <= expected * 1.0001 + 2e-4


def test_two_runs_of_epsilon_5_by_each_filter() -> None:
    """Sampled batches as DP-SGD draws them; what the numerical accountants say of two fixed plans is 7.06."""
    five = sampled(0.63715, 128 / 60_000, 20_000)
    renyi = terms_of(TEN, order=3.5)
    assert total(renyi, [charged(renyi, five)] * 2)[0] == pytest.approx(7.874, abs=0.002)
    added = terms_of(Budget(10, 2e-5), rule="sum")
    assert total(added, [charge(added, [five], (5.0, 1e-5))] * 2) == (10.0, 2e-5)


def test_the_gaussian_filter_is_as_tight_as_composing_fixed_plans() -> None:
    terms = terms_of(TEN, rule="gaussian")
    plans = [Event(noise_multiplier=multiplier, sensitivity="C", count=2) for multiplier in (2.0, 3.0, 5.5)]
    found = total(terms, [charged(terms, plan, first=False) for plan in plans])[0]
    assert found == pytest.approx(accounting.certified_epsilon(plans, 1e-5), abs=2e-4)


# What is allowed


def test_what_fixed_plans_would_allow_is_refused_to_plans_that_are_chosen_one_after_the_other() -> None:
    """Whoever sees results may choose the next plan by them, so composing what was chosen proves nothing."""
    terms = terms_of(TEN)
    runs = [sampled(0.58, 128 / 60_000, 20_000), sampled(0.58, 128 / 60_000, 20_000)]
    assert accounting.epsilon(runs, 1e-5, "fourier") < 10
    assert not allows(terms, [charged(terms, run, first=False) for run in runs])


def gaussian_delta(epsilons: Array, distance: float) -> Array:
    """Delta of a Gaussian whose means are so many deviations apart."""
    return ndtr(distance / 2 - epsilons / distance) - np.exp(epsilons + log_ndtr(-distance / 2 - epsilons / distance))


def sampled_delta(epsilons: Array, rate: float, distance: float) -> Array:
    """Delta of one sampled Gaussian where the unit is there: beyond the place where densities stand at e^epsilon."""
    reached = epsilons > math.log1p(-rate)
    place = (np.log(np.where(reached, (np.exp(epsilons) - 1 + rate) / rate, 1.0)) + distance**2 / 2) / distance
    above = (1 - rate) * ndtr(-place) + rate * ndtr(distance - place) - np.exp(epsilons + log_ndtr(-place))
    return np.where(reached, above, -np.expm1(epsilons))


def test_choosing_the_second_run_by_the_first_misses_a_delta_that_each_pair_keeps() -> None:
    """The counterexample of docs/privacy.md: why an account needs a filter, and why composing the chosen is none."""
    first, seconds = PLAIN, (with_noise(0.5772)[0], sampled(0.2541, 1e-3, 1))
    for second in seconds:
        assert accounting.epsilon([first, second], 1e-5, "fourier") <= 10
    deviations = np.linspace(-9, 12, 20_001)
    left = 10 - (0.5 + deviations)  # of epsilon, after the loss of the first run, whose means are one deviation apart
    worst = np.maximum(gaussian_delta(left, 1 / 0.5772), sampled_delta(left, 1e-3, 1 / 0.2541))
    density = np.exp(-(deviations**2) / 2) / math.sqrt(2 * math.pi)
    assert np.trapezoid(density * worst, deviations) > 1.59e-5
    terms = terms_of(TEN)
    pairs = [[charged(terms, first, first=False), charged(terms, second, first=False)] for second in seconds]
    assert [allows(terms, pair) for pair in pairs] == [False, False]


def test_what_a_gaussian_filter_has_come_to_is_no_guarantee_and_not_stated() -> None:
    """Whoever stops where the loss of the first run is high, and else fills the account, has twice the delta."""
    terms = terms_of(TEN, rule="gaussian")
    one, small = Charge(amount=1.0), Charge(amount=1e-9)
    reached = total(terms, [one, small])[0]
    rest = filters._capacity(terms) - 1
    assert reached < 4.5
    deviations = np.linspace(-9, 12, 20_001)
    losses = 0.5 + deviations
    stopped = np.maximum(0, 1 - np.exp(reached - losses))
    filled = gaussian_delta(10 - losses, math.sqrt(rest))
    density = np.exp(-(deviations**2) / 2) / math.sqrt(2 * math.pi)
    missed = np.trapezoid(density * np.where(losses > reached, stopped, filled), deviations)
    assert missed > 1.9e-5
    assert filters.stated(terms, [one, small]) == (10, 1e-5)
    with pytest.raises(InputError, match="promises its terms, 10, and nothing below"):
        check_statement(stated(terms, reached), [PLAIN], (4.3772, 1e-5))
    check_statement(stated(terms, 10.0), [PLAIN], (4.3772, 1e-5))


def test_of_several_runs_the_delta_of_the_account_is_stated() -> None:
    claims = [Charge(amount=1.0, delta=1e-6), Charge(amount=2.0, delta=1e-6)]
    assert filters.stated(terms_of(TEN, rule="sum"), claims) == (3.0, 1e-5)
    assert filters.stated(terms_of(TEN, rule="sum"), claims[:1]) == (1.0, 1e-6)


def test_a_single_run_may_take_all_of_an_account_by_the_numerical_accountants() -> None:
    terms = terms_of(TEN)
    whole = charged(terms, sampled(0.53006, 128 / 60_000, 20_000))
    assert whole.alone is not None
    assert 9.9 < total(terms, [whole])[0] == whole.alone <= 10
    assert allows(terms, [whole])
    assert not allows(terms, [whole, Charge(amount=1e-6)])
    assert not allows(terms, [charged(terms, sampled(0.53006, 128 / 60_000, 20_000), first=False)])


def test_deltas_add_up_where_claims_are_added() -> None:
    terms = terms_of(TEN, rule="sum")
    assert allows(terms, [Charge(amount=3.0, delta=4e-6), Charge(amount=7.0, delta=6e-6)])
    assert not allows(terms, [Charge(amount=3.0, delta=4e-6), Charge(amount=7.0001, delta=6e-6)])
    assert not allows(terms, [Charge(amount=3.0, delta=4e-6), Charge(amount=1.0, delta=6.1e-6)])


def test_a_plan_beyond_all_accountants_is_never_allowed() -> None:
    terms = terms_of(TEN)
    with pytest.raises(BudgetError, match="no finite epsilon"):
        charged(terms, Event(noise_multiplier=1e-9, sensitivity="C", count=1))
    assert not allows(terms, [charged(terms, sampled(0.2, 0.9, 100), first=False)])


amounts = st.lists(st.floats(0, 3), min_size=1, max_size=6)


@few(60)
@given(amounts=amounts, rule=st.sampled_from(["renyi", "sum"]), more=st.floats(1e-3, 2))
def test_order_does_not_matter_and_another_run_is_never_free(amounts: list[float], rule: str, more: float) -> None:
    terms = terms_of(TEN, rule=rule)
    charges = [Charge(amount=amount, delta=1e-6 if rule == "sum" else 0.0) for amount in amounts]
    assert total(terms, charges) == total(terms, charges[::-1])
    larger = [*charges, Charge(amount=more, delta=1e-6 if rule == "sum" else 0.0)]
    assert total(terms, larger)[0] > total(terms, charges)[0]
    assert allows(terms, larger) <= allows(terms, charges)  # what is refused stays refused


@few(4)
@given(
    runs=st.lists(st.tuples(st.floats(0.7, 5), st.floats(1e-3, 0.2), st.integers(1, 300)), min_size=1, max_size=3),
    order=st.sampled_from([2.0, 3.4, 6.0, 12.0]),
)
def test_a_filter_is_never_below_the_numerical_accountants(runs: list[tuple[float, float, int]], order: float) -> None:
    terms = Terms(epsilon=1000, delta=1e-5, order=order)
    events = [sampled(*run) for run in runs]
    found = total(terms, [charged(terms, event, first=False) for event in events])[0]
    assert accounting.epsilon(events, 1e-5, "fourier") <= found


@pytest.mark.parametrize(
    ("rule", "taken"), [("renyi", [1.5, 0.3]), pytest.param("gaussian", [2.5], marks=pytest.mark.slow)]
)
def test_a_run_of_plain_noise_of_the_epsilon_that_is_said_to_be_left_fits(rule: str, taken: list[float]) -> None:
    terms = terms_of(TEN, rule=rule)
    charges, left = [Charge(amount=amount) for amount in taken], room(terms, [Charge(amount=sum(taken))])
    assert 1 < left < 10
    for share, fits in ((1.0, True), (1.1, False)):
        noise = accounting.calibrate(with_noise, Budget(left * share, 1e-5))
        again = charge(terms, with_noise(noise), (left, 1e-5), first=False)
        assert allows(terms, [*charges, again]) == fits


def with_noise(multiplier: float) -> list[Event]:
    return [PLAIN.model_copy(update={"noise_multiplier": multiplier})]


# Terms


def test_the_order_is_decided_by_the_budget_alone() -> None:
    assert terms_of(TEN).order == 3.4
    assert terms_of(Budget(1, 1e-6)).order == 22.0
    assert terms_of(TEN, order=5.0).order == 5.0
    assert terms_of(TEN, rule="sum").order is None


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"unit": "pixel"}, r"--unit: 'pixel' is unknown; choose record, client, person"),
        ({"adjacency": "near"}, r"--adjacency: 'near' is unknown; choose add-remove, replace-one"),
        ({"rule": "pld"}, r"--filter: 'pld' is unknown; choose renyi, gaussian, sum"),
        ({"order": 3.45}, r"order: 3.45 is not among those that are accounted; the nearest is 3.5"),
        ({"order": 1.5}, r"order: at 1.5 nothing fits into epsilon 10 at delta 1e-05; leave --order out"),
        ({"order": 1.0}, r"account: order: .* greater than 1.01"),
        ({"rule": "sum", "order": 3.4}, r"account: value: .*a renyi filter has one, and no other"),
    ],
)
def test_terms_that_cannot_be_are_refused_in_one_sentence(asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        terms_of(TEN, **asked)  # type: ignore[arg-type]


def test_another_unit_or_other_neighbours_are_refused_with_the_way_out() -> None:
    person = PLAIN.model_copy(update={"unit": "person"})
    with pytest.raises(InputError, match=r"about a record, but this run protects a person; .*--unit person"):
        charged(terms_of(TEN), person)
    replaced = terms_of(TEN, adjacency="replace-one")
    with pytest.raises(InputError, match=r"replace-one, but this run is accounted for add-remove only"):
        charged(replaced, PLAIN)
    routed = Event(noise_multiplier=5, sensitivity="2C", sampling=RoutedSampling(subsets=10), count=1)
    with pytest.raises(InputError, match="add-remove only"):
        charged(replaced, routed)
    assert charged(replaced, PLAIN.model_copy(update={"sensitivity": "2C"})).amount > 0
    with pytest.raises(InputError, match=r"this run samples its batches; open another account with --filter renyi"):
        charged(terms_of(TEN, rule="gaussian"), routed)


# What a certificate states


def stated(terms: Terms, epsilon: float, runs: int = 2, delta: float = 1e-5) -> Statement:
    return Statement(
        name="cells", identity="0" * 32, terms=terms, runs=runs, total_epsilon=epsilon, total_delta=delta
    )  # fmt: skip


def test_a_total_below_what_the_events_of_the_release_cost_by_the_filter_is_noticed() -> None:
    terms = terms_of(TEN)
    claim, alone = (4.3772, 1e-5), total(terms, [charged(terms, PLAIN, first=False)])[0]
    assert "fit into the total" in check_statement(stated(terms, alone), [PLAIN], claim)
    with pytest.raises(InputError, match="alone cost epsilon"):
        check_statement(stated(terms, 4.3772), [PLAIN], claim)
    check_statement(stated(terms, 4.3772, runs=1), [PLAIN], claim)  # one run alone: the numerical accountants
    with pytest.raises(InputError, match="alone cost epsilon"):
        check_statement(stated(terms, 4.2, runs=1), [PLAIN], claim)
    with pytest.raises(InputError, match="protects a person"):
        check_statement(stated(terms, 9.0), [PLAIN.model_copy(update={"unit": "person"})], claim)


def test_a_total_of_claims_is_held_against_the_claim() -> None:
    terms = terms_of(TEN, rule="sum")
    check_statement(stated(terms, 4.3772, runs=1), [PLAIN], (4.3772, 1e-5))
    with pytest.raises(InputError, match="alone cost epsilon"):
        check_statement(stated(terms, 4.0, runs=1), [PLAIN], (4.3772, 1e-5))


@pytest.mark.parametrize("rule", ["renyi", "gaussian", "sum"])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_smaller_delta_than_the_total_holds_for_is_noticed(rule: str, runs: int) -> None:
    with pytest.raises(InputError, match="is stated at delta 1e-12"):
        check_statement(stated(terms_of(TEN, rule=rule), 9.0, runs=runs, delta=1e-12), [PLAIN], (4.3772, 1e-5))


def test_a_statement_beyond_its_own_terms_is_none() -> None:
    with pytest.raises(ValueError, match="more than the account allows"):
        stated(terms_of(TEN), 10.01)
    with pytest.raises(ValueError, match="more than the account allows"):
        stated(terms_of(TEN), 9.0, delta=2e-5)
