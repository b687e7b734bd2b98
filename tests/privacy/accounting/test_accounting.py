"""What the accountants promise, beyond the published figures: exact cases, soundness, order, limits, refusals."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import optimize, stats

from understudy.errors import BudgetError, InputError
from understudy.privacy import accounting
from understudy.privacy.accounting import fourier, pld
from understudy.privacy.budget import Budget
from understudy.privacy.events import Event, NoSampling, PoissonSampling, RevealedRouting, RoutedSampling

NUMERICAL = ("pld", "fourier")
ALL = ("pld", "fourier", "renyi")
BOTH = pytest.mark.parametrize("accountant", NUMERICAL)


def event(multiplier: float, sampling: object = None, count: int = 1) -> Event:
    sensitivity = "2C" if isinstance(sampling, RoutedSampling | RevealedRouting) else None
    return Event(noise_multiplier=multiplier, sensitivity=sensitivity, sampling=sampling or NoSampling(), count=count)


def gaussian_delta(epsilon: float, distance: float) -> float:
    first = stats.norm.cdf(distance / 2 - epsilon / distance)
    return float(first - math.exp(epsilon + stats.norm.logcdf(-distance / 2 - epsilon / distance)))


def gaussian_epsilon(delta: float, distance: float) -> float:
    return float(optimize.brentq(lambda e: gaussian_delta(e, distance) - delta, 0.0, distance**2 + 40 * distance))


def hockey_stick(epsilon: float, p: tuple[tuple[float, float], ...], q: tuple[tuple[float, float], ...]) -> float:
    """The divergence of two mixtures of unit Gaussians, each a tuple of (weight, mean), by plain summation."""
    x = np.linspace(-14.0, 14.0, 200_001)
    density_p = sum(weight * stats.norm.pdf(x, mean) for weight, mean in p)
    density_q = sum(weight * stats.norm.pdf(x, mean) for weight, mean in q)
    return float(np.trapezoid(np.maximum(density_p - math.exp(epsilon) * density_q, 0.0), x))


class TestExactCases:
    @BOTH
    @pytest.mark.parametrize(("multiplier", "count", "delta"), [(1.0, 1, 1e-5), (4.0, 300, 1e-9), (30.0, 20, 1e-2)])
    def test_unsampled_executions_are_one_gaussian(
        self, accountant: str, multiplier: float, count: int, delta: float
    ) -> None:
        exact = gaussian_epsilon(delta, math.sqrt(count) / multiplier)
        found = accounting.epsilon([event(multiplier, count=count)], delta, accountant)
        assert exact - 1e-7 <= found <= 1.001 * exact + 1e-4

    @BOTH
    def test_unsampled_executions_of_different_noise_add_in_squares(self, accountant: str) -> None:
        mixed = [event(2.0, count=3), event(5.0, count=10), event(2.0, count=1)]
        exact = gaussian_epsilon(1e-6, math.sqrt(4 / 2.0**2 + 10 / 5.0**2))
        assert accounting.epsilon(mixed, 1e-6, accountant) == pytest.approx(exact, rel=1e-3)

    @BOTH
    @pytest.mark.parametrize(
        "sampling", [PoissonSampling(rate=1.0), RoutedSampling(subsets=1), RevealedRouting(subsets=1, rows=1)]
    )
    def test_sampling_that_leaves_nothing_to_chance_is_none(self, accountant: str, sampling: object) -> None:
        plain = accounting.epsilon([event(3.0, count=12)], 1e-5, accountant)
        assert accounting.epsilon([event(3.0, sampling, 12)], 1e-5, accountant) == pytest.approx(plain, rel=1e-4)

    @BOTH
    def test_almost_certain_sampling_is_almost_none(self, accountant: str) -> None:
        sampled = [event(30.0, PoissonSampling(rate=1 - 1e-9), 1000)]
        exact = gaussian_epsilon(1e-7, math.sqrt(1000) / 30)
        assert exact - 1e-6 <= accounting.epsilon(sampled, 1e-7, accountant) <= 1.002 * exact

    @BOTH
    @pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
    def test_one_poisson_step_has_the_larger_divergence_of_both_directions(
        self, accountant: str, epsilon: float
    ) -> None:
        rate, multiplier = 0.2, 0.7
        mixture, plain = ((1 - rate, 0.0), (rate, 1 / multiplier)), ((1.0, 0.0),)
        exact = max(hockey_stick(epsilon, mixture, plain), hockey_stick(epsilon, plain, mixture))
        found = accounting.delta([event(multiplier, PoissonSampling(rate=rate))], epsilon, accountant)
        assert exact - 1e-9 <= found <= 1.001 * exact + 1e-8

    @BOTH
    @pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.7, 2.0])
    def test_one_routed_query_has_the_profile_of_joint_convexity(self, accountant: str, epsilon: float) -> None:
        subsets, multiplier = 20, 0.8
        order = 1 + subsets * math.expm1(epsilon)
        exact = gaussian_delta(math.log(order), 1 / multiplier) / subsets
        found = accounting.delta([event(multiplier, RoutedSampling(subsets=subsets))], epsilon, accountant)
        assert exact - 1e-12 <= found <= 1.001 * exact + 1e-8

    @BOTH
    def test_revealed_routing_is_a_mixture_of_gaussians(self, accountant: str) -> None:
        draws, subsets, rows, multiplier = 200, 50, 4, 2.0
        weights = stats.binom(draws, 1 / subsets).pmf(range(draws + 1))
        for epsilon in (1.0, 5.0, 12.0):
            exact = sum(
                weight * gaussian_delta(epsilon, math.sqrt(rows * times) / multiplier)
                for times, weight in enumerate(weights)
                if times
            )
            sampling = RevealedRouting(subsets=subsets, rows=rows)
            found = accounting.delta([event(multiplier, sampling, draws * rows)], epsilon, accountant)
            assert exact - 1e-15 <= found <= 1.002 * exact

    @pytest.mark.parametrize("accountant", ALL)
    def test_no_events_cost_nothing(self, accountant: str) -> None:
        assert accounting.epsilon([], 1e-5, accountant) == 0.0
        assert accounting.certified_epsilon([], 1e-5) == 0.0

    @BOTH
    def test_no_events_need_no_delta(self, accountant: str) -> None:
        assert accounting.delta([], 1.0, accountant) == 0.0


class TestSoundness:
    @BOTH
    @pytest.mark.parametrize(
        ("others", "present", "absent"), [(0.0, 1.0, 0.0), (0.5, 1.0, 0.0), (1.0, 0.0, 1.0), (-0.2, 0.8, 0.3)]
    )
    def test_a_routed_query_covers_any_three_answers_within_the_distance(
        self, accountant: str, others: float, present: float, absent: float
    ) -> None:
        subsets, distance = 5, 1 / 0.6
        events = [event(0.6, RoutedSampling(subsets=subsets))]
        rest = (1 - 1 / subsets, others * distance)
        with_unit = (rest, (1 / subsets, present * distance))
        without_unit = (rest, (1 / subsets, absent * distance))
        for epsilon in (0.0, 0.1, 0.5, 1.5):
            actual = max(hockey_stick(epsilon, with_unit, without_unit), hockey_stick(epsilon, without_unit, with_unit))
            assert accounting.delta(events, epsilon, accountant) >= actual - 1e-9

    @BOTH
    def test_routed_lies_between_poisson_of_the_same_rate_and_revealed(self, accountant: str) -> None:
        hidden = accounting.epsilon([event(1.0, PoissonSampling(rate=0.01), 2000)], 1e-5, accountant)
        routed = accounting.epsilon([event(1.0, RoutedSampling(subsets=100), 2000)], 1e-5, accountant)
        known = accounting.epsilon([event(1.0, RevealedRouting(subsets=100, rows=1), 2000)], 1e-5, accountant)
        assert hidden < routed < known

    @BOTH
    def test_epsilon_and_delta_are_inverse(self, accountant: str) -> None:
        events = [event(1.1, RoutedSampling(subsets=200), 5000), event(8.0, count=3)]
        for delta in (1e-3, 1e-6):
            epsilon = accounting.epsilon(events, delta, accountant)
            assert 0.999 * delta <= accounting.delta(events, epsilon, accountant) <= 1.001 * delta

    def test_the_tilted_transform_keeps_its_digits_where_delta_is_tiny(self) -> None:
        sampled = [event(30.0, PoissonSampling(rate=1 - 1e-12), 2000)]
        exact = gaussian_epsilon(1e-14, math.sqrt(2000) / 30)
        assert exact - 1e-6 <= fourier.epsilon(sampled, 1e-14) <= 1.002 * exact

    def test_pld_does_not_read_its_own_rounding_errors(self) -> None:
        events = [event(1.07, RoutedSampling(subsets=1000), 640_000)]
        for delta in (1e-8, 1e-9, 1e-10, 1e-12):
            exact = fourier.epsilon(events, delta)
            assert exact - 1e-4 <= pld.epsilon(events, delta) <= 1.12 * exact

    def test_refining_the_grid_changes_little_and_mostly_downwards(self) -> None:
        events = [event(1.07, RoutedSampling(subsets=1000), 640_000)]
        coarse, usual, fine = (pld.epsilon(events, 1e-5, grid=grid) for grid in (3e-4, 1e-4, 5e-5))
        assert fine - 1e-3 <= usual <= coarse
        assert coarse == pytest.approx(5.5080, rel=0.01)
        assert fine == pytest.approx(5.5080, rel=0.001)

    def test_pld_agrees_with_the_librarys_own_poisson_distribution(self) -> None:
        from dp_accounting.pld import privacy_loss_distribution

        library = privacy_loss_distribution.from_gaussian_mechanism(1.1, sampling_prob=0.004)
        reference = library.self_compose(5000).get_epsilon_for_delta(1e-5)
        found = pld.epsilon([event(1.1, PoissonSampling(rate=0.004), 5000)], 1e-5, grid=1e-4)
        assert found == pytest.approx(reference, abs=1e-5)


class TestComposition:
    @BOTH
    def test_only_the_sums_of_equal_events_matter(self, accountant: str) -> None:
        sampling = PoissonSampling(rate=0.01)
        whole = [event(1.2, sampling, 300), event(4.0, RoutedSampling(subsets=10), 50)]
        parts = [event(1.2, sampling, 100), event(4.0, RoutedSampling(subsets=10), 50), event(1.2, sampling, 200)]
        found = accounting.epsilon(parts, 1e-5, accountant)
        assert found == pytest.approx(accounting.epsilon(whole, 1e-5, accountant), rel=1e-9)

    @BOTH
    @pytest.mark.parametrize(
        "other", [NoSampling(), RoutedSampling(subsets=30), RevealedRouting(subsets=30, rows=2)], ids=lambda s: s.kind
    )
    def test_two_kinds_cost_more_than_either_and_less_than_basic_composition(
        self, accountant: str, other: object
    ) -> None:
        first, second = [event(1.0, PoissonSampling(rate=0.02), 500)], [event(6.0, other, 60)]
        together = accounting.epsilon(first + second, 1e-5, accountant)
        alone = [accounting.epsilon(events, 1e-5, accountant) for events in (first, second)]
        halves = [accounting.epsilon(events, 5e-6, accountant) for events in (first, second)]
        assert max(alone) < together < sum(halves)

    def test_accountants_agree_on_four_kinds_at_once(self) -> None:
        events = [
            event(3.0, count=2),
            event(1.0, PoissonSampling(rate=0.01), 500),
            event(1.5, RoutedSampling(subsets=100), 2000),
            event(9.0, RevealedRouting(subsets=20, rows=5), 500),
        ]
        first, second, loose = (accounting.epsilon(events, 1e-5, accountant) for accountant in ALL)
        assert first == pytest.approx(second, rel=1e-3)
        assert loose > max(first, second)


class TestCertifiedFigure:
    @pytest.mark.parametrize(
        "events",
        [
            [event(1.07, RoutedSampling(subsets=1000), 640_000)],
            [event(0.9, PoissonSampling(rate=0.003), 20_000)],
            [event(1.5, count=4), event(2.0, RoutedSampling(subsets=50), 900)],
        ],
    )
    def test_is_the_larger_figure_rounded_up_to_four_decimals(self, events: list[Event]) -> None:
        claim = accounting.certified_epsilon(events, 1e-5)
        figures = [accounting.epsilon(events, 1e-5, accountant) for accountant in NUMERICAL]
        assert claim == round(claim, 4)
        assert max(figures) < claim < max(figures) + 3e-4

    def test_leaves_room_for_another_machines_last_digits(self) -> None:
        # Multipliers that differ by rounding errors stand for a machine that computes with other rounding errors.
        for multiplier in np.linspace(1.0, 1.01, 4):
            claim = accounting.certified_epsilon([event(multiplier, PoissonSampling(rate=0.01), 1000)], 1e-5)
            for factor in (1 - 1e-9, 1 + 1e-9):
                elsewhere = [event(multiplier * factor, PoissonSampling(rate=0.01), 1000)]
                assert all(accounting.epsilon(elsewhere, 1e-5, accountant) <= claim for accountant in NUMERICAL)

    def test_holds_where_rounding_errors_eat_into_delta(self) -> None:
        events = [event(1.07, RoutedSampling(subsets=1000), 640_000)]
        claim = accounting.certified_epsilon(events, 1e-8)
        assert all(accounting.epsilon(events, 1e-8, accountant) <= claim for accountant in NUMERICAL)

    def test_of_an_unbounded_event_is_infinite(self) -> None:
        assert accounting.certified_epsilon([event(1e-6)], 1e-5) == math.inf


class TestLimits:
    @pytest.mark.parametrize("delta", [1e-12, 0.5])
    @pytest.mark.parametrize("count", [1, 10**7])
    @pytest.mark.parametrize("multiplier", [1e-300, 1e-3, 1e6, 1e300])
    @pytest.mark.parametrize(
        "sampling",
        [NoSampling(), PoissonSampling(rate=1e-9), PoissonSampling(rate=0.999), RoutedSampling(subsets=1000)],
        ids=lambda sampling: sampling.kind,
    )
    def test_extreme_events_give_an_upper_bound(
        self, sampling: object, multiplier: float, count: int, delta: float
    ) -> None:
        events = [event(multiplier, sampling, count)]
        figures = {accountant: accounting.epsilon(events, delta, accountant) for accountant in ALL}
        assert all(figure >= 0 for figure in figures.values())
        assert figures["renyi"] >= 0.999 * min(figures["pld"], figures["fourier"]) - 1e-4
        if multiplier == 1e-300:
            assert set(figures.values()) == {math.inf}

    @BOTH
    @pytest.mark.parametrize("delta", [1e-12, 1e-5])
    def test_a_hit_that_tells_everything_costs_its_whole_loss(self, accountant: str, delta: float) -> None:
        found = accounting.epsilon([event(1e-2, RoutedSampling(subsets=1000))], delta, accountant)
        order = optimize.brentq(lambda inner: gaussian_delta(inner, 100.0) - 1000 * delta, 4000, 8000)
        exact = order - math.log(1000)
        assert exact - 1e-6 <= found <= 1.001 * exact

    def test_more_executions_than_can_be_counted_are_unbounded(self) -> None:
        events = [event(1e5, RoutedSampling(subsets=1000), 10**400)]
        assert all(accounting.epsilon(events, 1e-5, accountant) == math.inf for accountant in ALL)
        assert accounting.delta(events, 1.0) == 1.0

    @BOTH
    def test_a_revealed_run_with_very_many_draws_stays_cheap_and_sound(self, accountant: str) -> None:
        events = [event(100.0, RevealedRouting(subsets=2, rows=1), 10**6)]
        found = accounting.epsilon(events, 1e-5, accountant)
        assert gaussian_epsilon(1e-5, math.sqrt(5e5) / 100) < found < gaussian_epsilon(1e-5, math.sqrt(5.05e5) / 100)


class TestRefusals:
    @pytest.mark.parametrize("accountant", ALL)
    @pytest.mark.parametrize("sampling", ["shuffled", {"kind": "shuffled"}, None])
    def test_an_unknown_sampling_is_never_guessed(self, accountant: str, sampling: object) -> None:
        strange = Event.model_construct(mechanism="gaussian", noise_multiplier=1.0, sampling=sampling, count=1)
        with pytest.raises(InputError, match=r"event 1: sampling .* unknown"):
            accounting.epsilon([event(1.0), strange], 1e-5, accountant)

    def test_each_accountant_refuses_an_unknown_sampling_by_itself(self) -> None:
        from understudy.privacy.accounting import renyi

        strange = Event.model_construct(mechanism="gaussian", noise_multiplier=1.0, sampling="shuffled", count=1)
        for module in (pld, fourier, renyi):
            with pytest.raises(InputError, match="'shuffled' is unknown"):
                module.epsilon([strange], 1e-5)

    def test_an_unknown_mechanism_is_never_guessed(self) -> None:
        strange = Event.model_construct(mechanism="laplace", noise_multiplier=1.0, sampling=NoSampling(), count=1)
        with pytest.raises(InputError, match="event 0"):
            accounting.certified_epsilon([strange], 1e-5)
        with pytest.raises(InputError, match="event 0"):
            accounting.delta([strange], 1.0)

    def test_an_unknown_accountant_is_named(self) -> None:
        with pytest.raises(InputError, match="accountant: 'moments' is unknown; choose pld, fourier or renyi"):
            accounting.epsilon([event(1.0)], 1e-5, "moments")
        with pytest.raises(InputError, match="accountant: 'renyi' gives no delta"):
            accounting.delta([event(1.0)], 1.0, "renyi")

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
    def test_delta_lies_between_0_and_1(self, delta: float) -> None:
        with pytest.raises(InputError, match="delta"):
            accounting.epsilon([event(1.0)], delta)

    @pytest.mark.parametrize("epsilon", [-0.1, math.inf, math.nan])
    def test_epsilon_is_finite_and_not_negative(self, epsilon: float) -> None:
        with pytest.raises(InputError, match="epsilon"):
            accounting.delta([event(1.0)], epsilon)


class TestCalibration:
    @pytest.mark.parametrize(
        ("sampling", "count", "budget"),
        [
            (RoutedSampling(subsets=1000), 640_000, Budget(10, 1e-5)),
            (PoissonSampling(rate=512 / 60_000), 174_000, Budget(1, 1e-5)),
            (NoSampling(), 1, Budget(0.5, 1e-6)),
            (RevealedRouting(subsets=100, rows=4), 4000, Budget(3, 1e-5)),
            (RoutedSampling(subsets=1000), 640_000, Budget(8, 1e-11)),
        ],
    )
    def test_finds_the_least_noise_within_the_budget(self, sampling: object, count: int, budget: Budget) -> None:
        found = accounting.calibrate(lambda noise: [event(noise, sampling, count)], budget)
        assert accounting.certified_epsilon([event(found, sampling, count)], budget.delta) <= budget.epsilon
        assert accounting.certified_epsilon([event(found / 1.002, sampling, count)], budget.delta) > budget.epsilon
        assert found == float(f"{found:.4e}")

    def test_counts_events_that_the_noise_does_not_touch(self) -> None:
        fixed = event(6.0, count=1)

        def plan(noise: float) -> list[Event]:
            return [fixed, event(noise, PoissonSampling(rate=0.01), 1000)]

        budget = Budget(2, 1e-5)
        alone = accounting.calibrate(lambda noise: plan(noise)[1:], budget)
        together = accounting.calibrate(plan, budget)
        assert together > alone
        assert accounting.certified_epsilon(plan(together), budget.delta) <= budget.epsilon

    def test_refuses_a_budget_that_no_noise_can_meet(self) -> None:
        with pytest.raises(BudgetError, match=r"noise_multiplier: even 1e\+06 costs epsilon .* budget of 1;") as error:
            accounting.calibrate(lambda noise: [event(1.0), event(noise)], Budget(1, 1e-5))
        assert error.value.exit_code == 3

    def test_refuses_beyond_the_stated_largest_multiplier(self) -> None:
        with pytest.raises(BudgetError, match="even 2 costs"):
            accounting.calibrate(lambda noise: [event(noise)], Budget(1, 1e-5), largest=2.0)

    def test_never_goes_below_the_smallest_multiplier(self) -> None:
        assert accounting.calibrate(lambda noise: [event(noise)], Budget(50_000, 1e-5)) == 0.01


class TestIndependence:
    def run(self, code: str) -> None:
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_accounting_needs_no_torch(self) -> None:
        self.run(
            "import sys\n"
            "from understudy.privacy import accounting\n"
            "from understudy.privacy.events import Event\n"
            "events = [Event(noise_multiplier=1.0, count=1)]\n"
            "for name in ('pld', 'fourier', 'renyi'): assert accounting.epsilon(events, 1e-5, name) > 4\n"
            "assert 'torch' not in sys.modules\n"
        )

    def test_importing_accounting_loads_no_accountant(self) -> None:
        self.run(
            "import sys\n"
            "import understudy.privacy.accounting\n"
            "assert not {'dp_accounting', 'scipy'} & set(sys.modules)\n"
        )

    def test_the_fourier_accountant_shares_no_code_with_pld(self) -> None:
        self.run(
            "import sys\n"
            "from understudy.privacy.accounting import fourier\n"
            "from understudy.privacy.events import Event\n"
            "assert fourier.epsilon([Event(noise_multiplier=1.0, count=1)], 1e-5) > 4\n"
            "loaded = set(sys.modules)\n"
            "assert 'dp_accounting' not in loaded\n"
            "assert not {'understudy.privacy.accounting.' + name for name in ('pld', 'renyi')} & loaded\n"
        )
