"""Routing: uniform and independent over all enrolled clients, within the limits, whoever can be reached."""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy import stats

from understudy.errors import InputError
from understudy.federated.routing import RoutingDesk
from understudy.privacy.certificate import ClientLimits

FALSE_ALARM = 1e-6


def limits(**changes) -> ClientLimits:
    return ClientLimits(**{"clients": 7, "rounds": 10, "queries": 7000, "slots": 7000, "answers": 70_000} | changes)


def uniform(counts: np.ndarray) -> bool:
    return bool(stats.chisquare(counts).pvalue > FALSE_ALARM)


def test_queries_go_to_all_enrolled_clients_alike():
    drawn = RoutingDesk(limits(), os.urandom).route().client_private
    assert uniform(np.bincount(drawn, minlength=7))
    skewed = np.where((drawn == 6) & (np.arange(len(drawn)) % 2 == 0), 0, drawn)  # half of one client's go to another
    assert not uniform(np.bincount(skewed, minlength=7))


def test_successive_queries_are_independent():
    drawn = RoutingDesk(limits(), os.urandom).route().client_private
    pairs = np.bincount(drawn[:-1:2] * 7 + drawn[1::2], minlength=49)
    assert uniform(pairs)
    sticky = np.where(np.arange(len(drawn) - 1) % 4 == 0, drawn[:-1], drawn[1:])  # a query follows the one before
    assert not uniform(np.bincount(np.concatenate([drawn[:1], sticky])[:-1:2] * 7 + sticky[::2], minlength=49))


def test_a_client_gets_at_most_its_slots_a_round_and_its_answers_in_all():
    desk = RoutingDesk(limits(slots=5, answers=8, queries=70), os.urandom)
    for expected in (5, 8, 8):
        routed = desk.route()
        assert max(len(routed.queries_of(client)) for client in range(7)) <= 5
        assert desk.asked_private.max() <= expected
    assert (desk.asked_private == 8).all()  # 70 queries a round: all limits are reached
    assert (desk.route().client_private == -1).all()


def test_queries_keep_their_order_and_belong_to_one_client():
    routed = RoutingDesk(limits(queries=100, slots=100), os.urandom).route()
    everything = np.concatenate([routed.queries_of(client) for client in range(7)])
    assert sorted(everything) == list(range(100))
    for client in range(7):
        assert (np.diff(routed.queries_of(client)) > 0).all()


@pytest.mark.parametrize(("next_round", "counted"), [(1, True), (0, False)])
def test_counts_survive_a_crash_and_a_round_counts_once_the_ledger_holds_it(next_round, counted, tmp_path):
    """Counts are on disk before the ledger, so the last round may be one that nobody was asked."""
    desk = RoutingDesk(limits(slots=5, answers=8, queries=70), os.urandom, tmp_path / "routing.json")
    desk.route(0)
    again = RoutingDesk(desk.limits, os.urandom, tmp_path / "routing.json")
    again.remember(next_round)
    assert np.array_equal(again.asked_private, desk.asked_private * counted)
    before = desk.asked_private
    desk.route(1)
    again.remember(1)
    assert np.array_equal(again.asked_private, before)
    again.remember(2)
    assert np.array_equal(again.asked_private, desk.asked_private)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"round": 0, "before": [0], "asked": [0]}'])
def test_without_its_counts_a_run_does_not_go_on(content, tmp_path):
    if content is not None:
        (tmp_path / "routing.json").write_text(content)
    desk = RoutingDesk(limits(), os.urandom, tmp_path / "routing.json")
    desk.remember(0)  # nothing was asked yet
    with pytest.raises(InputError, match="not known how often each client was asked; start a new run"):
        desk.remember(1)
