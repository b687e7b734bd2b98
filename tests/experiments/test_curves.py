"""Curves: what a sweep is, what its points say, and what they have spent together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from understudy.errors import InputError
from understudy.experiments.curves import CERTIFIED, Curve, Point, in_order, read_point
from understudy.experiments.points import PlannedPoint, parse_axis, plan_points, shown_metrics
from understudy.experiments.total import Total, total_spending
from understudy.privacy.accounting import certified_epsilon
from understudy.release.release import load

from ..helpers.data import tiny_data
from ..helpers.runs import tiny_train

STAMP = "not private: do not publish"


def point(queries: object, cnn: float, epsilon: float | None = 1.0, repeat: int = 1, **more: object) -> Point:
    values = {"privacy.queries": queries, **more}
    return Point("p", "gs-wgan", values, repeat, epsilon, 1e-5, {"cnn": cnn}, 1)


def evaluated(folder: Path, **figures: float) -> Path:
    listed = [{"name": name, "value": value} for name, value in figures.items()]
    (folder / "evaluation.json").write_text(json.dumps({"figures": listed, "stamp": STAMP}))
    return folder


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("epsilon=1,3,10", "epsilon", (1, 3, 10)),
        ("privacy.queries = 1000, 2000", "privacy.queries", (1000, 2000)),
        ("method.mode=routed,paper", "method.mode", ("routed", "paper")),
        ("method.length_scales=[1,2],[3]", "method.length_scales", ([1, 2], [3])),
        ("method.spectral=true,false", "method.spectral", (True, False)),
    ],
)
def test_axes_are_read(text, key, values):
    axis = parse_axis(text)
    assert (axis.key, axis.values) == (key, values)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon", "not of the form"),
        ("=1,2", "not of the form"),
        ("epsilon=", "not of the form"),
        ("epsilon=1,one", "takes numbers"),
        ("a.b=1,1", "names a value twice"),
        ("a.b=[1],[1]", "names a value twice"),
    ],
)
def test_axes_that_are_none_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_axis(text)


def test_points_are_all_combinations_and_their_folders_differ():
    points = plan_points([parse_axis("epsilon=1,10"), parse_axis("method.mode=a,b/../c,b-..-c")], repeats=2)
    assert len(points) == 12
    assert len({each.name for each in points}) == 12
    assert all("/" not in each.name and not each.name.startswith(".") for each in points)
    assert points[0] == PlannedPoint({"epsilon": 1, "method.mode": "a"})
    assert [each.repeat for each in points] == [1] * 6 + [2] * 6


@pytest.mark.parametrize(
    ("axes", "repeats", "words"),
    [
        ([], 1, "nothing to vary"),
        (["a=1", "b=1", "c=1"], 1, "3 settings"),
        (["a=1", "a=2"], 1, "named twice"),
        (["a=1"], 0, "pass 1 or more"),
        (["a=" + ",".join(str(n) for n in range(1001))], 1, "at most 1000"),
    ],
)
def test_sweeps_that_are_none_are_refused(axes, repeats, words):
    with pytest.raises(InputError, match=words):
        plan_points([parse_axis(text) for text in axes], repeats)


def test_lines_are_sorted_means_with_deviations():
    points = (point(400, 0.5), point(100, 0.1), point(100, 0.3, repeat=2), point(200, 0.4))
    (line,) = Curve(("privacy.queries",), ("cnn",), points).lines("cnn", "privacy.queries")
    assert line.positions == (100, 200, 400)
    assert line.means == pytest.approx((0.2, 0.4, 0.5))
    assert line.deviations == pytest.approx((0.02**0.5, 0.0, 0.0))


def test_the_second_key_gives_a_line_for_each_value_and_the_price_an_axis_where_it_differs():
    key = "privacy.subsets"
    points = tuple(point(q, 0.1, epsilon=q / 100 * k, **{key: k}) for q in (100, 200) for k in (1, 2))
    curve = Curve(("privacy.queries", key), ("cnn",), points)
    assert curve.axes() == ("privacy.queries", CERTIFIED)
    first, second = curve.lines("cnn", CERTIFIED)
    assert (first.name, first.positions) == ("privacy.subsets = 1", (1.0, 2.0))
    assert (second.name, second.positions) == ("privacy.subsets = 2", (2.0, 4.0))
    same = Curve(("privacy.queries",), ("cnn",), (point(100, 0.1), point(200, 0.2, epsilon=1.001)))
    assert same.axes() == ("privacy.queries",)
    assert Curve(("epsilon",), ("cnn",), points).axes() == (CERTIFIED,)


def test_points_without_a_guarantee_have_no_place_against_epsilon():
    curve = Curve((), ("cnn",), (point(1, 0.1, epsilon=None), point(1, 0.2, epsilon=2.0)))
    lines = curve.lines("cnn", CERTIFIED)
    assert sum(len(line.positions) for line in lines) <= 1


def test_points_are_in_order_with_numbers_by_size():
    points = [point(1000, 0.1), point("many", 0.2), point(200, 0.3, repeat=2), point(200, 0.4)]
    assert [each.figures["cnn"] for each in in_order(points)] == [0.4, 0.3, 0.1, 0.2]


def test_all_classifiers_are_shown_by_their_averages():
    assert shown_metrics(["fid", "downstream", "fid"]) == ("fid", "average_accuracy", "calibrated_accuracy")


def test_a_run_becomes_a_point(tmp_path: Path):
    tiny_train("gs-wgan", tiny_data(), tmp_path / "run")
    evaluated(tmp_path / "run", cnn=0.5, fid=3.0)
    young = "method.queries_per_point"  # which no file names that has its default
    found = read_point(tmp_path / "run", ["privacy.queries", "epsilon", young], ["cnn"])
    assert found.values == {"privacy.queries": 32, "epsilon": 10, young: 1}
    assert found.figures == {"cnn": 0.5}
    assert found.epsilon == load(tmp_path / "run").certificate.headline.epsilon
    assert found.stamp == STAMP
    assert found.clip == 0.1
    assert found.norms
    assert all("gradient_norm_before" in row for row in found.norms)
    assert read_point(tmp_path / "run", [], []).figures == {"cnn": 0.5, "fid": 3.0}
    with pytest.raises(InputError, match="no figure for is; measure it"):
        read_point(tmp_path / "run", [], ["is"])
    with pytest.raises(InputError, match=r"no setting 'privacy\.nothing'"):
        read_point(tmp_path / "run", ["privacy.nothing"], ["cnn"])
    with pytest.raises(InputError, match="is not the folder of a run"):
        read_point(tmp_path / "run" / "release", [], ["cnn"])


def test_runs_on_the_same_data_add_up(tmp_path: Path):
    for name, multiplier in (("a", 10.0), ("b", 5.0)):
        tiny_train("dp-merf", tiny_data(), tmp_path / name, privacy={"noise_multiplier": multiplier})
    folders = [tmp_path / "a", tmp_path / "b"]
    (total,) = total_spending(folders)
    events = [event for folder in folders for event in load(folder).certificate.events]
    assert total.epsilon == certified_epsilon(events, 1e-5)
    single = [load(folder).certificate.headline.epsilon for folder in folders]
    assert max(single) < total.epsilon < sum(single)
    assert total.runs == 2
    assert "add up" in total.in_words()


def test_runs_on_other_data_are_counted_apart(tmp_path: Path):
    tiny_train("dp-merf", tiny_data(), tmp_path / "a")
    tiny_train("dp-merf", tiny_data("rgb"), tmp_path / "b")
    totals = total_spending([tmp_path / "a", tmp_path / "b"])
    assert [total.runs for total in totals] == [1, 1]
    assert "One run" in totals[0].in_words()


def test_a_run_that_broke_down_counts_as_well(tmp_path: Path):
    for name in ("a", "b"):
        tiny_train("dp-merf", tiny_data(), tmp_path / name)
    both = total_spending([tmp_path / "a", tmp_path / "b"])[0].epsilon
    (tmp_path / "b" / "release").rename(tmp_path / "gone")
    assert total_spending([tmp_path / "a", tmp_path / "b"])[0].epsilon == both


def test_what_cannot_be_told_is_said():
    assert "more than the accountants can tell" in Total("x", 2, None, 1e-5).in_words()
    assert "without any guarantee" in Total("x", 2, None, 1.0).in_words()
