"""Properties of all accountants, over events drawn at random: order, agreement, and budgets never overshot."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.privacy import accounting
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling, Sampling

# Figures are upper bounds that differ in the discretisation, by less than this.
RELATIVE, ABSOLUTE = 0.008, 2e-4

multipliers = st.floats(0.4, 20.0)
rates = st.floats(1e-4, 0.5)
deltas = st.floats(-8, -2).map(lambda exponent: 10**exponent)
samplings = st.one_of(
    st.just(NoSampling()),
    rates.map(lambda rate: PoissonSampling(rate=rate)),
    st.integers(2, 2000).map(lambda subsets: RoutedSampling(subsets=subsets)),
    st.integers(2, 500).map(lambda subsets: RevealedRouting(subsets=subsets, rows=4)),
)
counts = st.integers(1, 5000).map(lambda batches: 4 * batches)


@st.composite
def events(draw: Callable[..., object]) -> Event:
    sampling, count = draw(samplings), draw(counts)
    if sampling == NoSampling():
        count = min(count, 400)
    return Event(noise_multiplier=draw(multipliers), sensitivity="2C", sampling=sampling, count=count)


def few(examples: int) -> Callable[..., object]:
    return settings(max_examples=examples, deadline=None, derandomize=True)


def at_most(smaller: float, larger: float) -> bool:
    return smaller <= larger * (1 + RELATIVE) + ABSOLUTE


def changed(event: Event, **changes: object) -> list[Event]:
    return [event.model_copy(update=changes)]


@few(20)
@given(event=events(), delta=deltas)
def test_the_two_numerical_accountants_agree_within_one_percent_and_renyi_is_not_below(
    event: Event, delta: float
) -> None:
    first, second, loose = (accounting.epsilon([event], delta, name) for name in ("pld", "fourier", "renyi"))
    assert first == second or abs(first - second) <= 0.01 * second + ABSOLUTE
    assert at_most(max(first, second), loose)


@pytest.mark.slow
@few(12)
@given(first=events(), second=events(), delta=deltas)
def test_they_agree_on_two_kinds_of_event(first: Event, second: Event, delta: float) -> None:
    pld, fourier = (accounting.epsilon([first, second], delta, name) for name in ("pld", "fourier"))
    assert pld == fourier or abs(pld - fourier) <= 0.01 * fourier + ABSOLUTE


@pytest.mark.parametrize("accountant", ["fourier", "pld", "renyi"])
@few(8)
@given(event=events(), delta=deltas, factor=st.floats(1.05, 3.0), more=st.integers(1, 4))
def test_more_noise_fewer_executions_and_a_larger_delta_cost_less(
    accountant: str, event: Event, delta: float, factor: float, more: int
) -> None:
    def cost(events: list[Event], delta: float = delta) -> float:
        return accounting.epsilon(events, delta, accountant)

    usual = cost([event])
    assert at_most(cost(changed(event, noise_multiplier=event.noise_multiplier * factor)), usual)
    assert at_most(usual, cost(changed(event, count=event.count * (1 + more))))
    assert at_most(cost([event], min(0.5, delta * factor)), usual)


@few(10)
@given(
    multiplier=multipliers,
    rate=rates,
    subsets=st.integers(2, 1000),
    count=counts,
    factor=st.floats(1.1, 1.9),
    delta=deltas,
)
def test_rarer_sampling_costs_less(
    multiplier: float, rate: float, subsets: int, count: int, factor: float, delta: float
) -> None:
    def cost(sampling: Sampling) -> float:
        event = Event(noise_multiplier=multiplier, sensitivity="2C", sampling=sampling, count=count)
        return accounting.epsilon([event], delta, "fourier")

    assert at_most(cost(PoissonSampling(rate=rate)), cost(PoissonSampling(rate=rate * factor)))
    assert at_most(cost(RoutedSampling(subsets=math.ceil(subsets * factor))), cost(RoutedSampling(subsets=subsets)))
    assert at_most(cost(PoissonSampling(rate=1 / subsets)), cost(RoutedSampling(subsets=subsets)))
    revealed = RevealedRouting(subsets=subsets, rows=1)
    assert at_most(cost(RoutedSampling(subsets=subsets)), cost(revealed))
    assert at_most(cost(revealed), cost(NoSampling()))


@few(12)
@given(event=events(), delta=deltas, another=events())
def test_another_event_is_never_free_and_never_dearer_than_basic_composition(
    event: Event, delta: float, another: Event
) -> None:
    together = accounting.epsilon([event, another], delta, "fourier")
    alone = accounting.epsilon([event], delta, "fourier")
    halves = sum(accounting.epsilon([part], delta / 2, "fourier") for part in (event, another))
    assert at_most(alone, together)
    assert at_most(together, halves)


@few(15)
@given(event=events(), delta=deltas)
def test_delta_at_the_epsilon_of_a_delta_is_that_delta(event: Event, delta: float) -> None:
    epsilon = accounting.epsilon([event], delta, "fourier")
    if 0 < epsilon < math.inf:
        found = accounting.delta([event], epsilon, "fourier")
        # The two read the law on grids cut off at different places.
        assert 0.9 * delta <= found <= 1.05 * delta


@few(10)
@given(event=events(), delta=deltas)
def test_what_a_certificate_claims_both_accountants_confirm(event: Event, delta: float) -> None:
    claim = accounting.certified_epsilon([event], delta)
    assert all(accounting.epsilon([event], delta, name) <= claim for name in ("pld", "fourier"))


@few(6)
@given(sampling=samplings, count=counts, epsilon=st.floats(0.2, 20.0), delta=deltas)
def test_calibration_never_overshoots_and_wastes_less_than_half_a_percent_of_noise(
    sampling: Sampling, count: int, epsilon: float, delta: float
) -> None:
    def plan(noise: float) -> list[Event]:
        return [Event(noise_multiplier=noise, sensitivity="2C", sampling=sampling, count=count)]

    found = accounting.calibrate(plan, Budget(epsilon, delta))
    assert accounting.certified_epsilon(plan(found), delta) <= epsilon
    if found > 0.01:
        assert accounting.certified_epsilon(plan(found / 1.005), delta) > epsilon


def test_masses_so_far_apart_that_their_quotient_overflows_are_read_without_a_warning() -> None:
    event = Event(noise_multiplier=0.9375, sensitivity="2C", sampling=PoissonSampling(rate=0.134765625), count=39_768)
    assert accounting.epsilon([event], 1e-3, "pld") > 700
