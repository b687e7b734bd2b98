"""``auto``: a method is chosen by public facts alone, from what was measured, and is honest where nothing near was."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import understudy as us
from understudy.data.domain import Domain, declare_domain
from understudy.data.sources import DataOptions
from understudy.errors import InputError
from understudy.forecast import introduce
from understudy.methods.choice import AUTO, PATIENCE, Choice, choose, usual_shape
from understudy.methods.knowledge import Candidate, Knowledge, Measured, read_knowledge
from understudy.methods.registry import get_method, method_names
from understudy.privacy.budget import Budget, OpenBudget, usual_delta

QUICK = {"method": {"frequencies": 100, "steps": 20, "batch": 20}}
SLOW = {"method": {"frequencies": 4000, "steps": 3000, "batch": 500}}
TAUGHT = {"privacy": {"teacher_share": 0.4}, **QUICK}
CANDIDATES = {
    name: Candidate(name, "dp-merf", None, config)
    for name, config in (("quick", QUICK), ("slow", SLOW), ("taught", TAUGHT))
}


def measured(candidate: str, accuracy: float, records: int = 10_000, dataset: str = "public") -> Measured:
    """At epsilon 1 and ten classes: 1,000 units per class are a signal of 1,000."""
    return Measured(candidate, dataset, "cpu", records, 10, 784, 1.0, accuracy, 0.1, 0.9, 10.0)


def domain(records: int = 10_000, classes: int | None = 10, **more: object) -> Domain:
    return declare_domain(**({"shape": (1, 28, 28), "classes": classes, "nominal_records": records} | more))


def chosen(
    runs: list[Measured], facts: Domain | None = None, epsilon: float = 1.0, time: float | None = None
) -> Choice:
    knowledge = Knowledge(CANDIDATES, tuple(runs))
    return choose(facts or domain(), OpenBudget(epsilon), "cpu", time, knowledge=knowledge)


# The rule


def test_what_recovered_most_in_runs_with_about_as_much_signal_is_chosen():
    runs = [measured("quick", 0.5), measured("taught", 0.7), measured("quick", 0.9, records=100_000)]
    choice = chosen(runs)
    assert choice.chosen.candidate.name == "taught"
    assert choice.chosen.recovered == pytest.approx((0.75, 0.75))
    assert (choice.signal, choice.near) == (1000, True)
    assert chosen(runs, epsilon=10).chosen.candidate.name == "quick"  # ten times the signal


def test_candidates_are_compared_on_the_same_data_sets_only():
    """One that was tried on an easy data set alone gains nothing by that."""
    hard = [measured("quick", 0.5, dataset="hard"), measured("quick", 0.85, dataset="easy")]
    assert chosen([*hard, measured("taught", 0.8, dataset="easy")]).chosen.candidate.name == "quick"


def test_one_that_was_tried_where_there_is_less_signal_is_not_the_worse_for_it():
    """Signal 500 and 2,000: what was tried at the lower one alone recovers less, as the other does there."""
    less, more = {"records": 5000}, {"records": 20_000}
    runs = [measured("quick", 0.4, **less), measured("quick", 0.6, **more), measured("taught", 0.5, **less)]
    assert chosen(runs).chosen.candidate.name == "taught"
    assert chosen(runs).chosen.shortfall == 0


def test_where_nothing_near_fits_the_time_what_was_measured_further_off_is_taken_and_said():
    runs = [measured("slow", 0.8), measured("quick", 0.5, records=200_000), measured("quick", 0.3, records=100_000)]
    choice = chosen(runs, time=60.0)
    assert (choice.chosen.candidate.name, choice.near) == ("quick", False)
    assert "nothing like your data was measured that fits" in introduce(choice)
    assert [run.accuracy for run in choice.chosen.runs] == [0.3]  # the nearest of its own


def test_what_is_as_good_and_far_quicker_is_preferred_but_nothing_worse():
    assert chosen([measured("slow", 0.7), measured("quick", 0.695)]).chosen.candidate.name == "quick"
    assert chosen([measured("slow", 0.7), measured("quick", 0.6)]).chosen.candidate.name == "slow"


def test_what_takes_longer_than_one_is_ready_to_wait_is_left_out():
    runs = [measured("slow", 0.8), measured("quick", 0.5)]
    choice = chosen(runs, time=60.0)
    assert choice.chosen.candidate.name == "quick"
    assert choice.considered[0].left_out == "takes too long"
    assert choice.seconds <= 60
    with pytest.raises(InputError, match=r"^time: no candidate takes less than 1 seconds here; .* pass --time \d+m"):
        chosen([measured("slow", 0.8)], time=1.0)


def test_where_nothing_near_was_measured_it_is_said():
    choice = chosen([measured("quick", 0.5)], domain(records=100))
    assert not choice.near
    assert "nothing like your data was measured" in introduce(choice)
    assert "nothing like" not in introduce(chosen([measured("quick", 0.5)]))


def test_a_teacher_is_left_out_where_there_are_no_labels():
    choice = chosen([measured("taught", 0.8), measured("quick", 0.5)], domain(records=1000, classes=None))
    assert choice.chosen.candidate.name == "quick"
    assert "nothing to teach" in str(choice.considered[0].left_out)
    assert "where there are labels" in introduce(choice)


def test_people_are_the_units_where_they_are_declared():
    assert chosen([measured("quick", 0.5)], domain(nominal_people=200)).signal == 20


def test_two_sentences_say_what_and_why_and_what_to_expect():
    told = introduce(chosen([measured("taught", 0.7), measured("taught", 0.3, records=9000)]))
    assert told.count(". ") == 1
    assert told.endswith(" on this CPU.")
    for words in ("dp-merf", "0.4 of epsilon for its teacher", "28x28 in grey", "25 to 75 %", "2 runs on public"):
        assert words in told


# Colour


def test_a_figure_of_grey_images_is_no_promise_for_colour():
    told = introduce(chosen([measured("quick", 0.7)], domain(shape=(3, 28, 28))))
    assert "Nothing that it knows was measured in colour: there, in grey," in told
    assert "recovered 75 %" in told
    assert "Expect a classifier" not in told
    in_colour = replace(measured("quick", 0.7), channels=3)
    assert "Expect a classifier" in introduce(chosen([in_colour], domain(shape=(3, 28, 28))))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a graphics card of 100 GiB, as far as a choice asks."""
    properties = SimpleNamespace(total_memory=100 * 2**30)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: properties)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a card")


