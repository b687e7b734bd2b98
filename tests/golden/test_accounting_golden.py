"""The published figures, recomputed: every one of them must come out of both numerical accountants.

A reference with four decimals is known to 1e-4 and a result must lie in [reference - 0.0005, 1.01 * reference]. A
reference printed with fewer digits is rounded, so that its lower end is half a unit of the last digit further down.
"""

from __future__ import annotations

import pytest

from understudy.privacy import accounting
from understudy.privacy.accounting import fourier, pld
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, PoissonSampling, RevealedRouting, RoutedSampling

NUMERICAL = ("pld", "fourier")

# noise multiplier, subsets, queries, delta, epsilon
ROUTED = [
    (1.07, 1000, 640_000, 1e-5, 5.5080),
    (0.85, 1000, 640_000, 1e-5, 9.0290),
    (0.815, 1000, 640_000, 1e-5, 10.0120),
    (3.41, 1000, 640_000, 1e-5, 0.9916),
    (1.0, 100, 10_000, 1e-5, 8.0840),
    (2.0, 500, 100_000, 1e-5, 1.5404),
    (1.07, 866, 960_000, 1e-5, 8.3252),
    (1.07, 866, 960_000, 1.15e-3, 6.1609),
]
# noise multiplier, rate, steps, epsilon at 1e-5, digits after the point of that reference
POISSON = [
    (1.0, 128 / 60_000, 450_000, 9.28, 2),
    (2.0, 512 / 60_000, 174_000, 9.39, 2),
    (5.0, 128 / 60_000, 325_000, 0.914, 3),
    (14.0, 512 / 60_000, 165_000, 0.920, 3),
    (1.0, 1.0, 1, 4.377178, 6),
    (1.5, 0.04, 2250, 6.768787, 6),
    (1.0, 64 / 60_000, 10_000, 0.510684, 6),
    (1.1, 256 / 60_000, 14_040, 2.379644, 6),
    (0.8, 0.01, 1000, 3.141018, 6),
]


def routed(multiplier: float, subsets: int, count: int) -> list[Event]:
    sampling = RoutedSampling(subsets=subsets)
    return [Event(noise_multiplier=multiplier, sensitivity="2C", sampling=sampling, count=count)]


def poisson(multiplier: float, rate: float, count: int) -> list[Event]:
    return [Event(noise_multiplier=multiplier, sampling=PoissonSampling(rate=rate), count=count)]


def assert_golden(found: float, reference: float, digits: int = 4) -> None:
    assert reference - max(0.0005, 0.5 * 10**-digits) <= found <= 1.01 * reference


@pytest.mark.parametrize("accountant", NUMERICAL)
@pytest.mark.parametrize(("multiplier", "subsets", "count", "delta", "reference"), ROUTED)
def test_routed_queries(
    accountant: str, multiplier: float, subsets: int, count: int, delta: float, reference: float
) -> None:
    assert_golden(accounting.epsilon(routed(multiplier, subsets, count), delta, accountant), reference)


@pytest.mark.parametrize(("multiplier", "subsets", "count", "delta", "reference"), ROUTED)
def test_routed_queries_converge_to_the_reference(
    multiplier: float, subsets: int, count: int, delta: float, reference: float
) -> None:
    found = fourier.epsilon(routed(multiplier, subsets, count), delta, grid=2e-5)
    assert found == pytest.approx(reference, abs=3e-4)


@pytest.mark.parametrize("accountant", NUMERICAL)
@pytest.mark.parametrize(("multiplier", "rate", "count", "reference", "digits"), POISSON)
def test_poisson_sampled_steps(
    accountant: str, multiplier: float, rate: float, count: int, reference: float, digits: int
) -> None:
    assert_golden(accounting.epsilon(poisson(multiplier, rate, count), 1e-5, accountant), reference, digits)


