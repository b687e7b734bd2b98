"""Routing: uniform and independent over all enrolled clients, within the limits, whoever can be reached."""

from __future__ import annotations

import os

import numpy as np
from scipy import stats

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


def test_counts_survive_a_restart():
    desk = RoutingDesk(limits(slots=5, answers=8, queries=70), os.urandom)
    desk.route()
    again = RoutingDesk(desk.limits, os.urandom)
    again.load_state_dict(desk.state_dict())
    assert np.array_equal(again.asked_private, desk.asked_private)