DIFFUSION = Candidate("measured", "dp-diffusion", "gpu", {"privacy": {"teacher_share": 0.3, "steps": 20}})
COLOUR = domain(records=30_000, classes=2, shape=(3, 32, 32))


def chosen_on_card(facts: Domain, time: float, device: str = "a card") -> Choice:
    runs = (replace(measured("measured", 0.8), records=150_000, device=device),)
    knowledge = Knowledge({"measured": DIFFUSION}, runs)
    return choose(facts, Budget(1, 1e-6), "cuda", time, compare=True, knowledge=knowledge)


@pytest.mark.usefixtures("card")
def test_in_colour_a_card_gets_the_settings_for_colour_with_as_many_steps_as_the_time_allows():
    whole, cut = chosen_on_card(COLOUR, 36_000), chosen_on_card(COLOUR, 500)
    assert {(each.preset, each.chosen.candidate.stands_for) for each in (whole, cut)} == {("gpu-colour", "measured")}
    assert cut.chosen.candidate.shares["teacher"] == 0.3  # as it was measured
    assert cut.seconds <= 500 < whole.seconds
    assert cut.plan.steps < whole.plan.steps == get_method("dp-diffusion").presets["gpu-colour"]["privacy"]["steps"]
    told = introduce(cut)
    assert f"{cut.plan.steps:,} steps" in told
    assert "its settings for grey images did best" in told
    assert "Nothing that it knows was measured in colour" in told


@pytest.mark.usefixtures("card")
def test_settings_for_colour_that_would_have_to_be_cut_too_short_are_left_out():
    choice = chosen_on_card(COLOUR, 200)
    assert choice.chosen.candidate == DIFFUSION
    assert [each.left_out for each in choice.considered] == ["takes too long", None]


@pytest.mark.usefixtures("card")
def test_grey_images_and_what_a_processor_measured_keep_their_settings():
    assert chosen_on_card(domain(records=30_000, classes=2), 36_000).preset == "gpu"
    assert chosen_on_card(COLOUR, 36_000, device="1 of 2 CPU threads").preset == "gpu"


@pytest.mark.usefixtures("card")
def test_on_a_card_what_one_did_further_off_counts_beside_what_a_processor_did_near_by():
    far = replace(measured("slow", 0.8, records=100_000), device="a card")
    runs = (measured("quick", 0.5), measured("quick", 0.6, records=100_000), far)
    knowledge = Knowledge(CANDIDATES, runs)
    choice = choose(domain(), Budget(1, 1e-6), "cuda", knowledge=knowledge)
    assert (choice.chosen.candidate.name, choice.near) == ("slow", False)
    assert choose(domain(), Budget(1, 1e-6), "cpu", knowledge=knowledge).near


@pytest.mark.usefixtures("card")
def test_what_the_card_has_no_room_for_is_left_out(monkeypatch: pytest.MonkeyPatch):
    known = Knowledge(CANDIDATES, (measured("quick", 0.5),))
    assert choose(domain(), Budget(1, 1e-6), "cuda", knowledge=known).chosen.left_out is None
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=2**28))
    with pytest.raises(InputError, match=r"^auto: no candidate can be planned.* but a card has 0\.2 GiB"):
        choose(domain(), Budget(1, 1e-6), "cuda", knowledge=known)


