"""Viewers: which events count for whom, and what the limits of a client cost."""

from __future__ import annotations

import math

import pytest

from understudy.errors import InputError
from understudy.privacy import accounting, viewers
from understudy.privacy.certificate import ClientLimits, Guarantee
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RoutedSampling

ROUTED = Event(
    noise_multiplier=1.07, sensitivity="2C", unit="client", sampling=RoutedSampling(subsets=866), count=960_000
)
LIMITS = ClientLimits(clients=866, rounds=960, queries=1000, slots=30, answers=1108)


def guarantee(viewer: str, adjacency: str = "add-remove", **changes) -> Guarantee:
    return Guarantee(epsilon=1, delta=1.15e-3, unit="client", viewer=viewer, adjacency=adjacency, **changes)


def test_the_public_sees_the_events_of_the_ledger():
    assert viewers.events_seen([ROUTED], guarantee("public")) == (ROUTED,)


def test_a_server_sees_plain_gaussians_up_to_the_limit_of_a_client():
    (seen,) = viewers.events_seen([ROUTED], guarantee("server", "replace-one", limits=LIMITS))
    assert (seen.sampling, seen.count, seen.noise_multiplier) == (NoSampling(), 1108, 1.07)
    for accountant in ("pld", "fourier"):  # the paper's 599 is this by a looser way
        assert 570 < accounting.epsilon([seen], 1.15e-3, accountant) < 590


def test_colluding_clients_see_queries_that_went_to_the_others():
    (seen,) = viewers.events_seen([ROUTED], guarantee("client", coalition=10))
    assert (seen.sampling, seen.count) == (RoutedSampling(subsets=856), 960_000)


@pytest.mark.parametrize(
    ("claim", "event", "words"),
    [
        (guarantee("server", "add-remove", limits=LIMITS), ROUTED, "only replace-one"),
        (guarantee("server", "replace-one"), ROUTED, "no limit of answers"),
        (guarantee("client"), ROUTED, "size of the coalition"),
        (guarantee("client", coalition=866), ROUTED, "leaves none of 866"),
        (guarantee("client", "replace-one", coalition=1), ROUTED, "add-remove only"),
        (
            guarantee("server", "replace-one", limits=LIMITS),
            Event(noise_multiplier=1, sensitivity="C", unit="client", sampling=PoissonSampling(rate=0.1), count=5),
            "not sanitized before the server sees them",
        ),
    ],
)
def test_a_claim_without_proof_is_refused(claim, event, words):
    with pytest.raises(InputError, match=words):
        viewers.events_seen([event], claim)


def exact_tail(trials: int, clients: int, most: int) -> float:
    """By the definition, with whole numbers."""
    ways = sum(math.comb(trials, count) * (clients - 1) ** (trials - count) for count in range(most + 1, trials + 1))
    return ways / clients**trials


@pytest.mark.parametrize(
    ("trials", "clients", "most"), [(20, 3, 10), (20, 3, 19), (200, 7, 60), (50, 2, 25), (9, 3, 9)]
)
def test_the_tail_of_a_binomial_is_never_understated(trials, clients, most):
    exact = exact_tail(trials, clients, most)
    assert exact <= viewers.binomial_tail(trials, clients, most) <= exact * (1 + 1e-6) + 1e-299


@pytest.mark.parametrize("chance", [1e-3, 1e-9, 1e-20])
def test_the_smallest_limit_is_the_smallest(chance):
    limit = viewers.smallest_limit(2000, 20, chance)
    assert viewers.binomial_tail(2000, 20, limit) <= chance < viewers.binomial_tail(2000, 20, limit - 1)


def test_limits_that_cannot_be_reached_cost_nothing_and_tight_ones_cost_much():
    free = ClientLimits(clients=3, rounds=2, queries=10, slots=10, answers=20)
    tight = ClientLimits(clients=3, rounds=2, queries=10, slots=4, answers=20)
    assert viewers.limits_delta(free, 10) == viewers.limits_delta(free, 1e4) == 0
    assert viewers.limits_delta(tight, 10) > 1
    assert viewers.limits_delta(tight, 1e4) == math.inf