@pytest.mark.parametrize(
    ("multiplier", "rate", "count", "converged"),
    [(5.0, 128 / 60_000, 325_000, 0.9094), (14.0, 512 / 60_000, 165_000, 0.9181)],
)
def test_the_usual_grid_costs_half_a_percent_where_steps_lose_little(
    multiplier: float, rate: float, count: int, converged: float
) -> None:
    events = poisson(multiplier, rate, count)
    for accountant in (pld, fourier):
        assert accountant.epsilon(events, 1e-5, grid=1e-5) == pytest.approx(converged, abs=2e-4)
        assert converged < accountant.epsilon(events, 1e-5) < 1.006 * converged


@pytest.mark.parametrize("accountant", NUMERICAL)
@pytest.mark.parametrize(
    ("subsets", "reference", "digits"), [(865, 6.17, 2), (856, 6.26, 2), (359, 20.5, 1), (96, 163, 0)]
)
def test_federated_routing_over_fewer_slots(accountant: str, subsets: int, reference: float, digits: int) -> None:
    assert_golden(accounting.epsilon(routed(1.07, subsets, 960_000), 1.15e-3, accountant), reference, digits)


@pytest.mark.parametrize("accountant", NUMERICAL)
def test_published_gs_wgan_with_the_routing_revealed_costs_610(accountant: str) -> None:
    sampling = RevealedRouting(subsets=1000, rows=32)
    events = [Event(noise_multiplier=1.07, sensitivity="2C", sampling=sampling, count=20_000 * 32)]
    assert_golden(accounting.epsilon(events, 1e-5, accountant), 610, 0)


@pytest.mark.parametrize("accountant", NUMERICAL)
def test_published_gs_wgan_with_one_secret_draw_a_step_costs_347_or_329(accountant: str) -> None:
    whole_batch = 1.07 / 32**0.5
    assert_golden(accounting.epsilon(routed(whole_batch, 1000, 20_000), 1e-5, accountant), 347, 0)
    assert_golden(accounting.epsilon(poisson(whole_batch, 1e-3, 20_000), 1e-5, accountant), 329, 0)


@pytest.mark.parametrize("accountant", NUMERICAL)
def test_a_federated_server_sees_1108_plain_answers(accountant: str) -> None:
    assert_golden(accounting.epsilon([Event(noise_multiplier=1.07, count=1108)], 1.15e-3, accountant), 578, 0)


@pytest.mark.parametrize(("multiplier", "reference"), [(1.07, 9.99), (0.85, 13.46)])
def test_theorem_a1_gives_the_published_renyi_figures(multiplier: float, reference: float) -> None:
    found = accounting.epsilon(routed(multiplier, 1000, 640_000), 1e-5, "renyi")
    assert found == pytest.approx(reference, abs=0.005)


@pytest.mark.parametrize(
    ("multiplier", "rate", "count", "reference"),
    [
        (1.5, 0.04, 2250, 7.329335),
        (1.0, 64 / 60_000, 10_000, 0.812680),
        (1.1, 256 / 60_000, 14_040, 2.594363),
        (0.8, 0.01, 1000, 3.695613),
    ],
)
def test_poisson_renyi_figures(multiplier: float, rate: float, count: int, reference: float) -> None:
    assert accounting.epsilon(poisson(multiplier, rate, count), 1e-5, "renyi") == pytest.approx(reference, abs=1e-6)


@pytest.mark.parametrize(("epsilon", "reference"), [(1.0, 1.32429), (10.0, 0.53006)])
def test_calibrated_poisson_multipliers(epsilon: float, reference: float) -> None:
    found = accounting.calibrate(lambda noise: poisson(noise, 128 / 60_000, 20_000), Budget(epsilon, 1e-5))
    assert found == pytest.approx(reference, rel=5e-4)


def test_calibrated_multiplier_of_a_shrunken_federation() -> None:
    found = accounting.calibrate(lambda noise: routed(noise, 359, 960_000), Budget(10, 1.15e-3))
    assert found == pytest.approx(1.51, abs=0.005)