# Public facts alone


def test_nothing_that_chooses_can_see_a_record():
    seen = {"domain", "budget", "device", "time", "compare", "knowledge", "watch"}
    assert set(inspect.signature(choose).parameters) == seen


def test_what_it_is_told_is_the_same_whatever_the_records_are():
    random = np.random.default_rng(0)
    told = [
        us.from_arrays(images, np.arange(len(images)) % 2, records=400, classes=2).domain
        for images in (np.zeros((30, 8, 8), np.uint8), random.integers(0, 256, (50, 8, 8), dtype=np.uint8))
    ]
    assert told[0] == told[1]


def test_pictures_are_brought_to_the_usual_shape_and_nothing_else_is(tmp_path: Path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (40, 50)).save(tmp_path / "pictures" / "1.png")
    pictures = DataOptions(str(tmp_path / "pictures"), records=10)
    assert usual_shape(pictures).shape == "3x32x32"
    assert usual_shape(replace(pictures, shape="1x28x28")).shape == "1x28x28"
    assert usual_shape(replace(pictures, declared=("size=16,16",))).shape is None
    np.savez(tmp_path / "arrays.npz", x=np.zeros((3, 8, 8), np.uint8))
    assert usual_shape(DataOptions(str(tmp_path / "arrays.npz"), records=10)).shape is None
    assert usual_shape(DataOptions("digits")).shape is None


# The table


def test_every_candidate_of_the_table_can_be_planned_and_was_measured():
    known = read_knowledge()
    assert {run.candidate for run in known.runs} == set(known.candidates)
    assert AUTO not in method_names()
    for candidate in known.candidates.values():
        assert get_method(candidate.method).private
        assert candidate.preset is None or candidate.preset in get_method(candidate.method).presets
    for run in known.runs:
        assert 0 < run.chance < run.accuracy < run.real <= 1


def test_the_data_that_test_the_table_are_not_in_it():
    assert {run.dataset for run in read_knowledge().runs} <= {"digits", "mnist", "fashion-mnist", "femnist"}


@pytest.mark.parametrize(("records", "classes", "epsilon"), [(2000, 2, 3), (300, 2, 1)])
def test_there_is_a_choice_within_the_usual_patience_on_a_processor(records: int, classes: int, epsilon: float):
    choice = choose(domain(records, classes), OpenBudget(epsilon), "cpu")
    assert choice.seconds <= PATIENCE
    assert choice.plan.epsilon <= epsilon
    assert choice.plan.budget.delta == usual_delta(records)


# The usual delta


@pytest.mark.parametrize(
    ("units", "delta"),
    [(200, 1e-5), (10_000, 1e-5), (20_000, 5e-6), (60_000, 1.6e-6), (23_708, 4.2e-6), (10**9, 1e-10)],
)
def test_the_usual_delta_is_a_tenth_of_one_over_the_units_and_at_most_1e_5(units: int, delta: float):
    assert usual_delta(units) == delta
    assert usual_delta(units) * units <= 0.1


def test_a_budget_with_a_delta_keeps_it():
    assert Budget(3, 1e-3).settled(10**6) == Budget(3, 1e-3)
    assert OpenBudget(3).settled(10**6) == Budget(3, 1e-7)


# From Python


def test_auto_trains_what_it_chose_and_names_it(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    data, heard = us.from_arrays(images, np.arange(40) % 2, records=1000, classes=2), list[Choice]()
    options = us.TrainOptions(config={"runtime": {"device": "cpu"}}, time=60, chosen=heard.append)
    with pytest.raises(InputError, match="out: stop"):
        us.train(AUTO, data, us.Budget(3, 1e-5), tmp_path / "run", replace(options, stop_requested=_stop))
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert described["method"] == heard[0].method != AUTO
    teacher_share = heard[0].config.get("privacy", {}).get("teacher_share", 0)
    assert described["config"]["privacy"]["teacher_share"] == teacher_share


def _stop() -> bool:
    raise InputError("out: stop")


def test_settings_of_a_method_that_is_not_chosen_yet_are_refused(tmp_path: Path):
    data, budget = us.load("digits"), us.Budget(3, 1e-5)
    with pytest.raises(InputError, match=r"^preset: auto chooses preset and settings too"):
        us.train(AUTO, data, budget, tmp_path / "run", us.TrainOptions(preset="gpu"))
    with pytest.raises(InputError, match=r"^method: auto chooses preset and settings too"):
        us.train(AUTO, data, budget, tmp_path / "run", us.TrainOptions(config={"method": {"steps": 3}}))
    with pytest.raises(InputError, match=r"^time: dp-merf takes as long as it takes"):
        us.train("dp-merf", data, budget, tmp_path / "run", us.TrainOptions(time=60))
