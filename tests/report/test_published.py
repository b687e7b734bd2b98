"""Published figures: one place, complete, and compared at the right epsilon."""

from __future__ import annotations

import pytest

from understudy.data.catalog import known_names
from understudy.report.published import comparable_rows, published_level, published_note, published_rows


def test_every_row_is_about_known_data_and_says_where_it_comes_from():
    rows = published_rows()
    assert len(rows) > 30
    for row in rows:
        assert row.dataset in known_names()
        assert row.source
        assert row.fid is not None or row.cnn_accuracy is not None
        assert row.cnn_accuracy is None or 0 < row.cnn_accuracy < 1
    assert "as published" in published_note()


def test_the_figures_of_the_papers_are_there():
    found = {(row.dataset, row.method, row.epsilon): (row.fid, row.cnn_accuracy) for row in published_rows()}
    assert found["mnist", "GS-WGAN (epsilon not sound)", 10] == (61.3, 0.80)
    assert found["fashion-mnist", "DPGAN, large batch and step schedule", 10] == (56.8, 0.748)
    assert found["mnist", "DPGAN, large batch and step schedule", 1] == (56.2, 0.801)


@pytest.mark.parametrize(("epsilon", "level"), [(0.5, 1), (0.9999, 1), (1.0, 1), (1.2, 10), (9.03, 10), (10.05, 10)])
def test_ours_is_compared_with_the_smallest_published_epsilon_that_is_not_below(epsilon, level):
    assert published_level(epsilon, published_rows("mnist")) == level


def test_above_every_published_epsilon_only_references_are_left():
    assert published_level(12.0, published_rows("mnist")) is None
    assert {row.epsilon for row in comparable_rows("mnist", 12.0, "public", "record")} == {None}
    assert {row.epsilon for row in comparable_rows("mnist", 1.0, "public", "record")} == {None, 1}
    assert comparable_rows("patients", 1.0, "public", "record") == []


def test_every_published_epsilon_says_against_whom_it_holds_and_for_what():
    for row in published_rows():
        assert (row.viewer is None) == (row.unit is None) == (row.epsilon is None), row.method
        assert row.unit != "client" or (row.delta is not None and row.units), row.method
    (federated,) = [row for row in published_rows("femnist") if row.like == "gs-wgan-federated"]
    stated = (federated.epsilon, federated.viewer, federated.unit, federated.adjacency, federated.delta)
    assert stated == (599, "server", "client", "replace-one", 1.15e-3)


def test_a_figure_against_the_server_is_not_compared_with_one_against_the_public():
    assert comparable_rows("femnist", 9.998, "public", "record") == []
    assert {row.epsilon for row in comparable_rows("femnist", 9.998, "public", "client")} == {9990000}
    assert {row.epsilon for row in comparable_rows("femnist", 590.0, "server", "client")} == {599}
    assert comparable_rows("femnist", 2219.8822, "server", "client") == []
