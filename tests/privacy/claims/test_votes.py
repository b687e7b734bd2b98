"""The data-dependent cost of votes: never below what exact laws of winners give, and kept apart from any guarantee."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import logsumexp

from understudy.api import release_early, resume
from understudy.errors import InputError
from understudy.privacy.accounting import renyi
from understudy.privacy.accounting.renyi import ORDERS
from understudy.privacy.claims.statements import kept_claims
from understudy.privacy.claims.votes import VoteRecord, chance_of_another_winner, renyi_of_winner
from understudy.privacy.events import Event
from understudy.report.report import ReportOptions, write_report
from understudy.runs.folder import RunFolder

from ...helpers.data import tiny_data
from ...helpers.runs import interrupt, tiny_train


def law_of_winner(counts: list[int], deviation: float) -> np.ndarray:
    """How likely each bin wins a noisy vote, by numerical integration over the winning count."""

    def chance(winner: int) -> float:
        def density(x: float) -> float:
            others = [stats.norm.cdf((x - n) / deviation) for place, n in enumerate(counts) if place != winner]
            return float(stats.norm.pdf((x - counts[winner]) / deviation) / deviation * math.prod(others))

        middle, reach = counts[winner], 12 * deviation
        points = [n for n in counts if abs(n - middle) < reach]
        return float(integrate.quad(density, middle - reach, middle + reach, points=points, epsabs=1e-16, limit=200)[0])

    return np.array([chance(winner) for winner in range(len(counts))])


def neighbours(counts: list[int]) -> list[list[int]]:
    """All histograms in which one teacher votes otherwise."""
    found = []
    for here in range(len(counts)):
        for there in range(len(counts)):
            if here != there and counts[here]:
                moved = list(counts)
                moved[here] -= 1
                moved[there] += 1
                found.append(moved)
    return found


HISTOGRAMS = [
    ([40, 0, 0], 4.0),
    ([38, 1, 1], 6.0),
    ([30, 6, 4], 5.0),
    ([25, 15], 8.0),
    ([14, 13, 13], 3.0),
    ([20, 20], 2.0),
    ([60, 2], 4.0),
]


@pytest.mark.parametrize(("counts", "deviation"), HISTOGRAMS)
def test_the_chance_of_another_winner_is_at_least_the_true_one(counts, deviation):
    true = 1 - law_of_winner(counts, deviation)[int(np.argmax(counts))]
    assert chance_of_another_winner(np.array(counts), deviation) >= true - 1e-9


@pytest.mark.parametrize(("counts", "deviation"), HISTOGRAMS)
def test_no_neighbour_is_further_away_than_the_bound(counts, deviation):
    """The exact divergence of the law of winners from that of each neighbour, at all orders up to 64."""
    bound = renyi_of_winner(chance_of_another_winner(np.array(counts), deviation), deviation)
    own = law_of_winner(counts, deviation)
    for other in (law_of_winner(moved, deviation) for moved in neighbours(counts)):
        for order, allowed in zip(ORDERS, bound, strict=True):
            seen = own > 1e-12  # quadrature says nothing about less
            if order <= 64:
                moment = logsumexp(order * np.log(own[seen]) + (1 - order) * np.log(other[seen]))
                assert moment / (order - 1) <= allowed + 1e-7


@given(chance=st.floats(0, 1), more=st.floats(0, 1), deviation=st.floats(0.5, 200))
def test_the_bound_is_never_above_that_of_the_noise_and_grows_with_the_chance(chance, more, deviation):
    low, high = (renyi_of_winner(np.array(q), deviation) for q in sorted((chance, more)))
    always = np.array(ORDERS) / deviation / deviation
    for bound in (low, high):
        assert (bound >= 0).all()
        assert (bound <= always).all()
    assert (low <= high * (1 + 1e-9) + 1e-12).all()


def test_clear_votes_cost_a_fraction_and_ties_cost_what_their_noise_costs():
    always = np.array(ORDERS) / 40.0**2
    clear = renyi_of_winner(chance_of_another_winner(np.array([1000, 0, 0]), 40.0), 40.0)
    tie = renyi_of_winner(chance_of_another_winner(np.array([500, 500, 0]), 40.0), 40.0)
    place = ORDERS.index(8.0)
    assert clear[place] < 1e-6 * always[place]
    assert tie == pytest.approx(always)


def answers_event(count: int) -> Event:
    event = Event(noise_multiplier=5.0, sensitivity="sqrt(2)C", count=count, purpose="answers")
    return event.charged(planned=count, executed=count)


def test_what_is_not_on_record_counts_at_its_worst_case(tmp_path):
    """Nothing on record: the figure is that of the Renyi accountant, which looks at no vote."""
    events = [
        answers_event(50),
        Event(noise_multiplier=9.0, count=50, purpose="checks").charged(planned=50, executed=50),
    ]
    claim = VoteRecord(tmp_path / "votes.json").claim(events[0], events[1:], 1e-5)
    assert claim.epsilon_votes == pytest.approx(renyi.epsilon(events, 1e-5), abs=1e-4)
    assert (claim.queries, claim.recorded_queries, claim.answers) == (50, 0, 0)


def test_queries_that_were_planned_and_never_asked_count_at_their_worst_case(tmp_path):
    """As in a certificate: a run may be ended early for what it showed."""
    asked = [event.charged(planned=50, executed=0) for event in (answers_event(50), answers_event(50))]
    claim = VoteRecord(tmp_path / "votes.json").claim(asked[0], asked[1:], 1e-5)
    assert claim.queries == 50
    assert claim.epsilon_votes == pytest.approx(renyi.epsilon(asked, 1e-5), abs=1e-4)
    interrupt("g-pate", tiny_data(), tmp_path / "run")
    release = release_early(tmp_path / "run")
    (claim,) = kept_claims(RunFolder(tmp_path / "run").claims)
    assert 0 < claim.recorded_queries < claim.queries == release.certificate.events[0].count == 12


@pytest.mark.parametrize("deviation", [1e-150, 1e-9, 1e9, 1e160, 1e300])
def test_any_deviation_that_is_a_number_has_a_cost(tmp_path, deviation):
    record = VoteRecord(tmp_path / "votes.json")
    record.add(np.array([[[30, 5], [20, 20]]]), np.array([[True, True]]), deviation)
    assert (record.cost >= 0).all()
    assert np.isfinite(record.cost).all()
    event = Event(noise_multiplier=deviation, count=1, purpose="answers")
    assert record.claim(event, [event], 1e-5).epsilon_votes >= 0


def test_agreement_makes_the_figure_smaller_and_answers_nobody_saw_cost_nothing(tmp_path):
    deviation = math.sqrt(2 * 3) * 5.0
    counts = np.broadcast_to(np.array([400, 0, 0]), (50, 3, 3)).astype(np.int64)
    ties = np.broadcast_to(np.array([200, 200, 0]), (50, 3, 3)).astype(np.int64)
    figures = {}
    for name, votes, shown in (("clear", counts, True), ("tied", ties, True), ("hidden", ties, False)):
        record = VoteRecord(tmp_path / name / "votes.json")
        record.add(votes, np.full((50, 3), shown), deviation)
        figures[name] = record.claim(answers_event(50), [], 1e-5).epsilon_votes
    assert figures["tied"] == pytest.approx(renyi.epsilon([answers_event(50)], 1e-5), abs=1e-4)
    assert figures["hidden"] <= figures["clear"] < 0.1 * figures["tied"]


def test_a_record_survives_its_process_and_a_damaged_one_is_refused(tmp_path):
    record = VoteRecord(tmp_path / "votes.json")
    record.add(np.array([[[30, 5], [20, 15]]]), np.array([[True, False]]), 10.0)
    record.save()
    again = VoteRecord(tmp_path / "votes.json")
    assert (again.queries, again.answers) == (1, 1)
    assert again.cost == pytest.approx(record.cost)
    for content in ("{}", '{"cost": [0], "queries": 1, "answers": 1}', "[]"):
        (tmp_path / "votes.json").write_text(content)
        with pytest.raises(InputError, match=r"votes: .*votes.json is damaged; delete it"):
            VoteRecord(tmp_path / "votes.json")


def test_a_run_keeps_the_figure_in_its_private_folder_and_nowhere_else(tmp_path):
    release = tiny_train("g-pate", tiny_data(), tmp_path / "run")
    (claim,) = kept_claims(RunFolder(tmp_path / "run").claims)
    assert (claim.kind, claim.queries, claim.recorded_queries) == ("data-dependent-votes", 12, 12)
    assert claim.delta == release.certificate.headline.delta
    assert release.certificate.data_dependent is None
    public = [path for path in (tmp_path / "run").rglob("*") if path.is_file() and "private" not in path.parts]
    assert not any(b"epsilon_votes" in path.read_bytes() for path in public)
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "epsilon_votes" in page
    assert "not private: do not publish" in page
    public = write_report([tmp_path / "run"], tmp_path / "public.html", ReportOptions(public=True))
    assert "epsilon_votes" not in public.read_text()


def test_a_resumed_run_goes_on_from_its_record(tmp_path):
    data = tiny_data()
    interrupt("g-pate", data, tmp_path / "run")
    recorded = json.loads((tmp_path / "run" / "private" / "votes.json").read_text())["queries"]
    assert 0 < recorded < 12
    resume(data, tmp_path / "run")
    (claim,) = kept_claims(RunFolder(tmp_path / "run").claims)
    assert recorded < claim.recorded_queries <= claim.queries == 12
